"""Quantization equals eager PyTorch, away from the ties that a product and a quotient round differently."""

from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from decomp_harness import check
from opset_sweep import swept

OPSETS = swept(9, 10, 13, 18, 19, 21, 23)
ops: Any = torch.ops.quantized_decomposed
aten: Any = torch.ops.aten
RANGES = [(-128, 127, torch.int8), (-127, 127, torch.int8), (0, 255, torch.uint8), (0, 15, torch.uint8)]


def _floats(*shape: int) -> torch.Tensor:
    # A tie would sit at a multiple of half a scale; these stay a third of a scale away from it.
    return torch.randint(-400, 400, shape) * 0.1 + torch.rand(shape) * 0.03


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(("low", "high", "dtype"), RANGES)
def test_quantize_and_dequantize_per_tensor(low: int, high: int, dtype: torch.dtype, opset: int) -> None:
    def function(x: torch.Tensor) -> Any:
        q = ops.quantize_per_tensor(x, 0.1, 3, low, high, dtype)
        return q, ops.dequantize_per_tensor(q, 0.1, 3, low, high, dtype)

    check(function, _floats(3, 4), opset=opset)


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize(("low", "high", "dtype"), [(-32768, 32767, torch.int16), (-(2**31), 2**31 - 1, torch.int32)])
def test_quantize_to_wider_integers(low: int, high: int, dtype: torch.dtype, opset: int) -> None:
    def function(x: torch.Tensor) -> Any:
        q = ops.quantize_per_tensor(x, 0.1, 3, low, high, dtype)
        return q, ops.dequantize_per_tensor(q, 0.1, 3, low, high, dtype)

    check(function, _floats(3, 4), opset=opset)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_quantize_per_channel(axis: int, opset: int) -> None:
    x = _floats(3, 3, 3)

    def function(x: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> Any:
        q = ops.quantize_per_channel(x, s, z, axis, -128, 127, torch.int8)
        return q, ops.dequantize_per_channel(q, s, z, axis, -128, 127, torch.int8)

    check(function, x, torch.tensor([0.1, 0.3, 0.7]), torch.tensor([3, 0, -7]), opset=opset)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("symmetric", [False, True])
def test_dynamic_quantization(symmetric: bool, opset: int) -> None:
    choose = ops.choose_qparams_symmetric.tensor if symmetric else ops.choose_qparams.tensor

    def function(x: torch.Tensor) -> Any:
        scale, zero = choose(x, -128, 127, 1e-6, torch.int8)
        q = ops.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
        return scale, zero, ops.dequantize_per_tensor.tensor(q, scale, zero, -128, 127, torch.int8)

    check(function, torch.tensor([[-1.3, 0.2], [0.77, 2.9]]), opset=opset)


def test_dynamic_quantization_per_token() -> None:
    def function(x: torch.Tensor) -> Any:
        scale, zero = ops._choose_qparams_per_token_asymmetric_impl(x, torch.int8)
        q = ops.quantize_per_token(x, scale, zero, -128, 127, torch.int8)
        return scale, zero, ops.dequantize_per_token(q, scale, zero, -128, 127, torch.int8, torch.float32)

    check(function, torch.tensor([[-1.3, 0.2, 0.4], [0.77, 2.9, 1.1]]))


@pytest.mark.parametrize("opset", swept(13, 18, 21))
def test_quantize_in_groups(opset: int) -> None:
    def function(x: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> Any:
        q = ops.quantize_per_channel_group(x, s, z, -8, 7, torch.int8, 2)
        return q, ops.dequantize_per_channel_group(q, s, z, -8, 7, torch.int8, 2, torch.float32)

    scales = torch.tensor([[0.1, 0.3], [2.0, 0.7], [1.1, 5.0]])
    check(function, _floats(3, 4), scales, torch.randint(-3, 3, (3, 2), dtype=torch.int32), opset=opset)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(("low", "high"), [(-128, 127), (0, 255), (-8, 7), (-1000, 1000)])
def test_fake_quantize_per_tensor(low: int, high: int, opset: int) -> None:
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, low, high), _floats(3, 4), opset=opset)


@pytest.mark.parametrize("opset", OPSETS)
def test_fake_quantize_per_channel(opset: int) -> None:
    check(
        lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 1, -128, 127),
        _floats(2, 3, 4),
        torch.tensor([0.1, 0.3, 0.7]),
        torch.tensor([3, 0, -7], dtype=torch.int32),
        opset=opset,
    )


def test_fake_quantize_is_a_pair_of_nodes() -> None:
    lowered = check(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255), _floats(3, 4))
    assert lowered.op_types() == ["QuantizeLinear", "DequantizeLinear"]


@pytest.mark.parametrize("opset", swept(9, 13, 21))
def test_quantize_per_channel_runs_at_other_sizes(opset: int) -> None:
    check(
        lambda x, s, z: ops.quantize_per_channel(x, s, z, 1, -127, 127, torch.int8),
        _floats(2, 3, 4),
        torch.tensor([0.1, 0.3, 0.7]),
        torch.tensor([3, 0, -7]),
        opset=opset,
        others=[(_floats(5, 2, 7), torch.tensor([0.1, 0.3]), torch.tensor([3, 0]))],
    )


def test_fake_quantize_with_parameters_in_tensors() -> None:
    check(
        lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z, -128, 127),
        _floats(3, 4),
        torch.tensor([0.1]),
        torch.tensor([3], dtype=torch.int32),
    )


@pytest.mark.parametrize("enabled", [0, 1])
def test_fake_quantize_with_a_switch_and_a_mask(enabled: int) -> None:
    function = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
    check(
        lambda x, s, z, e: function(x, s, z, e, -128, 127),
        _floats(3, 40),
        torch.tensor([0.1]),
        torch.tensor([3], dtype=torch.int32),
        torch.tensor([enabled]),
    )


def test_weights_of_eight_bits() -> None:
    check(
        aten._weight_int8pack_mm.default,
        torch.randn(3, 8),
        torch.randint(-100, 100, (4, 8), dtype=torch.int8),
        torch.rand(4),
    )


@pytest.mark.parametrize("rowwise", [False, True])
def test_scaled_product_of_narrow_floats(rowwise: bool) -> None:
    scales = (torch.rand(16, 1), torch.rand(1, 16)) if rowwise else (torch.tensor(0.5), torch.tensor(2.0))

    def function(a: torch.Tensor, b: torch.Tensor, s: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        narrow = torch.float8_e4m3fn
        return torch._scaled_mm(a.to(narrow), b.to(narrow).t(), s, t, out_dtype=torch.float32)

    check(function, torch.randn(16, 32), torch.randn(16, 32), *scales, opset=21)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize(
    ("left", "right"), [((16, 8), (3, 8, 16)), ((3, 8, 8), (3, 8, 16)), ((3, 16, 8), (8, 16)), ((16, 16), (16, 8))]
)
def test_grouped_products(left: tuple[int, ...], right: tuple[int, ...], opset: int) -> None:
    offs = None if len(left) == len(right) == 3 else torch.tensor([4, 8, 16], dtype=torch.int32)
    operands = [torch.randn(left).bfloat16(), torch.randn(right).bfloat16()]

    def function(a: torch.Tensor, b: torch.Tensor, *o: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(a, b, *o).float()

    check(function, *operands, *([] if offs is None else [offs]), opset=opset)
