"""Models that are larger than one protobuf message may be."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from ts_models import run

import onnx_ts_legacy

X = torch.randn(2, 64)


@pytest.mark.wide
def test_a_model_of_more_than_two_gigabytes_is_saved_and_run(tmp_path: Path) -> None:
    class Huge(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(540_000, 1024)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.table(x) * 2

    model = Huge()
    indices = torch.tensor([[0, 539_999]])

    onnx_ts_legacy.export(model, (indices,), tmp_path / "model.onnx")

    assert (tmp_path / "model.onnx.data").stat().st_size > 2**31
    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": indices.numpy()})
    torch.testing.assert_close(torch.from_numpy(result), model(indices).detach())


@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
def test_no_copy_of_all_weights_is_made_on_their_way_to_a_file(scripted: bool) -> None:
    class Recorder(io.BytesIO):
        largest = 0

        def write(self, data: Any) -> int:
            self.largest = max(self.largest, memoryview(data).nbytes)
            return super().write(data)

    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(16))).eval()
    file, x = Recorder(), torch.randn(3, 256)

    onnx_ts_legacy.export(torch.jit.script(model) if scripted else model, (x,), file)

    assert file.largest == 256 * 256 * 4
    (result,) = run(onnx.load_model_from_string(file.getvalue()), {"input": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(result), model(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.wide
def test_an_export_needs_less_than_a_tenth_of_the_weights_in_memory(tmp_path: Path) -> None:
    script = """
import resource, sys, torch, onnx_ts_legacy
onnx_ts_legacy.export(torch.nn.Linear(3, 3), (torch.randn(2, 3),), sys.argv[1])
model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(20))).eval()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
onnx_ts_legacy.export(model, (torch.randn(2, 4096),), sys.argv[1])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / (20 * 4096 * 4096 * 4 / 1024))
"""
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "model.onnx")]

    share = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert float(share) < 0.1
