"""QuantizeLinear and DequantizeLinear in the opsets before they knew channels, blocks or other dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.builder.forms import adapter
from onnxops_decomp.errors import UnsupportedOpsetError
from onnxops_decomp.formulas.quantization import aligned, dequantized, integer_range, quantized

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder


_FLOAT = ir.DataType.FLOAT
_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)


def _blocks(op: OpBuilder, parameter: ir.Value, axis: int, block_size: int) -> ir.Value:
    """Repeat each parameter over the elements of its block."""
    if not block_size:
        return parameter
    rank, sizes = op.rank(parameter), op.sizes(parameter)
    axis %= rank
    spread = op.expand(op.Unsqueeze(parameter, [axis + 1]), [*sizes[: axis + 1], block_size, *sizes[axis + 1 :]])
    return op.reshape(spread, [*sizes[:axis], op.size_mul(sizes[axis], block_size), *sizes[axis + 1 :]])


@adapter("QuantizeLinear", below=23)
def quantize_linear_of_one_dtype(
    op: OpBuilder,
    x: ir.Value,
    y_scale: ir.Value,
    y_zero_point: ir.Value | None = None,
    *,
    older: OpBuilder,
    precision: int = 0,
    **options: int,
) -> ir.Value:
    dtype = ir.DataType(precision) if precision else op.dtype(y_scale)  # in which the newest form divides
    x, y_scale = (op.cast(value, dtype) for value in (x, y_scale))
    return older.QuantizeLinear(x, y_scale, y_zero_point, **options)


@adapter("QuantizeLinear", below=21)
def quantize_linear(
    op: OpBuilder,
    x: ir.Value,
    y_scale: ir.Value,
    y_zero_point: ir.Value | None = None,
    *,
    older: OpBuilder,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    saturate: int = 1,
) -> ir.Value:
    dtype = op.dtype(y_zero_point) if y_zero_point is not None else ir.DataType(output_dtype or ir.DataType.UINT8)
    bounds = integer_range(dtype)
    fits = dtype in _BYTES or (bounds is None and op.opset >= 19)
    if not block_size and fits and (op.opset >= 13 or (op.opset >= 10 and op.rank(y_scale) == 0)):
        x, y_scale = (op.cast(value, _FLOAT) if op.opset < 19 else value for value in (x, y_scale))
        options = {"axis": axis} if op.opset >= 13 and op.rank(y_scale) == 1 else {}
        options |= {"saturate": saturate} if op.opset >= 19 else {}
        zero_point = op.constant(0, dtype) if y_zero_point is None else y_zero_point
        if y_zero_point is None and "axis" in options:
            zero_point = op.expand(op.Unsqueeze(zero_point, [0]), op.sizes(y_scale))
        return older.QuantizeLinear(x, y_scale, zero_point, **options)
    if bounds is None:
        raise UnsupportedOpsetError("QuantizeLinear", op.opset, lowest=19, reason=f"quantization to {dtype.name}")
    scale = aligned(op, _blocks(op, y_scale, axis, block_size), op.rank(x), axis)
    zero = y_zero_point
    if zero is not None:
        zero = aligned(op, _blocks(op, zero, axis, block_size), op.rank(x), axis)
    return quantized(op, x, op.cast(scale, op.dtype(x)), zero, *bounds, dtype)


@adapter("DequantizeLinear", below=21)
def dequantize_linear(
    op: OpBuilder,
    x: ir.Value,
    x_scale: ir.Value,
    x_zero_point: ir.Value | None = None,
    *,
    older: OpBuilder,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> ir.Value:
    dtype = op.dtype(x)
    wanted = ir.DataType(output_dtype) if output_dtype else op.dtype(x_scale)
    fits = dtype in (*_BYTES, ir.DataType.INT32) or (integer_range(dtype) is None and op.opset >= 19)
    if not block_size and fits and (op.opset >= 13 or (op.opset >= 10 and op.rank(x_scale) == 0)):
        scale = op.cast(x_scale, _FLOAT) if op.opset < 19 else x_scale
        options = {"axis": axis} if op.opset >= 13 and op.rank(x_scale) == 1 else {}
        return op.cast(older.DequantizeLinear(x, scale, x_zero_point, **options), wanted)
    if integer_range(dtype) is None:
        raise UnsupportedOpsetError("DequantizeLinear", op.opset, lowest=19, reason=f"quantization from {dtype.name}")
    scale = aligned(op, _blocks(op, x_scale, axis, block_size), op.rank(x), axis)
    zero = x_zero_point
    if zero is not None:
        zero = aligned(op, _blocks(op, zero, axis, block_size), op.rank(x), axis)
    return op.cast(dequantized(op, x, scale, zero), wanted)
