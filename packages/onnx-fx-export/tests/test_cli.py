"""The command line exports files and factories, prints a summary, and says with its exit code how it went."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FACTORY = """
import torch

def linear():
    return torch.nn.Linear(3, 2), (torch.ones(2, 3),), {"dynamic_shapes": ({0: "batch"},)}

def broken():
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.eig(x)
    return Model(), (torch.eye(2),)
"""


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from onnx_fx_export.entry import main; main()", *arguments]
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "factories.py").write_text(FACTORY)
    return tmp_path


def test_a_factory_is_exported_and_verified(folder: Path) -> None:
    result = run("factories:linear", "-o", "model.onnx", "--opset", "13", "--verify", "--json", folder=folder)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["opset"] == 13
    assert summary["inputs"] == ["input"]
    assert set(summary["seconds"]) == {"capture", "convert", "verify", "save"}
    assert (folder / "model.onnx").exists()


def test_a_saved_program_is_exported(folder: Path) -> None:
    torch.export.save(torch.export.export(torch.nn.Linear(3, 2), (torch.ones(2, 3),)), folder / "model.pt2")
    result = run("model.pt2", "-o", "model.onnx", folder=folder)
    assert result.returncode == 0, result.stderr
    assert "nodes" in result.stdout
    assert (folder / "model.onnx").exists()


def test_a_failed_export_exits_with_1_and_leaves_no_file(folder: Path) -> None:
    result = run("factories:broken", "-o", "model.onnx", folder=folder)
    assert result.returncode == 1
    assert "eig" in result.stderr
    assert not (folder / "model.onnx").exists()


@pytest.mark.parametrize("source", ["missing.pt2", "factories", "factories:nothing", "no_module:linear"])
def test_a_wrong_source_exits_with_2(folder: Path, source: str) -> None:
    result = run(source, "-o", "model.onnx", folder=folder)
    assert result.returncode == 2
    assert "error" in result.stderr
