"""Sliding windows by index, for the dtypes and forms that no pooling or convolution operator of ONNX has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.formulas.operands import arange

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

__all__ = [
    "batched",
    "gathered_windows",
    "has_window_operator",
    "max_of_windows",
    "per_axis",
    "pooled_size",
    "window_positions",
]


def has_window_operator(op: OpBuilder, op_type: str, dtype: ir.DataType) -> bool:
    """Tell whether a convolution or pooling takes ``dtype``: in ONNX no integers, in some runtimes no doubles."""
    return dtype.is_floating_point() and (dtype != ir.DataType.DOUBLE or op.takes_doubles(op_type))


def per_axis(value: int | Sequence[int], count: int) -> list[int]:
    """Return one number per spatial axis, as torch reads ``int[2]`` arguments."""
    numbers = [value] if isinstance(value, int) else list(value)
    return numbers * count if len(numbers) == 1 else numbers


def batched(op: OpBuilder, x: ir.Value, spatial: int) -> tuple[ir.Value, bool]:
    """Return ``x`` with a batch dimension, and whether it had none."""
    if op.rank(x) == spatial + 1:
        return op.Unsqueeze(x, [0]), True
    return x, False


def pooled_size(
    op: OpBuilder, size: Size, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> Size:
    """Return the number of windows along an axis, as torch counts them."""
    span = op.size_add(size, 2 * padding - dilation * (kernel - 1) - 1)
    if not ceil_mode:
        return op.size_add(op.size_floordiv(span, stride), 1)
    count = op.size_add(op.size_floordiv(op.size_add(span, stride - 1), stride), 1)
    # A window may not begin in the padding on the right.
    starting_inside = op.size_add(op.size_floordiv(op.size_add(size, padding - 1), stride), 1)
    return op.size_min(count, starting_inside)


def window_positions(op: OpBuilder, count: Size, kernel: int, stride: int, dilation: int) -> ir.Value:
    """Return the positions of the elements of each window along an axis, of shape (windows, kernel)."""
    starts = op.Unsqueeze(op.Mul(arange(op, count), stride), [1])
    return op.Add(starts, [element * dilation for element in range(kernel)])


def gathered_windows(
    op: OpBuilder, x: ir.Value, axis: int, count: Size, kernel: int, stride: int, dilation: int
) -> ir.Value:
    """Replace ``axis``, padded already, by two: ``count`` windows of ``kernel`` elements each."""
    return op.Gather(x, window_positions(op, count, kernel, stride, dilation), axis=axis)


def max_of_windows(
    op: OpBuilder, x: ir.Value, positions: Sequence[ir.Value], plane: Sequence[Size], padding: Sequence[int]
) -> tuple[ir.Value, ir.Value]:
    """Return the maxima of windows and where they stand.

    Args:
        op: Builder.
        x: Batch (N, C, spatial...), padded already.
        positions: For each spatial axis, the positions of each window's elements, of shape (windows, kernel).
        plane: Spatial sizes before padding, in which the indices count.
        padding: What was added in front of each spatial axis.
    """
    spatial = len(positions)
    shapes = [op.sizes(p) for p in positions]
    for axis, position in enumerate(positions):
        x = op.Gather(x, position, axis=2 + 2 * axis)
    x = op.Transpose(x, perm=[0, 1, *range(2, 2 + 2 * spatial, 2), *range(3, 3 + 2 * spatial, 2)])
    elements = op.size_mul(*(shape[1] for shape in shapes))
    flat = op.reshape(x, [op.size(x, 0), op.size(x, 1), *(shape[0] for shape in shapes), elements])
    remaining = op.ArgMax(flat, axis=-1, keepdims=0)
    index: ir.Value | None = None
    scale: Size = 1
    for axis in reversed(range(spatial)):
        count, kernel = shapes[axis]
        element = op.Mod(remaining, kernel)
        remaining = op.Div(remaining, kernel)
        rows = op.Reshape(op.Mul(arange(op, count), kernel), [-1, *[1] * (spatial - axis - 1)])
        position = op.Gather(op.Reshape(positions[axis], [-1]), op.Add(element, rows))
        offset = op.Mul(op.Sub(position, padding[axis]), scale)
        index = offset if index is None else op.Add(index, offset)
        scale = op.size_mul(scale, plane[axis])
    assert index is not None
    return op.ReduceMax(flat, [-1], keepdims=0), index
