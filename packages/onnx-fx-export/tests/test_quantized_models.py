"""Quantized models and weights of few bits: exported, saved and run at other sizes than the example's."""

from __future__ import annotations

import onnx
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
from torch.ao.quantization.fx._decomposed import quantized_decomposed_lib  # noqa: F401

from onnx_fx_export import export

quantized = torch.ops.quantized_decomposed
DIMS = {"x": {0: "batch"}}


class StaticallyQuantized(torch.nn.Module):
    """What pt2e makes of a linear layer: activations per tensor, weights per channel."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(5, 4)
        self.register_buffer("scales", weight.abs().amax(1) / 127)
        self.register_buffer("zero_points", torch.zeros(5, dtype=torch.int64))
        args = (self.scales, self.zero_points, 0, -127, 127, torch.int8)
        self.register_buffer("weight", quantized.quantize_per_channel(weight, *args))
        self.bias = torch.nn.Parameter(torch.randn(5))

    def forward(self, x):
        per_tensor = (0.03, 7, -128, 127, torch.int8)
        x = quantized.dequantize_per_tensor(quantized.quantize_per_tensor(x, *per_tensor), *per_tensor)
        args = (self.scales, self.zero_points, 0, -127, 127, torch.int8)
        y = torch.relu(torch.nn.functional.linear(x, quantized.dequantize_per_channel(self.weight, *args), self.bias))
        return quantized.dequantize_per_tensor(quantized.quantize_per_tensor(y, *per_tensor), *per_tensor)


@pytest.mark.parametrize("opset", [13, 20, 23])
def test_static_quantization_per_tensor_and_per_channel(opset: int, tmp_path) -> None:
    model = StaticallyQuantized().eval()
    path = tmp_path / "quantized.onnx"
    program = export(model, (torch.randn(3, 4),), path, dynamic_shapes=DIMS, opset_version=opset)
    op_types = [node.op_type for node in program.model.graph]
    assert op_types.count("QuantizeLinear") == 2
    assert op_types.count("DequantizeLinear") == 3
    weights = {tensor.name: tensor for tensor in onnx.load(path).graph.initializer}
    assert weights["weight"].data_type == onnx.TensorProto.INT8
    x = torch.randn(6, 4)
    actual, expected = program(x), model(x)
    # A value on the border between two steps may be rounded to the other one.
    assert ((actual - expected).abs() <= 0.03 + 1e-5).all()
    assert (actual - expected).abs().gt(1e-5).float().mean() <= 0.1


def test_dynamic_quantization_chooses_its_parameters_at_run_time() -> None:
    class Dynamic(torch.nn.Module):
        def forward(self, x):
            scale, zero_point = quantized.choose_qparams.tensor(x, 0, 255, 1e-6, torch.uint8)
            q = quantized.quantize_per_tensor.tensor(x, scale, zero_point, 0, 255, torch.uint8)
            return q, quantized.dequantize_per_tensor.tensor(q, scale, zero_point, 0, 255, torch.uint8)

    program = export(Dynamic(), (torch.randn(3, 4),), dynamic_shapes=DIMS)
    x = torch.randn(7, 4)
    q, y = program(x)
    expected_q, expected_y = Dynamic()(x)
    assert q.dtype == torch.uint8
    assert (q.int() - expected_q.int()).abs().max() <= 1
    torch.testing.assert_close(y, expected_y, rtol=0, atol=float(expected_y.abs().max()) / 100)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_half_precision(dtype: torch.dtype, tmp_path) -> None:
    class Widened(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4, 5).to(dtype))

        def forward(self, x):
            return x @ self.weight.float()

    model = Widened()
    program = export(model, (torch.randn(3, 4),), tmp_path / "half.onnx", dynamic_shapes=DIMS)
    saved = {tensor.name: tensor for tensor in onnx.load(tmp_path / "half.onnx").graph.initializer}
    assert len(saved["weight"].raw_data) == 4 * 5 * 2
    x = torch.randn(6, 4)
    torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_weights_of_eight_bit_floats(dtype: torch.dtype, tmp_path) -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randn(4, 5).to(dtype))
            self.register_buffer("scale", torch.rand(5))

        def forward(self, x):
            return x @ (self.weight.float() * self.scale), (x * 100).to(dtype)

    model = Scaled()
    path = tmp_path / "eight.onnx"
    program = export(model, (torch.randn(3, 4),), path, dynamic_shapes=DIMS, opset_version=20)
    saved = {tensor.name: tensor for tensor in onnx.load(path).graph.initializer}
    assert len(saved["weight"].raw_data) == 4 * 5
    x = torch.randn(6, 4)
    (y, q), (expected_y, expected_q) = program(x), model(x)
    torch.testing.assert_close(y, expected_y)
    assert q.dtype == dtype
    torch.testing.assert_close(q.float(), expected_q.float())


def test_weights_of_four_bits_in_bytes(tmp_path) -> None:
    class Packed(torch.nn.Module):
        """Two signed values of four bits in a byte, with one scale for each group of a row."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("packed", torch.randint(0, 256, (6, 4), dtype=torch.uint8))
            self.register_buffer("scales", torch.rand(6, 2))

        def forward(self, x):
            low, high = self.packed & 15, self.packed >> 4
            values = torch.stack([low, high], -1).flatten(1).to(torch.int8) - 8
            weight = values.float().unflatten(1, (2, 4)) * self.scales.unsqueeze(-1)
            return x @ weight.flatten(1).T

    model = Packed()
    program = export(model, (torch.randn(3, 8),), tmp_path / "four.onnx", dynamic_shapes=DIMS)
    saved = {tensor.name: tensor for tensor in onnx.load(tmp_path / "four.onnx").graph.initializer}
    assert len(saved["packed"].raw_data) == 6 * 4
    x = torch.randn(5, 8)
    torch.testing.assert_close(program(x), model(x))
