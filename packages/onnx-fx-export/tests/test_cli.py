"""The command line exports files and factories, prints a summary, and says with its exit code how it went."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
import torch
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

import onnx_fx_export
from onnx_fx_export.cli import app
from onnx_fx_export.cli.console import Progress

FACTORY = """
import torch

class Block(torch.nn.Linear):
    def forward(self, x):
        return torch.relu(super().forward(x))

class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.dropout = torch.nn.Dropout()

    def forward(self, x):
        self.count.add_(1)
        return x * self.count

def scaled():
    return torch.nn.Softmax(-1), (torch.ones(2, 3),), {"dynamic_shapes": ({0: "batch"},)}

def raising():
    raise KeyError("weights")

def branching():
    return (lambda x: x if x.sum() > 0 else x[:1]), (torch.ones(2),)

def linear():
    return torch.nn.Linear(3, 2), (torch.ones(2, 3),), {"dynamic_shapes": ({0: "batch"},), "opset_version": 17}

def plain():
    return torch.nn.Linear(64, 64), (torch.ones(2, 64),)

def largest():
    return (lambda x: x.argmax(-1)), (torch.randn(2, 5),)

def halves():
    return (lambda x: x.reshape(2, -1)), (torch.ones(4, 3),), {"dynamic_shapes": ({0: "rows", 1: "columns"},)}

def conv():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).eval()
    return model, (torch.ones(2, 3, 5, 5),)

def blocks():
    return torch.nn.Sequential(torch.nn.ModuleList([Block(4, 4), Block(4, 4)])[0], Block(4, 4)), (torch.ones(2, 4),)

def counter():
    return Counter().eval(), (torch.ones(2),)

def packed():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.LSTM(2, 2)
        def forward(self, x, lengths):
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
            return torch.nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0])[0]
    return Model(), (torch.ones(3, 2, 2), torch.tensor([3, 2]))

def broken():
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.eig(x)
    return Model(), (torch.eye(2),)

def alone():
    return torch.nn.ReLU()

def misspelt():
    return torch.nn.ReLU(), (torch.ones(2),), {"opset": 17}

constant = 5
"""


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onnx_fx_export", *arguments]
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


def run_here(*arguments: str) -> Result:
    """Run the command in this process, which is faster."""
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "factories.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("factories", None)


def test_a_factory_is_exported_and_verified(folder: Path) -> None:
    result = run("factories:linear", "-o", "model.onnx", "--opset", "13", "--verify", "--json", folder=folder)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["opset"] == 13
    assert summary["inputs"] == ["input FLOAT[batch,3]"]
    assert set(summary["seconds"]) == {"capture", "trial runs", "convert", "verify", "save"}
    assert summary["captured by"] == "non-strict"
    assert [found.partition(":")[0] for found in summary["verified"]] == ["the example", "batch = 3", "batch = 1"]
    assert (folder / "model.onnx").exists()


def test_a_saved_program_is_exported(folder: Path) -> None:
    torch.export.save(torch.export.export(torch.nn.Linear(3, 2), (torch.ones(2, 3),)), folder / "model.pt2")
    result = run_here("model.pt2", "-o", "model.onnx")
    assert result.exit_code == 0, result.stderr
    assert "input FLOAT[2,3]" in result.stdout
    assert (folder / "model.onnx").exists()


def test_a_failed_export_exits_with_1_and_leaves_no_file(folder: Path) -> None:
    result = run_here("factories:broken", "-o", "model.onnx")
    assert result.exit_code == 1
    assert "eig" in result.stderr
    assert not (folder / "model.onnx").exists()


def test_stages_are_plain_lines_beside_the_result(folder: Path) -> None:
    result = run_here("factories:linear", "-o", "model.onnx", "--verify", "--json")
    assert re.fullmatch(r"( *(\w+|trial runs)  \d+\.\d\d s\n){5}", result.stderr)
    assert json.loads(result.stdout)["opset"] == 17  # as the factory states


def test_a_terminal_shows_the_stage_that_runs() -> None:
    console = Console(force_terminal=True, file=io.StringIO(), width=80)
    progress = Progress(console)
    for stage in ("capture", "convert"):
        progress(stage)
        assert stage in str(progress._status.status)
    progress.end()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())
    assert re.search(r" capture  \d\.\d\d s", text)
    assert re.search(r" convert  \d\.\d\d s", text)


def graph_of(folder: Path) -> onnx.GraphProto:
    return onnx.load(folder / "model.onnx", load_external_data=False).graph


def shape_of(value: onnx.ValueInfoProto) -> list[str]:
    return [dim.dim_param or str(dim.dim_value) for dim in value.type.tensor_type.shape.dim]


OPTIONS = {
    "names and dimensions": (
        ["plain", "--input-name", "x", "--output-name", "y", "--dynamic", "x:0=rows", "--dynamic", "y:0=lines"],
        lambda graph: (graph.input[0].name, shape_of(graph.input[0]), shape_of(graph.output[0])),
        ("x", ["rows", "64"], ["lines", "64"])),
    "dimensions that win over those of the factory": (
        ["scaled", "--dynamic", "input:1=columns"], lambda graph: shape_of(graph.input[0]),
        ["2", "columns"]),
    "no optimization": (
        ["conv", "--no-optimize"], lambda graph: [node.op_type for node in graph.node], ["Conv", "BatchNormalization"]),
    "optimization": (["conv", "--optimize"], lambda graph: [node.op_type for node in graph.node], ["Conv"]),
    "no weights": (["plain", "--no-weights"], lambda graph: (len(graph.initializer), len(graph.input)), (0, 3)),
    "external data": (
        ["plain", "--external-data"], lambda graph: max(weight.data_location for weight in graph.initializer),
        onnx.TensorProto.EXTERNAL),
    "functions": (
        ["blocks", "--functions", "Block"], lambda graph: [node.op_type for node in graph.node], ["Block", "Block"]),
    "all functions": (
        ["blocks", "--functions", "all"], lambda graph: [node.op_type for node in graph.node], ["Block", "Block"]),
    "repeated": (["blocks", "--repeated", "factories.Block"], lambda graph: len(graph.node), 4),
    "state": (["counter", "--state", "io"], lambda graph: [v.name for v in graph.output], ["output", "count.next"]),
    "state that is ignored": (
        ["counter", "--state", "ignore"], lambda graph: [v.name for v in graph.output], ["output"]),
    "NaN as PyTorch has it": (
        ["largest", "--nan", "exact"], lambda graph: "IsNaN" in [node.op_type for node in graph.node], True),
    "plain operators": (
        ["largest", "--nan", "finite"], lambda graph: [node.op_type for node in graph.node], ["ArgMax"]),
    "checks of sizes": (
        ["halves", "--size-checks"], lambda graph: "Mod" in [node.op_type for node in graph.node], True),
    "no metadata": (["plain", "--metadata", "none"], lambda graph: len(graph.node[0].metadata_props), 0),
    "strategy": (["plain", "--strategy", "strict"], lambda graph: len(graph.node), 1),
    "torchscript": (["plain", "--torchscript"], lambda graph: len(graph.initializer), 2),
    "fallback": (["packed", "--fallback"], lambda graph: len(graph.output), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_options_reach_the_export(name: str, folder: Path) -> None:
    (factory, *options), found, expected = OPTIONS[name]
    result = run_here(f"factories:{factory}", "-o", "model.onnx", *options)
    assert result.exit_code == 0, result.stderr
    assert found(graph_of(folder)) == expected


def test_files_about_the_export_go_where_they_are_wanted(folder: Path) -> None:
    options = ["--report", "--profile", "--dump-exported-program", "--artifacts-dir", "about/it"]
    assert run_here("factories:plain", "-o", "model.onnx", *options).exit_code == 0
    names = ["exported_program.pt2", "onnx_export_profile.txt", "onnx_export_report.html"]
    assert sorted(file.name for file in (folder / "about" / "it").iterdir()) == names


WRONG = {
    "a missing file": ["missing.pt2"],
    "no file and no factory": ["factories"],
    "no such function": ["factories:nothing"],
    "no such module": ["no_module:linear"],
    "a factory that gives no example": ["factories:alone"],
    "a file of another kind": ["factories.pt2"],
    "a factory that raises": ["factories:raising"],
    "no such file": ["missing.py:linear"],
    "an unknown dimension": ["factories:plain", "--dynamic", "y0=rows"],
    "an unknown input": ["factories:plain", "--dynamic", "z:0=rows"],
    "an unknown class": ["factories:blocks", "--functions", "Bloc"],
    "an opset that is none": ["factories:plain", "--opset", "newest"],
    "an unknown option": ["factories:plain", "--fast"],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_command_exits_with_2(name: str, folder: Path) -> None:
    (folder / "factories.pt2").write_text("no archive")
    result = run_here(*WRONG[name], "-o", "model.onnx")
    assert (result.exit_code, type(result.exception)) == (2, SystemExit)
    assert "error" in result.stderr.lower()
    assert not (folder / "model.onnx").exists()


@pytest.mark.parametrize(("arguments", "message"), [
    (["factories:constant"], "factories:constant is not a function, but int"),
    (["factories:misspelt"], "factories:misspelt gives 'opset', which is not an argument"),
    (["factories:raising"], "factories:raising failed: KeyError: 'weights' (at "),
    (["factories.py:nothing"], "AttributeError: module 'factories' has no attribute 'nothing'"),
    (["factories:plain", "--opset", "99"], "opset_version is a whole number, 7 to 28, not 99"),
])  # fmt: skip
def test_commands_that_cannot_work_are_told_of_at_once(arguments: list[str], message: str, folder: Path) -> None:
    result = run_here(*arguments, "-o", "model.onnx")
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_factory_may_be_named_by_its_file(folder: Path) -> None:
    assert run_here("factories.py:linear", "-o", "model.onnx").exit_code == 0
    assert onnx.load(folder / "model.onnx").graph.input[0].name == "input"


def test_an_if_of_data_prints_the_error_alone(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(FACTORY)
    result = run("models:branching", "-o", "model.onnx", folder=tmp_path)
    assert result.returncode == 1
    assert "torch.cond" in result.stderr
    assert "class GraphModule" not in result.stderr
    assert "torch.ops.aten" not in result.stderr


def test_the_version_is_printed() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"{onnx_fx_export.__version__}\n")
