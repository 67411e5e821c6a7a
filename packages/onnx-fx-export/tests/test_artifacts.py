"""What an export writes besides the model, and where it hands a model that it cannot take."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import onnx_fx_export
import onnx_ts_legacy
from onnx_fx_export import export


class Branch(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x + 1
        return x - 1


class Rectifier(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) if x.shape[0] > 3 else x


def test_a_report_is_one_page_that_refers_to_nothing_else(tmp_path: Path) -> None:
    dims = {"x": {0: "n"}}
    export(Rectifier(), (torch.ones(5),), dynamic_shapes=dims, report=True, profile=True, artifacts_dir=tmp_path)
    text = (tmp_path / "onnx_export_report.html").read_text()
    for expected in ("Relu", "n &gt;", "capture", "convert", "FLOAT", "function calls", "test_artifacts.py:"):
        assert expected in text
    assert "http" not in text
    assert "src=" not in text


def test_the_captured_program_can_be_kept(tmp_path: Path) -> None:
    export(torch.nn.ReLU(), (torch.ones(5),), dump_exported_program=True, artifacts_dir=tmp_path)
    program = torch.export.load(tmp_path / "exported_program.pt2")
    torch.testing.assert_close(program.module()(-torch.ones(5)), torch.zeros(5))


def test_a_missing_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(onnx_fx_export.SaveError, match="report"):
        export(torch.nn.ReLU(), (torch.ones(5),), report=True, artifacts_dir=tmp_path / "missing")


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_cannot_be_captured_falls_back_to_torchscript() -> None:
    with pytest.raises(onnx_fx_export.CaptureError):
        export(Branch(), (torch.ones(2),))
    program = export(torch.jit.script(Branch()), (torch.ones(2),), dynamo=False)
    assert isinstance(program, onnx_ts_legacy.TSProgram)
    (result,) = program(-torch.ones(2))
    torch.testing.assert_close(result, torch.full((2,), -2.0))
    assert isinstance(export(Branch(), (torch.ones(2),), fallback=True), onnx_ts_legacy.TSProgram)
