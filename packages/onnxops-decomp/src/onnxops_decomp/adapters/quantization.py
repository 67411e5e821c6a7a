"""QuantizeLinear and DequantizeLinear in the opsets before they knew channels, blocks or other dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.builder.forms import adapter
from onnxops_decomp.errors import UnsupportedOpsetError

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["aligned", "dequantized", "integer_range", "quantized"]

_FLOAT = ir.DataType.FLOAT
_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)
# What QuantizeLinear takes from opset 10 to 18 and DequantizeLinear besides INT32.
_SIGNED = {
    ir.DataType.INT4: 4,
    ir.DataType.INT8: 8,
    ir.DataType.INT16: 16,
    ir.DataType.INT32: 32,
    ir.DataType.INT64: 64,
}
_UNSIGNED = {ir.DataType.UINT4: 4, ir.DataType.UINT8: 8, ir.DataType.UINT16: 16, ir.DataType.UINT32: 32}


def integer_range(dtype: ir.DataType) -> tuple[int, int] | None:
    """Return the least and greatest number of an integer dtype, or None for another dtype."""
    if dtype in _SIGNED:
        return -(2 ** (_SIGNED[dtype] - 1)), 2 ** (_SIGNED[dtype] - 1) - 1
    return (0, 2 ** _UNSIGNED[dtype] - 1) if dtype in _UNSIGNED else None


def aligned(op: OpBuilder, parameter: ir.Value, rank: int, axis: int) -> ir.Value:
    """Bring a scale or zero point per channel into a shape that broadcasts along ``axis``; a scalar stays one."""
    if op.rank(parameter) != 1:
        return parameter
    behind = rank - 1 - axis % rank
    return op.Unsqueeze(parameter, list(range(1, 1 + behind))) if behind else parameter


def quantized(
    op: OpBuilder, x: ir.Value, scale: ir.Value, zero_point: ir.Value | None, low: int, high: int, dtype: ir.DataType
) -> ir.Value:
    """Write ``clip(round(x / scale) + zero_point, low, high)`` from single operators.

    Args:
        op: Builder in the newest dialect.
        x: Floats.
        scale: In the dtype of ``x``, broadcastable to it.
        zero_point: Of any number dtype, broadcastable to ``x``.
        low: Least result.
        high: Greatest result.
        dtype: Dtype of the result.
    """
    rounded = op.Round(op.Div(x, scale))
    if zero_point is not None:
        rounded = op.Add(rounded, op.cast(zero_point, op.dtype(x)))
    return op.cast(op.Min(op.Max(rounded, float(low)), float(high)), dtype)


def dequantized(op: OpBuilder, q: ir.Value, scale: ir.Value, zero_point: ir.Value | None) -> ir.Value:
    """Write ``(q - zero_point) * scale`` from single operators, in the dtype of ``scale``."""
    number = op.cast(q, op.dtype(scale))
    if zero_point is not None:
        number = op.Sub(number, op.cast(zero_point, op.dtype(scale)))
    return op.Mul(number, scale)


def _blocks(op: OpBuilder, parameter: ir.Value, axis: int, block_size: int) -> ir.Value:
    """Repeat each parameter over the elements of its block."""
    if not block_size:
        return parameter
    rank, sizes = op.rank(parameter), op.sizes(parameter)
    axis %= rank
    spread = op.expand(op.Unsqueeze(parameter, [axis + 1]), [*sizes[: axis + 1], block_size, *sizes[axis + 1 :]])
    return op.reshape(spread, [*sizes[:axis], op.size_mul(sizes[axis], block_size), *sizes[axis + 1 :]])


@adapter("QuantizeLinear", below=21)
def quantize_linear(
    op: OpBuilder,
    x: ir.Value,
    y_scale: ir.Value,
    y_zero_point: ir.Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> ir.Value:
    dtype = op.dtype(y_zero_point) if y_zero_point is not None else ir.DataType(output_dtype or ir.DataType.UINT8)
    bounds = integer_range(dtype)
    fits = dtype in _BYTES or (bounds is None and op.opset >= 19)
    if not block_size and fits and (op.opset >= 13 or (op.opset >= 10 and op.rank(y_scale) == 0)):
        newest = op.newest
        x, y_scale = (newest.cast(value, _FLOAT) if op.opset < 19 else value for value in (x, y_scale))
        per_channel = {"axis": axis} if op.opset >= 13 and op.rank(y_scale) == 1 else {}
        zero_point = newest.constant(0, dtype) if y_zero_point is None else y_zero_point
        if y_zero_point is None and per_channel:
            zero_point = newest.expand(newest.Unsqueeze(zero_point, [0]), newest.sizes(y_scale))
        return op.QuantizeLinear(x, y_scale, zero_point, **per_channel)
    if bounds is None:
        raise UnsupportedOpsetError("QuantizeLinear", op.opset, lowest=19, reason=f"quantization to {dtype.name}")
    newest = op.newest
    scale = aligned(newest, _blocks(newest, y_scale, axis, block_size), op.rank(x), axis)
    zero = y_zero_point
    if zero is not None:
        zero = aligned(newest, _blocks(newest, zero, axis, block_size), op.rank(x), axis)
    return quantized(newest, x, newest.cast(scale, op.dtype(x)), zero, *bounds, dtype)


@adapter("DequantizeLinear", below=21)
def dequantize_linear(
    op: OpBuilder,
    x: ir.Value,
    x_scale: ir.Value,
    x_zero_point: ir.Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> ir.Value:
    dtype = op.dtype(x)
    newest = op.newest
    wanted = ir.DataType(output_dtype) if output_dtype else op.dtype(x_scale)
    fits = dtype in (*_BYTES, ir.DataType.INT32) or (integer_range(dtype) is None and op.opset >= 19)
    if not block_size and fits and (op.opset >= 13 or (op.opset >= 10 and op.rank(x_scale) == 0)):
        scale = newest.cast(x_scale, _FLOAT) if op.opset < 19 else x_scale
        per_channel = {"axis": axis} if op.opset >= 13 and op.rank(x_scale) == 1 else {}
        return newest.cast(op.DequantizeLinear(x, scale, x_zero_point, **per_channel), wanted)
    if integer_range(dtype) is None:
        raise UnsupportedOpsetError("DequantizeLinear", op.opset, lowest=19, reason=f"quantization from {dtype.name}")
    scale = aligned(newest, _blocks(newest, x_scale, axis, block_size), op.rank(x), axis)
    zero = x_zero_point
    if zero is not None:
        zero = aligned(newest, _blocks(newest, zero, axis, block_size), op.rank(x), axis)
    return newest.cast(dequantized(newest, x, scale, zero), wanted)
