"""A saved model is one file when small, streamed to external data when asked, and equals the program."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from onnx_fx_export import export


def run(path: Path, x: torch.Tensor) -> torch.Tensor:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(np.asarray(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]))


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))


@pytest.mark.parametrize("external", [None, False, True])
def test_saved_models_equal_the_program(model, external, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    export(model, (torch.randn(2, 64),), path, external_data=external)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == (
        ["model.onnx", "model.onnx.data"] if external else ["model.onnx"]
    )
    x = torch.randn(2, 64)
    torch.testing.assert_close(run(path, x), model(x), rtol=1e-5, atol=1e-5)
    onnx.checker.check_model(str(path), full_check=True)


@pytest.mark.parametrize("in_memory", [False, True])
def test_one_file_is_written_without_a_copy_of_the_weights(in_memory: bool, tmp_path: Path) -> None:
    large = torch.nn.Sequential(*(torch.nn.Linear(1500, 1500, bias=False) for _ in range(3))).eval()
    x = torch.randn(2, 3, 1500)
    program = export(large, (x,))
    weights = sum(parameter.nbytes for parameter in large.parameters())
    file = io.BytesIO() if in_memory else tmp_path / "model.onnx"

    tracemalloc.start()
    program.save(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    # One weight of three at a time is transposed; a file in memory is there on purpose, and grows by half at most.
    assert peak < weights * (1.75 if in_memory else 0.5)
    content = file.getvalue() if in_memory else file.read_bytes()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(result), large(x).detach(), rtol=1e-4, atol=1e-5)


def test_external_data_can_be_moved_with_the_model(model, tmp_path: Path) -> None:
    export(model, (torch.randn(2, 64),), tmp_path / "model.onnx", external_data=True)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("model.onnx", "model.onnx.data"):
        (tmp_path / name).rename(moved / name)
    x = torch.randn(2, 64)
    torch.testing.assert_close(run(moved / "model.onnx", x), model(x), rtol=1e-5, atol=1e-5)


def test_a_model_can_be_saved_without_its_weights(model, tmp_path: Path) -> None:
    program = export(model, (torch.randn(2, 64),), tmp_path / "model.onnx", export_params=False)
    saved = onnx.load(tmp_path / "model.onnx")
    assert not saved.graph.initializer
    assert len(saved.graph.input) == 5
    assert len(program.model.graph.inputs) == 1
    assert len(program.model.graph.initializers) == 4


def test_weights_can_be_inputs_too(model, tmp_path: Path) -> None:
    program = export(model, (torch.randn(2, 64),), tmp_path / "model.onnx", keep_initializers_as_inputs=True)
    saved = onnx.load(tmp_path / "model.onnx")
    assert len(saved.graph.initializer) == 4
    assert len(saved.graph.input) == 5
    assert len(program.model.graph.inputs) == 1


def test_saving_twice_gives_the_same_bytes(model, tmp_path: Path) -> None:
    program = export(model, (torch.randn(2, 64),))
    program.save(tmp_path / "a.onnx")
    program.save(tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_transposed_weights_are_never_copied_whole() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.Linear(2048, 2048))
    program = export(model, (torch.randn(2, 3, 2048),))
    sizes = []

    class Counting(io.BytesIO):
        def write(self, data) -> int:
            sizes.append(memoryview(data).nbytes)
            return sizes[-1]

    for value in program.model.graph.initializers.values():
        value.const_value.tofile(Counting())
    assert sum(sizes) == 4 * 2 * (2048 * 2048 + 2048)
    assert max(sizes) <= 8 << 20
