"""Counts, histograms and reductions of segments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import torch

from onnxops_decomp.errors import LoweringError
from onnxops_decomp.formulas.operands import arange
from onnxops_decomp.lowerings.indexing.searching import positions
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

aten = torch.ops.aten

BOOL, DOUBLE, FLOAT, INT64 = ir.DataType.BOOL, ir.DataType.DOUBLE, ir.DataType.FLOAT, ir.DataType.INT64


def _counted(op: OpBuilder, index: ir.Value, weight: ir.Value, bins: Size) -> ir.Value:
    """Sum weights by index.

    Args:
        op: Builder.
        index: 1-D INT64 indices of bins.
        weight: 1-D weights.
        bins: Number of bins.

    Returns:
        1-D sums, of the dtype of the weights.
    """
    empty = op.expand(op.constant(0, op.dtype(weight)), [bins])
    return op.ScatterElements(empty, index, weight, axis=0, reduction="add")


@lowering(aten.bincount.default)
def bincount(op: OpBuilder, self: ir.Value, weights: ir.Value | None = None, minlength: Size = 0) -> ir.Value:
    index = op.cast(self, INT64)
    largest = op.ReduceMax(index, keepdims=0)
    # Of no elements the maximum is the smallest integer, and minlength decides.
    bins = op.Max(op.Add(largest, 1), minlength)
    if weights is None:
        return _counted(op, index, op.Expand(op.constant(1), op.Shape(index)), bins)
    if weights.dtype != FLOAT:
        weights = op.cast(weights, DOUBLE)
    return _counted(op, index, weights, bins)


# ---- bins of equal width


def _data_range(op: OpBuilder, value: ir.Value, margin: float) -> tuple[ir.Value, ir.Value]:
    """Return smallest and largest element, moved apart by ``margin`` each where they are one."""
    low, high = op.ReduceMin(value, keepdims=0), op.ReduceMax(value, keepdims=0)
    apart = op.Mul(op.cast(op.Equal(low, high), op.dtype(value)), margin)
    return op.Sub(low, apart), op.Add(high, apart)


def _given_range(op: OpBuilder, value: ir.Value, low: float, high: float, margin: float) -> tuple[ir.Value, ir.Value]:
    apart = margin if low == high else 0
    return op.constant(low - apart, op.dtype(value)), op.constant(high + apart, op.dtype(value))


@lowering(aten.histc.default)
def histc(op: OpBuilder, self: ir.Value, bins: int = 100, min: float = 0, max: float = 0) -> ir.Value:
    value = op.Reshape(self, [-1])
    low, high = _data_range(op, value, 1) if min == max == 0 else _given_range(op, value, min, max, 1)
    inside = op.And(op.GreaterOrEqual(value, low), op.LessOrEqual(value, high))
    place = op.Mul(op.Div(op.Sub(value, low), op.Sub(high, low)), bins)
    # The last bin includes its upper bound.
    index = op.Min(op.cast(op.Where(inside, place, 0), INT64), bins - 1)
    return op.cast(_counted(op, index, op.cast(inside, FLOAT), bins), op.dtype(self))


def _linear_edges(op: OpBuilder, low: ir.Value, high: ir.Value, bins: int) -> ir.Value:
    steps = op.constant(np.arange(bins + 1), op.dtype(low))
    rising = op.Add(low, op.Mul(steps, op.Div(op.Sub(high, low), bins)))
    # As torch.linspace: the upper half is counted from the end, so that the end is met.
    falling = op.Sub(high, op.Mul(op.Sub(bins, steps), op.Div(op.Sub(high, low), bins)))
    return op.Where(op.Less(steps, (bins + 1) // 2), rising, falling)


def _bin_of(op: OpBuilder, value: ir.Value, edges: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the bin of each 1-D value, and whether it is in one."""
    count = op.size_sub(op.size(edges, 0), 1)
    first, last = op.Gather(edges, 0, axis=0), op.Gather(edges, -1, axis=0)
    inside = op.And(op.GreaterOrEqual(value, first), op.LessOrEqual(value, last))
    index = op.Min(op.Sub(positions(op, edges, value, True, False), 1), op.size_sub(count, 1))
    return op.Where(inside, index, 0), inside


def _histogram(
    op: OpBuilder, self: ir.Value, edges: Sequence[ir.Value], weight: ir.Value | None, density: bool
) -> ir.Value:
    """Return the histogram of points of shape (points, dimensions)."""
    flat: ir.Value | None = None
    inside: ir.Value | None = None
    sizes: list[Size] = [op.size_sub(op.size(part, 0), 1) for part in edges]
    for axis, part in enumerate(edges):
        index, within = _bin_of(op, op.Gather(self, axis, axis=1), part)
        flat = index if flat is None else op.Add(op.Mul(flat, sizes[axis]), index)
        inside = within if inside is None else op.And(inside, within)
    assert flat is not None
    assert inside is not None
    dtype = op.dtype(self)
    share = op.cast(inside, dtype)
    share = share if weight is None else op.Mul(share, op.Reshape(weight, [-1]))
    result = op.reshape(_counted(op, flat, share, op.size_mul(*sizes)), sizes)
    if density:
        result = op.Div(result, op.ReduceSum(result, keepdims=0))
        for axis, part in enumerate(edges):
            widths = op.Sub(op.Slice(part, [1], [2**63 - 1], [0]), op.Slice(part, [0], [-1], [0]))
            trailing = list(range(1, len(edges) - axis))
            result = op.Div(result, op.Unsqueeze(widths, trailing) if trailing else widths)
    return result


def _edges(op: OpBuilder, value: ir.Value, bins: int, bounds: Sequence[float] | None) -> ir.Value:
    low, high = _data_range(op, value, 0.5) if bounds is None else _given_range(op, value, bounds[0], bounds[1], 0.5)
    return _linear_edges(op, low, high, bins)


@lowering(aten.histogram.bin_ct)
def histogram(
    op: OpBuilder,
    self: ir.Value,
    bins: int = 100,
    range: Sequence[float] | None = None,
    weight: ir.Value | None = None,
    density: bool = False,
) -> tuple[ir.Value, ir.Value]:
    points = op.Reshape(self, [-1, 1])
    edges = _edges(op, points, bins, range)
    return _histogram(op, points, [edges], weight, density), edges


@lowering(aten.histogram.bins_tensor)
def histogram_bins_tensor(
    op: OpBuilder, self: ir.Value, bins: ir.Value, weight: ir.Value | None = None, density: bool = False
) -> tuple[ir.Value, ir.Value]:
    return _histogram(op, op.Reshape(self, [-1, 1]), [bins], weight, density), bins


def _points(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.reshape(self, [-1, op.size(self, op.rank(self) - 1)])


@lowering(aten._histogramdd_bin_edges.default)
def histogramdd_bin_edges(
    op: OpBuilder,
    self: ir.Value,
    bins: Sequence[int],
    range: Sequence[float] | None = None,
    weight: ir.Value | None = None,
    density: bool = False,
) -> list[ir.Value]:
    points = _points(op, self)
    return [
        _edges(op, op.Gather(points, axis, axis=1), count, None if range is None else range[2 * axis : 2 * axis + 2])
        for axis, count in enumerate(bins)
    ]


@lowering(aten._histogramdd_from_bin_cts.default)
def histogramdd_from_bin_cts(
    op: OpBuilder,
    self: ir.Value,
    bins: Sequence[int],
    range: Sequence[float] | None = None,
    weight: ir.Value | None = None,
    density: bool = False,
) -> ir.Value:
    edges = histogramdd_bin_edges(op, self, bins, range)
    return _histogram(op, _points(op, self), edges, weight, density)


@lowering(aten._histogramdd_from_bin_tensors.default)
def histogramdd_from_bin_tensors(
    op: OpBuilder, self: ir.Value, bins: Sequence[ir.Value], weight: ir.Value | None = None, density: bool = False
) -> ir.Value:
    return _histogram(op, _points(op, self), bins, weight, density)


@lowering(aten.histogramdd.default, aten.histogramdd.int_bins)
def histogramdd(
    op: OpBuilder,
    self: ir.Value,
    bins: int | Sequence[int],
    range: Sequence[float] | None = None,
    weight: ir.Value | None = None,
    density: bool = False,
) -> tuple[ir.Value, list[ir.Value]]:
    if isinstance(bins, int):
        columns = op.size(self, -1)
        if not isinstance(columns, int):
            raise LoweringError("histogramdd gives edges for each column, of which there may be any number.")
        bins = [bins] * columns
    edges = histogramdd_bin_edges(op, self, bins, range)
    return _histogram(op, _points(op, self), edges, weight, density), edges


@lowering(aten.histogramdd.TensorList_bins)
def histogramdd_of_edges(
    op: OpBuilder,
    self: ir.Value,
    bins: Sequence[ir.Value],
    range: Sequence[float] | None = None,
    weight: ir.Value | None = None,
    density: bool = False,
) -> tuple[ir.Value, list[ir.Value]]:
    return _histogram(op, _points(op, self), bins, weight, density), list(bins)


# ---- segments

_SEGMENTS: dict[str, tuple[str, float]] = {
    "max": ("max", -math.inf),
    "mean": ("add", 0),
    "min": ("min", math.inf),
    "prod": ("mul", 1),
    "sum": ("add", 0),
}


def _bounds(op: OpBuilder, lengths: ir.Value | None, offsets: ir.Value | None, axis: int) -> tuple[ir.Value, ir.Value]:
    """Return where each segment ends, and how long it is."""
    if lengths is not None:
        lengths = op.cast(lengths, INT64)
        return op.CumSum(lengths, op.constant(axis)), lengths
    if offsets is None:
        raise LoweringError("segment_reduce needs lengths or offsets; indices are not supported by torch either.")
    offsets = op.cast(offsets, INT64)
    ends = op.Slice(offsets, [1], [2**63 - 1], [axis])
    return ends, op.Sub(ends, op.Slice(offsets, [0], [-1], [axis]))


@lowering(aten.segment_reduce.default)
def segment_reduce(
    op: OpBuilder,
    data: ir.Value,
    reduce: str,
    lengths: ir.Value | None = None,
    indices: ir.Value | None = None,
    offsets: ir.Value | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> ir.Value:
    if data.dtype == ir.DataType.FLOAT16:
        # ScatterElements has no FLOAT16 kernel that reduces.
        wide = op.cast(data, FLOAT)
        return op.cast(segment_reduce(op, wide, reduce, lengths, None, offsets, axis, unsafe, initial), op.dtype(data))
    ends, counts = _bounds(op, lengths, offsets, axis)
    reduction, neutral = _SEGMENTS[reduce]
    # Each element belongs to the segment that as many ends come before; what follows the last end to none.
    place = arange(op, op.size(data, axis))
    before = op.LessOrEqual(op.Unsqueeze(ends, [axis + 1]), place)
    segment = op.ReduceSum(op.cast(before, INT64), [axis], keepdims=0)
    trailing = list(range(axis + 1, op.rank(data)))
    index = op.Expand(op.Unsqueeze(segment, trailing) if trailing else segment, op.Shape(data))
    sizes = op.sizes(data)
    sizes[axis] = op.size_add(op.size(ends, axis), 1)
    start = op.expand(op.constant(neutral if initial is None else initial, op.dtype(data)), sizes)
    result = op.ScatterElements(start, index, data, axis=axis, reduction=reduction)
    result = op.Slice(result, [0], [-1], [axis])
    if reduce != "mean":
        return result
    number = op.cast(op.Unsqueeze(counts, trailing) if trailing else counts, op.dtype(data))
    if initial is not None:
        number = op.Max(number, 1)
    return op.Div(result, number)
