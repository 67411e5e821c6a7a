"""Quantization equals eager PyTorch, away from the ties that a product and a quotient round differently."""

from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
import torch.nn.functional as F
from decomp_harness import check, lower
from opset_sweep import swept

from onnxops_decomp import LoweringError

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


NARROW = torch.float8_e4m3fn
SCALES = {
    "whole": (torch.tensor(0.5), torch.tensor(2.0)),
    "rows": (torch.linspace(0.5, 1.5, 16).reshape(16, 1), torch.linspace(0.6, 1.4, 32).reshape(1, 32)),
}


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16, torch.float16, None])
def test_scaled_product_of_narrow_floats(out_dtype: torch.dtype | None, scales: str) -> None:
    if scales == "rows":
        # torch scales by rows into bfloat16 alone.
        out_dtype = torch.bfloat16

    def function(a: torch.Tensor, b: torch.Tensor, s: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(a.to(NARROW), b.to(NARROW).t(), s, t, out_dtype=out_dtype).float()

    check(function, torch.randn(16, 64), torch.randn(32, 64), *SCALES[scales], opset=21)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scaled_product_with_a_bias(dtype: torch.dtype) -> None:
    def function(a: torch.Tensor, b: torch.Tensor, s: torch.Tensor, t: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(a.to(NARROW), b.to(torch.float8_e5m2).t(), s, t, bias=c, out_dtype=dtype).float()

    operands = torch.randn(16, 64), torch.randn(32, 64), *SCALES["whole"], torch.randn(32).to(dtype)
    check(function, *operands, opset=21, others=[(torch.randn(48, 64), *operands[1:])])


@pytest.mark.parametrize("scales", SCALES)
def test_scaled_product_by_recipes(scales: str) -> None:
    recipe = F.ScalingType.RowWise if scales == "rows" else F.ScalingType.TensorWise

    def function(a: torch.Tensor, b: torch.Tensor, s: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.scaled_mm(a.to(NARROW), b.to(NARROW).t(), s, recipe, t, recipe, output_dtype=torch.bfloat16).float()

    check(function, torch.randn(16, 64), torch.randn(32, 64), *SCALES[scales], opset=21)


def test_the_scale_of_a_scaled_result_is_refused() -> None:
    def function(a: torch.Tensor, b: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(a.to(NARROW), b.to(NARROW).t(), s, s, scale_result=s, out_dtype=NARROW)

    with pytest.raises(LoweringError, match="divides by it on the CPU"):
        lower(function, (torch.randn(16, 32), torch.randn(16, 32), torch.tensor(2.0)), opset=21)


# Blocks of rows are 64 or 32 by the vector width of the machine; 80 and 112 leave parts of one.
@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize(("rows", "columns", "group"), [(64, 64, 32), (80, 32, 32), (112, 64, 64), (16, 128, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_four_bits(dtype: torch.dtype, rows: int, columns: int, group: int, opset: int) -> None:
    packed = aten._convert_weight_to_int4pack_for_cpu(torch.randint(0, 16, (rows, columns), dtype=torch.int32), 2)
    check(
        lambda x, w, s: aten._weight_int4pack_mm_for_cpu(x, w, group, s),
        torch.randn(3, columns).to(dtype),
        packed,
        torch.rand(columns // group, rows, 2).to(dtype),
        opset=opset,
    )


@pytest.mark.parametrize("opset", [7, 9, 10, 18, 26])
def test_integer_products(opset: int) -> None:
    def sample(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((rows, 24), (24, 8)))

    nothing = torch.zeros(21, 0, dtype=torch.int8), torch.zeros(0, 8, dtype=torch.int8)
    check(torch._int_mm, *sample(20), opset=opset, others=[sample(33), nothing])


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


# ---- quantized tensors of torch


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("opset", swept(7, 10, 13, 20))
@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8])
def test_quantized_tensors_are_dequantized(dtype: torch.dtype, opset: int) -> None:
    check(lambda x: torch.quantize_per_tensor(x, 0.1, 3, dtype).dequantize(), _floats(3, 4), opset=opset)
    check(
        lambda x, s, z: torch.quantize_per_tensor(x, s, z, dtype).dequantize(),
        _floats(3, 4),
        torch.tensor(0.1),
        torch.tensor(3),
        opset=opset,
    )


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_another_operator_on_a_quantized_tensor_is_refused() -> None:
    with pytest.raises(LoweringError, match="relu is applied to a quantized tensor"):
        lower(lambda x: torch.quantize_per_tensor(x, 0.1, 3, torch.quint8).relu().dequantize(), (_floats(3, 4),))


# ---- fake quantization that observes

observe: Any = aten._fused_moving_avg_obs_fq_helper_functional.default
INF = float("inf")


def _observed(x: torch.Tensor, switches: tuple[int, int], state: tuple[list[float], list[float]], *rest: Any) -> Any:
    """Arguments of an observing fake quantization: the tensors, and a function of them."""
    count = len(state[0])
    tensors = [torch.tensor([switch]) for switch in switches]
    tensors += [torch.tensor(part) for part in state]
    tensors += [torch.full((count,), 0.5), torch.full((count,), 2, dtype=torch.int32)]
    return (lambda x, *t: observe(x, *t, 0.01, *rest)), x, *tensors


@pytest.mark.parametrize("opset", swept(7, 10, 13, 18, 21))
@pytest.mark.parametrize(("low", "high"), [(0, 255), (-127, 127), (0, 15)])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("switches", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_observing_fake_quantization(
    switches: tuple[int, int], symmetric: bool, low: int, high: int, opset: int
) -> None:
    function, *operands = _observed(torch.randn(4, 5), switches, ([-1.0], [2.0]), low, high, -1, False, symmetric)
    check(lambda a, b, c, d, e, f, g: function(a, b, c, d, e, f, g), *operands, opset=opset)


@pytest.mark.parametrize("shape", [(4, 5), (4, 3, 2, 2)])
@pytest.mark.parametrize("start", [([INF] * 4, [-INF] * 4), ([-1.0] * 4, [0.5] * 4)])
def test_observing_fake_quantization_per_channel(start: Any, shape: tuple[int, ...]) -> None:
    function, *operands = _observed(torch.randn(shape), (1, 1), start, -128, 127, 0, True, True)
    check(lambda a, b, c, d, e, f, g: function(a, b, c, d, e, f, g), *operands)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("factor", [0.0, 1e-5, -1e-5, 1.0, -1.0, 1e-39])
def test_observed_ranges_that_are_narrow_or_on_one_side(factor: float, symmetric: bool) -> None:
    for x in (torch.rand(4, 5), torch.randn(4, 5)):
        function, *operands = _observed(x * factor, (1, 1), ([INF], [-INF]), 0, 255, -1, False, symmetric)
        check(lambda a, b, c, d, e, f, g: function(a, b, c, d, e, f, g), *operands)
