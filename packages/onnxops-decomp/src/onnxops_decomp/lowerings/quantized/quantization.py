"""Quantization: fake quantization, and the ``quantized_decomposed`` operators of exported quantized models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import to_ir
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.formulas.quantization import aligned, dequantized, integer_range, quantized
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.dtypes import Operand

__all__ = ["fake_quantized", "number_parameter", "unclipped"]

aten = torch.ops.aten

_FLOAT, _INT8, _UINT8 = ir.DataType.FLOAT, ir.DataType.INT8, ir.DataType.UINT8
# Integers that the operators of ONNX quantize to; the others are quantized by arithmetic.
_LINEAR = (_INT8, _UINT8, ir.DataType.INT16, ir.DataType.UINT16)


def number_parameter(op: OpBuilder, number: Operand, dtype: ir.DataType) -> ir.Value:
    """Return a scale or zero point as a scalar."""
    if not isinstance(number, ir.Value):
        return op.constant(number, dtype)
    return (
        op.Reshape(op.cast(number, dtype), op.constant([], ir.DataType.INT64))
        if op.rank(number)
        else op.cast(number, dtype)
    )


def _quantize(
    op: OpBuilder,
    x: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value,
    low: int,
    high: int,
    dtype: ir.DataType,
    axis: int,
) -> ir.Value:
    """Quantize floats; scale and zero point are scalars, or vectors along ``axis``."""
    x = op.cast(x, _FLOAT)
    if dtype not in _LINEAR:
        rank = op.rank(x)
        return quantized(op, x, aligned(op, scale, rank, axis), aligned(op, zero_point, rank, axis), low, high, dtype)
    along = {"axis": axis} if op.rank(scale) else {}
    result = op.QuantizeLinear(x, scale, op.cast(zero_point, dtype), **along)
    return result if (low, high) == integer_range(dtype) else op.Clip(result, low, high)


def _dequantize(op: OpBuilder, q: ir.Value, scale: ir.Value, zero_point: ir.Value | None, axis: int) -> ir.Value:
    if op.dtype(q) not in _LINEAR:
        rank = op.rank(q)
        zero = None if zero_point is None else aligned(op, zero_point, rank, axis)
        return dequantized(op, q, aligned(op, scale, rank, axis), zero)
    along = {"axis": axis} if op.rank(scale) else {}
    return op.DequantizeLinear(q, scale, None if zero_point is None else op.cast(zero_point, op.dtype(q)), **along)


def _as_int(op: OpBuilder, bound: Operand) -> int:
    number = op.static(bound) if isinstance(bound, ir.Value) else bound
    if number is None:
        raise LoweringError("The bounds of a quantized tensor have to be known; pass them as numbers.")
    return int(number)


@lowering(
    "quantized_decomposed::quantize_per_tensor",
    "quantized_decomposed::quantize_per_tensor.tensor",
    "quantized_decomposed::quantize_per_tensor.tensor2",
)
def quantize_per_tensor(
    op: OpBuilder,
    input: ir.Value,
    scale: Operand,
    zero_point: Operand,
    quant_min: Operand,
    quant_max: Operand,
    dtype: torch.dtype,
) -> ir.Value:
    bounds = _as_int(op, quant_min), _as_int(op, quant_max)
    zero = number_parameter(op, zero_point, to_ir(dtype))
    return _quantize(op, input, number_parameter(op, scale, _FLOAT), zero, *bounds, to_ir(dtype), 0)


@lowering(
    "quantized_decomposed::dequantize_per_tensor",
    "quantized_decomposed::dequantize_per_tensor.tensor",
    "quantized_decomposed::dequantize_per_tensor.tensor2",
)
def dequantize_per_tensor(
    op: OpBuilder,
    input: ir.Value,
    scale: Operand,
    zero_point: Operand,
    quant_min: Operand,
    quant_max: Operand,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> ir.Value:
    zero = number_parameter(op, zero_point, op.dtype(input))
    return op.cast(
        _dequantize(op, input, number_parameter(op, scale, _FLOAT), zero, 0), to_ir(out_dtype or torch.float32)
    )


@lowering("quantized_decomposed::quantize_per_channel")
def quantize_per_channel(
    op: OpBuilder,
    input: ir.Value,
    scales: ir.Value,
    zero_points: ir.Value,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> ir.Value:
    return _quantize(op, input, op.cast(scales, _FLOAT), zero_points, quant_min, quant_max, to_ir(dtype), axis)


@lowering("quantized_decomposed::dequantize_per_channel")
def dequantize_per_channel(
    op: OpBuilder,
    input: ir.Value,
    scales: ir.Value,
    zero_points: ir.Value | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> ir.Value:
    result = _dequantize(op, input, op.cast(scales, _FLOAT), zero_points, axis)
    return op.cast(result, to_ir(out_dtype or torch.float32))


@lowering("quantized_decomposed::quantize_per_token")
def quantize_per_token(
    op: OpBuilder,
    input: ir.Value,
    scales: ir.Value,
    zero_points: ir.Value,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> ir.Value:
    # The zero point is added before rounding here, and need not be an integer.
    x = op.cast(input, _FLOAT)
    shifted = op.Round(op.Add(op.Div(x, op.cast(scales, _FLOAT)), op.cast(zero_points, _FLOAT)))
    return op.cast(op.Min(op.Max(shifted, float(quant_min)), float(quant_max)), to_ir(dtype))


@lowering("quantized_decomposed::dequantize_per_token")
def dequantize_per_token(
    op: OpBuilder,
    input: ir.Value,
    scales: ir.Value,
    zero_points: ir.Value,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype,
) -> ir.Value:
    return op.cast(dequantized(op, input, op.cast(scales, _FLOAT), zero_points), to_ir(output_dtype))


@lowering("quantized_decomposed::quantize_per_channel_group")
def quantize_per_channel_group(
    op: OpBuilder,
    input: ir.Value,
    scales: ir.Value,
    zero_points: ir.Value,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    group_size: int = 128,
) -> ir.Value:
    groups = op.Reshape(input, [-1, group_size])
    scale, zero = op.Reshape(scales, [-1, 1]), op.Reshape(zero_points, [-1, 1])
    result = quantize_per_token(op, groups, scale, zero, quant_min, quant_max, dtype)
    return op.reshape(result, op.sizes(input))


@lowering("quantized_decomposed::dequantize_per_channel_group")
def dequantize_per_channel_group(
    op: OpBuilder,
    w_int8: ir.Value,
    scales: ir.Value,
    zero_points: ir.Value | None,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    group_size: int = 128,
    output_dtype: torch.dtype = torch.float32,
) -> ir.Value:
    if op.dtype(w_int8) in _LINEAR and op.rank(scales) == 2:
        zero = None if zero_points is None else op.cast(zero_points, op.dtype(w_int8))
        result = op.DequantizeLinear(w_int8, op.cast(scales, _FLOAT), zero, axis=1, block_size=group_size)
        return op.cast(result, to_ir(output_dtype))
    groups = op.Reshape(w_int8, [-1, group_size])
    zero = None if zero_points is None else op.Reshape(zero_points, [-1, 1])
    result = dequantized(op, groups, op.Reshape(op.cast(scales, _FLOAT), [-1, 1]), zero)
    return op.cast(op.reshape(result, op.sizes(w_int8)), to_ir(output_dtype))


def fake_quantized(
    op: OpBuilder, x: ir.Value, scale: ir.Value, zero_point: ir.Value, low: int, high: int, axis: int
) -> ir.Value:
    """Quantize and dequantize; the pair of operators is what runtimes recognize."""
    dtype = op.dtype(x)
    fits = (bounds for bounds in (_INT8, _UINT8) if _within((low, high), integer_range(bounds)))
    integer = next(fits, None)
    scale = op.cast(scale, _FLOAT)
    if integer is None or op.dtype(zero_point).is_floating_point():
        rank = op.rank(x)
        scale, zero = aligned(op, scale, rank, axis), aligned(op, zero_point, rank, axis)
        number = quantized(op, op.cast(x, _FLOAT), scale, zero, low, high, _FLOAT)
        return op.cast(dequantized(op, number, scale, zero), dtype)
    q = _quantize(op, x, scale, zero_point, low, high, integer, axis)
    return op.cast(_dequantize(op, q, scale, zero_point, axis), dtype)


def _within(inner: tuple[int, int], outer: tuple[int, int] | None) -> bool:
    return outer is not None and outer[0] <= inner[0] and inner[1] <= outer[1]


def unclipped(
    op: OpBuilder, x: ir.Value, scale: ir.Value, zero_point: ir.Value, low: int, high: int, axis: int
) -> ir.Value:
    """Tell which elements the quantized range holds."""
    rank = op.rank(x)
    rounded = op.Round(op.Div(op.cast(x, _FLOAT), aligned(op, op.cast(scale, _FLOAT), rank, axis)))
    shifted = op.Add(rounded, op.cast(aligned(op, zero_point, rank, axis), _FLOAT))
    return op.And(op.GreaterOrEqual(shifted, float(low)), op.LessOrEqual(shifted, float(high)))


def _zero_point(op: OpBuilder, zero_point: Operand) -> ir.Value:
    dtype = zero_point.dtype if isinstance(zero_point, ir.Value) and zero_point.dtype else ir.DataType.INT32
    return number_parameter(op, zero_point, dtype)


@lowering(
    aten.fake_quantize_per_tensor_affine.default,
    aten.fake_quantize_per_tensor_affine.tensor_qparams,
)
def fake_quantize_per_tensor_affine(
    op: OpBuilder, self: ir.Value, scale: Operand, zero_point: Operand, quant_min: int, quant_max: int
) -> ir.Value:
    return fake_quantized(
        op, self, number_parameter(op, scale, _FLOAT), _zero_point(op, zero_point), quant_min, quant_max, 0
    )


@lowering(aten.fake_quantize_per_tensor_affine_cachemask.default)
def fake_quantize_per_tensor_affine_cachemask(
    op: OpBuilder, self: ir.Value, scale: Operand, zero_point: Operand, quant_min: int, quant_max: int
) -> tuple[ir.Value, ir.Value]:
    arguments = number_parameter(op, scale, _FLOAT), _zero_point(op, zero_point), quant_min, quant_max, 0
    return fake_quantized(op, self, *arguments), unclipped(op, self, *arguments)


@lowering(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)
def fake_quantize_with_switch(
    op: OpBuilder,
    self: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value,
    fake_quant_enabled: ir.Value,
    quant_min: int,
    quant_max: int,
) -> tuple[ir.Value, ir.Value]:
    arguments = number_parameter(op, scale, _FLOAT), _zero_point(op, zero_point), quant_min, quant_max, 0
    enabled = op.cast(_zero_point(op, fake_quant_enabled), ir.DataType.BOOL)
    output = op.Where(enabled, fake_quantized(op, self, *arguments), self)
    return output, op.Or(op.Not(enabled), unclipped(op, self, *arguments))


@lowering(aten.fake_quantize_per_channel_affine.default)
def fake_quantize_per_channel_affine(
    op: OpBuilder, self: ir.Value, scale: ir.Value, zero_point: ir.Value, axis: int, quant_min: int, quant_max: int
) -> ir.Value:
    return fake_quantized(op, self, scale, zero_point, quant_min, quant_max, axis)


@lowering(aten.fake_quantize_per_channel_affine_cachemask.default)
def fake_quantize_per_channel_affine_cachemask(
    op: OpBuilder, self: ir.Value, scale: ir.Value, zero_point: ir.Value, axis: int, quant_min: int, quant_max: int
) -> tuple[ir.Value, ir.Value]:
    arguments = scale, zero_point, quant_min, quant_max, axis
    return fake_quantized(op, self, *arguments), unclipped(op, self, *arguments)


def _learned_zero_point(op: OpBuilder, zero_point: ir.Value, low: int, high: int) -> ir.Value:
    return op.cast(op.Min(op.Max(op.Round(zero_point), float(low)), float(high)), ir.DataType.INT32)


@lowering(aten._fake_quantize_learnable_per_tensor_affine.default)
def fake_quantize_learnable_per_tensor_affine(
    op: OpBuilder,
    self: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> ir.Value:
    zero = _learned_zero_point(op, number_parameter(op, zero_point, _FLOAT), quant_min, quant_max)
    return fake_quantized(op, self, number_parameter(op, scale, _FLOAT), zero, quant_min, quant_max, 0)


@lowering(aten._fake_quantize_learnable_per_channel_affine.default)
def fake_quantize_learnable_per_channel_affine(
    op: OpBuilder,
    self: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> ir.Value:
    zero = _learned_zero_point(op, zero_point, quant_min, quant_max)
    return fake_quantized(op, self, scale, zero, quant_min, quant_max, axis)
