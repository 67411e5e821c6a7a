"""Dynamic quantization parameters, and matrix products of quantized, scaled or grouped operands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import to_ir
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.formulas.operands import arange
from onnxops_decomp.formulas.products import written_product, zero_if_empty
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnxops_decomp.builder.op_builder import OpBuilder

aten = torch.ops.aten

_FLOAT, _DOUBLE, _INT64 = ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT64


def _extremes(op: OpBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the least and greatest element and 0, whichever lies further out."""
    x = op.cast(x, _FLOAT)
    return op.Min(op.ReduceMin(x, keepdims=0), 0.0), op.Max(op.ReduceMax(x, keepdims=0), 0.0)


@lowering("quantized_decomposed::choose_qparams.tensor")
def choose_qparams(
    op: OpBuilder, input: ir.Value, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[ir.Value, ir.Value]:
    low, high = _extremes(op, input)
    scale = op.Max(op.Div(op.Sub(high, low), float(quant_max - quant_min)), eps)
    zero = op.Sub(float(quant_min), op.Round(op.Div(low, scale)))
    zero = op.Min(op.Max(zero, float(quant_min)), float(quant_max))
    return op.cast(op.Unsqueeze(scale, [0]), _DOUBLE), op.cast(op.Unsqueeze(zero, [0]), _INT64)


@lowering("quantized_decomposed::choose_qparams_symmetric.tensor")
def choose_qparams_symmetric(
    op: OpBuilder, input: ir.Value, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[ir.Value, ir.Value]:
    low, high = _extremes(op, input)
    scale = op.Max(op.Div(op.Max(op.Neg(low), high), (quant_max - quant_min) / 2), eps)
    zero = 128 if dtype in (torch.uint8, torch.quint8) else 0
    return op.cast(op.Unsqueeze(scale, [0]), _DOUBLE), op.constant([zero])


@lowering("quantized_decomposed::choose_qparams_per_token")
def choose_qparams_per_token(op: OpBuilder, input: ir.Value, dtype: torch.dtype) -> tuple[ir.Value, ir.Value]:
    if dtype != torch.int8:
        raise LoweringError(f"choose_qparams_per_token supports only int8, got {dtype}.")
    # torch computes in the dtype of the input, or in float for half floats.
    scale = op.Div(op.ReduceMax(op.Abs(op.cast(input, _FLOAT)), [-1]), 127.0)
    scale = op.cast(op.Max(scale, 1e-5), _DOUBLE)
    return scale, op.cast(op.Mul(scale, 0.0), _INT64)


@lowering(
    "quantized_decomposed::choose_qparams_per_token_asymmetric",
    "quantized_decomposed::_choose_qparams_per_token_asymmetric_impl",
)
def choose_qparams_per_token_asymmetric(
    op: OpBuilder, input: ir.Value, dtype: torch.dtype
) -> tuple[ir.Value, ir.Value]:
    low_bound, high_bound = -128.0, 127.0
    low, high = op.Min(op.ReduceMin(input, [-1]), 0.0), op.Max(op.ReduceMax(input, [-1]), 0.0)
    scale = op.Div(op.Sub(high, low), high_bound - low_bound)
    scale = op.Max(scale, torch.finfo(torch.float32).eps)
    low, high = op.Div(low, scale), op.Div(high, scale)
    error = op.Add(op.Add(low, low_bound), op.Add(high, high_bound))
    zero = op.Where(op.Greater(error, 0.0), op.Sub(low_bound, low), op.Sub(high_bound, high))
    zero = op.Round(op.Min(op.Max(zero, low_bound), high_bound))
    return op.cast(scale, _DOUBLE), op.cast(zero, _INT64)


@lowering(aten._int_mm.default)
def int_mm(op: OpBuilder, self: ir.Value, mat2: ir.Value) -> ir.Value:
    inner = op.size(self, 1)
    return zero_if_empty(op, op.MatMulInteger(self, mat2), inner)


@lowering(aten._weight_int8pack_mm.default)
def weight_int8pack_mm(op: OpBuilder, self: ir.Value, mat2: ir.Value, scales: ir.Value) -> ir.Value:
    dtype = op.dtype(self)
    product = written_product(op, self, op.Transpose(op.cast(mat2, dtype), perm=[1, 0]))
    return op.Mul(product, op.cast(scales, dtype))


def _scaled_product(
    op: OpBuilder,
    a: ir.Value,
    b: ir.Value,
    scale_a: ir.Value,
    scale_b: ir.Value,
    bias: ir.Value | None,
    out_dtype: torch.dtype | None,
) -> ir.Value:
    for name, scale, shape in (("scale_a", scale_a, "(M, 1)"), ("scale_b", scale_b, "(1, N)")):
        if op.dtype(scale) != _FLOAT:
            raise LoweringError(f"Products are scaled by float32 numbers, one or {shape}, but {name} is per block.")
    product = written_product(op, op.cast(a, _FLOAT), op.cast(b, _FLOAT))
    result = op.Mul(op.Mul(product, scale_a), scale_b)
    if bias is not None:
        result = op.Add(result, op.cast(bias, _FLOAT))
    return op.cast(result, op.dtype(a) if out_dtype is None else to_ir(out_dtype))


@lowering(aten._scaled_mm.default)
def scaled_mm(
    op: OpBuilder,
    self: ir.Value,
    mat2: ir.Value,
    scale_a: ir.Value,
    scale_b: ir.Value,
    bias: ir.Value | None = None,
    scale_result: ir.Value | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> ir.Value:
    if scale_result is not None:
        raise LoweringError(
            "scale_result has no single meaning: torch divides by it on the CPU and multiplies by it on CUDA. "
            "Scale the result with an operator of its own."
        )
    return _scaled_product(op, self, mat2, scale_a, scale_b, bias, out_dtype)


# torch.nn.functional.ScalingType: one scale for all, or one for each row.
_TENSOR_WISE, _ROW_WISE = 0, 1


@lowering(aten._scaled_mm_v2.default)
def scaled_mm_v2(
    op: OpBuilder,
    self: ir.Value,
    mat2: ir.Value,
    scale_a: Sequence[ir.Value],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[ir.Value],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    bias: ir.Value | None,
    out_dtype: torch.dtype | None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> ir.Value:
    recipes = [*recipe_a, *recipe_b]
    if len(recipes) != 2 or not {*recipes} <= {_TENSOR_WISE, _ROW_WISE} or contraction_dim:
        raise LoweringError("Products are scaled as a whole or by rows; scales per block have no lowering.")
    return _scaled_product(op, self, mat2, scale_a[0], scale_b[0], bias, out_dtype)


def _membership(op: OpBuilder, offs: ir.Value, count: ir.Value | int) -> ir.Value:
    """Tell, as (groups, count), which positions lie in each group; ``offs`` holds the ends of the groups."""
    ends = op.cast(offs, _INT64)
    starts = op.Concat(op.constant([0]), op.Slice(ends, [0], [-1]), axis=0)
    position = arange(op, count)
    return op.And(op.GreaterOrEqual(position, op.Unsqueeze(starts, [1])), op.Less(position, op.Unsqueeze(ends, [1])))


@lowering(aten._grouped_mm.default)
def grouped_mm(
    op: OpBuilder,
    self: ir.Value,
    mat2: ir.Value,
    offs: ir.Value | None = None,
    bias: ir.Value | None = None,
    out_dtype: torch.dtype | None = None,
) -> ir.Value:
    """Multiply group by group.

    ONNX has no grouped product: every group is multiplied with all rows, and what does not belong to it masked. The
    result is exact, at the cost of as many products as there are groups.
    """
    dtype = op.dtype(self) if out_dtype is None else to_ir(out_dtype)
    # The operands are floats, or half floats, whose products torch adds up in float.
    self, mat2 = op.cast(self, _FLOAT), op.cast(mat2, _FLOAT)
    zero = op.constant(0.0, _FLOAT)
    ranks = op.rank(self), op.rank(mat2)
    if ranks == (3, 3) or offs is None:
        result = written_product(op, self, mat2)
    elif ranks == (2, 3):
        member = op.Unsqueeze(_membership(op, offs, op.size(self, 0)), [2])
        product = written_product(op, op.Unsqueeze(self, [0]), mat2)
        result = op.ReduceSum(op.Where(member, product, zero), [0], keepdims=0)
    elif ranks == (3, 2):
        member = op.Unsqueeze(_membership(op, offs, op.size(mat2, 1)), [1])
        result = op.ReduceSum(op.Where(member, written_product(op, self, mat2), zero), [0], keepdims=0)
    else:
        member = _membership(op, offs, op.size(self, 1))
        left = op.Where(op.Unsqueeze(member, [1]), op.Unsqueeze(self, [0]), zero)
        right = op.Where(op.Unsqueeze(member, [2]), op.Unsqueeze(mat2, [0]), zero)
        result = op.MatMul(left, right)
    if bias is not None:
        result = op.Add(result, op.cast(bias, _FLOAT))
    return op.cast(result, dtype)
