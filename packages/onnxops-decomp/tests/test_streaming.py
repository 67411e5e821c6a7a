"""Models are written whole or not at all, without a copy of their weights, and large weights to a file of their own."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.exporting import MAX_SINGLE_FILE_BYTES, SaveError, Saving, StreamedTensor, save_model
from onnxops_decomp.exporting.program import running, saving
from onnxops_decomp.exporting.weights import initializers
from onnxops_decomp.files.model import build_model
from onnxops_decomp.files.streaming import write_model
from onnxops_decomp.passes import DerivedTensor, derived, pieces

WEIGHT = torch.randn(64, 64)


class Recorder(io.BytesIO):
    """Remembers the size of the largest piece that is written."""

    largest = 0

    def write(self, data: Any) -> int:
        self.largest = max(self.largest, memoryview(data).nbytes)
        return super().write(data)


def set_block_bytes(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    for module in (derived, initializers, pieces):
        monkeypatch.setattr(module, "BLOCK_BYTES", size)
    monkeypatch.setattr(pieces, "_WRITTEN_BYTES", size // 3)


def model_with(*tensors: torch.Tensor) -> ir.Model:
    op = OpBuilder(18)
    weights = []
    for index, tensor in enumerate(tensors):
        source = ir.tensor_adapters.TorchTensor(tensor, name=f"weight{index}")
        kind, shape = ir.TensorType(source.dtype), ir.Shape(tensor.shape)
        weights.append(ir.Value(name=f"weight{index}", type=kind, shape=shape, const_value=source))
    return build_model(op, [op.Identity(weight) for weight in weights], name="main_graph", initializers=weights)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.float64]
)
def test_a_written_model_is_the_serialized_one(dtype: torch.dtype) -> None:
    large, transposed = (torch.randn(300, 400) * 50).to(dtype), (torch.randn(250, 350) * 50).to(dtype).t()
    model = model_with(large, torch.ones(3).to(dtype), transposed)
    file = io.BytesIO()

    write_model(model, file)

    written = onnx.load_model_from_string(file.getvalue())
    expected = ir.to_proto(model)
    onnx.checker.check_model(written, full_check=True)
    for proto in (written, expected):
        tensors = sorted(proto.graph.initializer, key=lambda tensor: tensor.name)
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(tensors)
    assert written == expected
    array = ir.from_proto(written.graph.initializer[2]).numpy()
    np.testing.assert_array_equal(array.astype(np.float64), transposed.double().numpy())


def test_weights_are_written_one_by_one() -> None:
    model = model_with(*(torch.randn(256, 256) for _ in range(20)))
    file = Recorder()

    write_model(model, file)

    assert file.largest == 256 * 256 * 4
    assert len(file.getvalue()) > 20 * file.largest


def test_the_model_is_as_before_after_a_failed_write() -> None:
    model = model_with(torch.randn(256, 256))
    before = model.graph.initializers["weight0"].const_value

    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        write_model(model, Full())

    assert model.graph.initializers["weight0"].const_value is before


@pytest.mark.parametrize(("limit", "names"), [(4 * 64 * 64 + 1, ["a.onnx"]), (4 * 64 * 64, ["a.onnx", "a.onnx.data"])])
def test_weights_above_a_gibibyte_go_beside_the_model(
    limit: int, names: list[str], tmp_path: Path, monkeypatch
) -> None:
    assert MAX_SINGLE_FILE_BYTES == 1 << 30
    monkeypatch.setattr(saving, "MAX_SINGLE_FILE_BYTES", limit)

    save_model(model_with(WEIGHT), tmp_path / "a.onnx", Saving())

    assert sorted(file.name for file in tmp_path.iterdir()) == names
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {})[0], WEIGHT.numpy())


def test_an_open_file_is_refused_for_weights_that_no_message_holds(monkeypatch) -> None:
    monkeypatch.setattr(saving, "MAX_MESSAGE_BYTES", 1000)
    file = io.BytesIO()

    with pytest.raises(SaveError, match="give a path"):
        save_model(model_with(WEIGHT), file, Saving())

    assert file.getvalue() == b""


def test_a_session_of_a_large_model_reads_a_file_that_goes_with_it(monkeypatch) -> None:
    monkeypatch.setattr(running, "MAX_SINGLE_FILE_BYTES", 1)
    paths: list[str] = []

    def initializer(path: str) -> onnxruntime.InferenceSession:
        paths.append(path)
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    session = running.Session(model_with(WEIGHT), initializer)

    torch.testing.assert_close(session.run([], {})[0], WEIGHT)
    assert Path(paths[0]).exists()
    del session
    assert not Path(paths[0]).exists()


@pytest.mark.parametrize("broken", ["write", "replace"])
@pytest.mark.parametrize("external", [False, True])
def test_a_save_that_fails_leaves_what_was_there(external: bool, broken: str, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "model.onnx"
    model = model_with(WEIGHT)
    save_model(model, path, Saving(external_data=external))
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    if broken == "replace":
        monkeypatch.setattr(os, "replace", full)
    elif external:
        for tensor in model.graph.initializers.values():
            monkeypatch.setattr(type(tensor.const_value), "tofile", full)
    else:
        monkeypatch.setattr(saving, "write_model", lambda model, file: (file.write(b"half"), full()))
    with pytest.raises(SaveError, match="No space left"):
        save_model(model, path, Saving(external_data=external))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    with pytest.raises(SaveError):
        save_model(model, tmp_path / "other.onnx", Saving(external_data=external))
    assert {file.name for file in tmp_path.iterdir()} == before.keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.bool, torch.float64])
@pytest.mark.parametrize("perm", [(0, 1), (1, 0)])
def test_weights_are_streamed_in_pieces(dtype: torch.dtype, perm: tuple[int, int], monkeypatch) -> None:
    set_block_bytes(monkeypatch, 100)
    tensor = (torch.rand(70, 130) * 3).to(dtype).permute(perm)
    file = io.BytesIO()
    StreamedTensor(tensor).tofile(file)
    assert file.getvalue() == tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_weights_of_any_rank_are_streamed(monkeypatch) -> None:
    set_block_bytes(monkeypatch, 100)
    for tensor in (torch.tensor(3.0), torch.empty(0, 4), torch.randn(5, 6, 40).permute(2, 0, 1)):
        file = io.BytesIO()
        StreamedTensor(tensor).tofile(file)
        assert file.getvalue() == tensor.contiguous().numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex128])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("by_rows", [False, True])
def test_columns_of_weights_are_joined_while_they_are_written(
    dtype: torch.dtype, transposed: bool, by_rows: bool, monkeypatch
) -> None:
    set_block_bytes(monkeypatch, 100)
    weights = [(torch.randn(70, width) * 3).to(dtype) for width in (31, 1, 20)]
    if transposed:
        weights = [weight.t().contiguous().t() for weight in weights]
    sources = [StreamedTensor(weight) for weight in weights]
    expected = torch.cat(weights, 1)
    dtype_of_file, shape = sources[0].dtype, ir.Shape(expected.shape)

    def beside(*arrays: Any) -> Any:
        return np.concatenate(arrays, 1)

    tensor = DerivedTensor(beside, sources, name="joined", dtype=dtype_of_file, shape=shape, by_rows=by_rows)
    file = Recorder()
    tensor.tofile(file)

    assert file.getvalue() == expected.view(torch.uint8).numpy().tobytes() == tensor.tobytes()
    assert file.largest <= 100 // 3
