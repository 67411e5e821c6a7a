"""Models written without a copy of their weights."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.files.model import build_model
from onnxops_decomp.files.streaming import write_model


class Recorder(io.BytesIO):
    """Remembers the size of the largest piece that is written."""

    largest = 0

    def write(self, data: Any) -> int:
        self.largest = max(self.largest, memoryview(data).nbytes)
        return super().write(data)


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
