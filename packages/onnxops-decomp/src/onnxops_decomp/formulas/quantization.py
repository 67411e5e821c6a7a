"""Quantization with a scale and a zero point, composed of single operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["aligned", "dequantized", "integer_range", "quantized"]


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
