"""Grids of positions to sample at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.builder.sizes import Size
from onnxops_decomp.formulas.operands import arange

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["affine_grid"]


def _base_axis(op: OpBuilder, size: Size, dtype: ir.DataType, align_corners: int) -> ir.Value:
    """Return the normalized coordinates of the pixels along an axis."""
    index = op.cast(arange(op, size), dtype)
    if align_corners:
        steps = op.Max(op.Sub(op.number(size, dtype), 1.0), 1.0)
        # A single pixel lies in the middle.
        single = op.Equal(op.number(size, dtype), 1.0)
        start = op.Where(single, op.constant(0.0, dtype), op.constant(-1.0, dtype))
        return op.Add(op.Div(op.Mul(index, 2.0), steps), start)
    return op.Sub(op.Div(op.Add(op.Mul(index, 2.0), 1.0), op.number(size, dtype)), 1.0)


def affine_grid(op: OpBuilder, theta: ir.Value, plane: Sequence[Size], align_corners: int) -> ir.Value:
    """Write AffineGrid from single operators, in the newest dialect.

    Args:
        op: Builder.
        theta: (N, k, k + 1).
        plane: The k sizes of the output.
        align_corners: Whether -1 and 1 are the centers of the outer pixels.

    Returns:
        A tensor of shape (N, *plane, k).
    """
    dtype, count = op.dtype(theta), len(plane)
    columns = []
    for axis in reversed(range(count)):
        base = _base_axis(op, plane[axis], dtype, align_corners)
        shaped = op.Unsqueeze(base, list(range(1, count - axis)))
        columns.append(op.Unsqueeze(op.expand(shaped, plane), [count]))
    columns.append(op.expand(op.Reshape(op.constant(1.0, dtype), [1] * (count + 1)), [*plane, 1]))
    base = op.reshape(op.Concat(*columns, axis=-1), [op.size_mul(*plane), count + 1])
    moved = op.MatMul(base, op.Transpose(theta, perm=[0, 2, 1]))
    return op.reshape(moved, [op.size(theta, 0), *plane, count])
