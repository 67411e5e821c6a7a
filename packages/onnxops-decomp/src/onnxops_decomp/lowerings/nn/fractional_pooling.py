"""Fractional max pooling: windows whose places a random number decides, channel by channel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.formulas.operands import arange
from onnxops_decomp.formulas.sliding_windows import batched, per_axis
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

aten = torch.ops.aten


def _starts(op: OpBuilder, sample: ir.Value, size: Size, count: int, kernel: int) -> ir.Value:
    """Return where the windows of each channel begin, of shape (N, C, count); ``sample`` is (N, C, 1)."""
    int64 = ir.DataType.INT64
    room = op.size_sub(size, kernel)
    last = op.expand(
        op.Reshape(room, [1, 1, 1]) if isinstance(room, ir.Value) else op.constant([[[room]]]),
        [
            op.size(sample, 0),
            op.size(sample, 1),
            1,
        ],
    )
    if count == 1:
        return last
    dtype = op.dtype(sample)
    extent = op.cast(room, dtype) if isinstance(room, ir.Value) else op.constant(float(room), dtype)
    alpha = op.Div(extent, float(count - 1))
    index = op.cast(arange(op, count - 1), dtype)
    moved = op.cast(op.Mul(op.Add(index, sample), alpha), int64)
    return op.Concat(op.Sub(moved, op.cast(op.Mul(sample, alpha), int64)), last, axis=2)


def _pooled(
    op: OpBuilder, self: ir.Value, kernel: Sequence[int], counts: Sequence[int], samples: ir.Value, order: Sequence[int]
) -> tuple[ir.Value, ...]:
    """Pool; ``order`` says which random number belongs to which spatial axis."""
    spatial = len(kernel)
    x, unbatched = batched(op, self, spatial)
    batch, channels, *plane = op.sizes(x)
    if any(isinstance(size, int) and size == 0 for size in (batch, channels)):
        empty = [batch, channels, *counts]
        nothing = [op.Reshape(op.constant(0, dtype), [1] * len(empty)) for dtype in (op.dtype(x), ir.DataType.INT64)]
        return tuple(op.expand(value, empty) for value in nothing)
    index: ir.Value | None = None
    for axis in range(spatial):
        sample = op.Slice(samples, [order[axis]], [order[axis] + 1], [2])
        starts = _starts(op, sample, plane[axis], counts[axis], kernel[axis])
        reached = op.Add(op.Unsqueeze(starts, [3]), list(range(kernel[axis])))  # (N, C, count, kernel)
        # Windows of this axis stand before those of the following ones, and so do its elements.
        behind = spatial - axis - 1
        shaped = op.reshape(
            reached, [batch, channels, *[1] * axis, counts[axis], *[1] * (behind + axis), kernel[axis], *[1] * behind]
        )
        index = shaped if index is None else op.Add(op.Mul(index, plane[axis]), shaped)
    assert index is not None
    elements = math.prod(kernel)
    windows = op.reshape(index, [batch, channels, *counts, elements])
    flat = op.reshape(x, [batch, channels, op.size_mul(*plane)])
    values = op.GatherElements(flat, op.reshape(windows, [batch, channels, elements * math.prod(counts)]), axis=2)
    values = op.reshape(values, [batch, channels, *counts, elements])
    best = op.ArgMax(values, axis=-1, keepdims=1)
    place = op.Squeeze(op.GatherElements(windows, best, axis=-1), [-1])
    results = op.ReduceMax(values, [-1], keepdims=0), place
    return tuple(op.Squeeze(result, [0]) for result in results) if unbatched else results


@lowering(aten.fractional_max_pool2d.default)
def fractional_max_pool2d(
    op: OpBuilder,
    self: ir.Value,
    kernel_size: int | Sequence[int],
    output_size: int | Sequence[int],
    random_samples: ir.Value,
) -> tuple[ir.Value, ...]:
    # The first random number is that of the width.
    return _pooled(op, self, per_axis(kernel_size, 2), per_axis(output_size, 2), random_samples, (1, 0))


@lowering(aten.fractional_max_pool3d.default)
def fractional_max_pool3d(
    op: OpBuilder,
    self: ir.Value,
    kernel_size: int | Sequence[int],
    output_size: int | Sequence[int],
    random_samples: ir.Value,
) -> tuple[ir.Value, ...]:
    return _pooled(op, self, per_axis(kernel_size, 3), per_axis(output_size, 3), random_samples, (0, 1, 2))
