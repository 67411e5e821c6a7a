"""Sorting and selection by rank."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import torch

from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

__all__ = ["sorted_along"]

aten = torch.ops.aten

BOOL, INT64, UINT8 = ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.UINT8
_BEYOND_INFINITY = {
    ir.DataType.FLOAT16: (ir.DataType.FLOAT, 1e30),
    ir.DataType.BFLOAT16: (ir.DataType.DOUBLE, 1e300),
    ir.DataType.FLOAT: (ir.DataType.DOUBLE, 1e300),
    ir.DataType.DOUBLE: (ir.DataType.DOUBLE, float(np.finfo(np.float64).max)),
}


def _sort_keys(op: OpBuilder, value: ir.Value) -> ir.Value:
    """Return numbers that order as torch orders ``value``, with NaN above infinity, which TopK has no word for."""
    dtype = op.dtype(value)
    if dtype == BOOL:
        return op.cast(value, UINT8)
    if dtype not in _BEYOND_INFINITY or not op.minds_nan(value):
        return value
    # In the wider dtype there is room between the numbers of the narrow one and infinity, which then stands for NaN.
    wide, bound = _BEYOND_INFINITY[dtype]
    return op.Where(op.IsNaN(value), math.inf, op.Min(op.cast(value, wide), bound))


def sorted_along(op: OpBuilder, value: ir.Value, dim: int, descending: bool) -> tuple[ir.Value, ir.Value]:
    """Sort along a dimension and return values and indices; equal elements keep their order, NaN is the largest."""
    # Of equal elements TopK takes the one with the lower index first: with all elements it is a stable sort.
    return topk(op, value, None, dim, descending, True)


@lowering(aten.topk.default)
def topk(
    op: OpBuilder, value: ir.Value, count: Size | None, dim: int, largest: bool, sorted: bool
) -> tuple[ir.Value, ir.Value]:
    """Return the ``count`` largest or smallest elements along a dimension, all for None, and their indices."""
    if op.rank(value) == 0:
        return op.Identity(value), op.constant(0)
    keys = _sort_keys(op, value)
    wanted = op.vector([op.size(value, dim) if count is None else count])
    values, indices = op.emit_many("TopK", 2, keys, wanted, axis=dim, largest=int(largest), sorted=int(sorted))
    if keys is value or value.dtype == BOOL:
        return op.cast(values, op.dtype(value)), indices
    return op.GatherElements(value, indices, axis=dim), indices


@lowering(aten.sort.default, aten.sort.stable)
def sort(
    op: OpBuilder, self: ir.Value, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[ir.Value, ir.Value]:
    return sorted_along(op, self, dim, descending)


@lowering(aten.argsort.default, aten.argsort.stable)
def argsort(
    op: OpBuilder, self: ir.Value, dim: int = -1, descending: bool = False, *, stable: bool = False
) -> ir.Value:
    return sorted_along(op, self, dim, descending)[1]


# ---- one element by its rank


def _without(op: OpBuilder, value: ir.Value, dim: int, keepdim: bool) -> ir.Value:
    return value if keepdim else op.Squeeze(value, [dim])


@lowering(aten.kthvalue.default)
def kthvalue(op: OpBuilder, self: ir.Value, k: Size, dim: int = -1, keepdim: bool = False) -> tuple[ir.Value, ir.Value]:
    if op.rank(self) == 0:
        return op.Identity(self), op.constant(0)
    values, indices = sorted_along(op, self, dim, False)
    last = op.vector([op.size_sub(k, 1)])
    return tuple(_without(op, op.Gather(part, last, axis=dim), dim, keepdim) for part in (values, indices))  # type: ignore[return-value]


def _median_rank(op: OpBuilder, value: ir.Value, dim: int, ignore_nan: bool) -> ir.Value:
    """Return the position of the median among the sorted elements, with size 1 along ``dim``."""
    size = op.size(value, dim)
    middle = op.size_floordiv(op.size_sub(size, 1), 2)
    if not op.minds_nan(value):
        shape: list[Size] = [1 if axis == dim else op.size(value, axis) for axis in range(op.rank(value))]
        return op.expand(op.constant(middle) if isinstance(middle, int) else middle, shape)
    missing = op.ReduceSum(op.cast(op.IsNaN(value), INT64), [dim], keepdims=1)
    present = op.Sub(size, missing)
    if ignore_nan:
        return op.Div(op.Sub(present, 1), 2)
    # The first NaN, which all numbers sort before.
    return op.Where(op.Greater(missing, 0), present, middle)


def _median(op: OpBuilder, value: ir.Value, dim: int, keepdim: bool, ignore_nan: bool) -> tuple[ir.Value, ir.Value]:
    if op.rank(value) == 0:
        return op.Identity(value), op.constant(0)
    dim %= op.rank(value)
    values, indices = sorted_along(op, value, dim, False)
    rank = _median_rank(op, value, dim, ignore_nan)
    return (
        _without(op, op.GatherElements(values, rank, axis=dim), dim, keepdim),
        _without(op, op.GatherElements(indices, rank, axis=dim), dim, keepdim),
    )


@lowering(aten.median.dim)
def median_dim(op: OpBuilder, self: ir.Value, dim: int, keepdim: bool = False) -> tuple[ir.Value, ir.Value]:
    return _median(op, self, dim, keepdim, ignore_nan=False)


@lowering(aten.nanmedian.dim)
def nanmedian_dim(op: OpBuilder, self: ir.Value, dim: int, keepdim: bool = False) -> tuple[ir.Value, ir.Value]:
    return _median(op, self, dim, keepdim, ignore_nan=True)


@lowering(aten.median.default)
def median(op: OpBuilder, self: ir.Value) -> ir.Value:
    return _median(op, op.Reshape(self, [-1]), 0, False, ignore_nan=False)[0]


@lowering(aten.nanmedian.default)
def nanmedian(op: OpBuilder, self: ir.Value) -> ir.Value:
    return _median(op, op.Reshape(self, [-1]), 0, False, ignore_nan=True)[0]


@lowering(aten.mode.default)
def mode(op: OpBuilder, self: ir.Value, dim: int = -1, keepdim: bool = False) -> tuple[ir.Value, ir.Value]:
    if op.rank(self) == 0:
        return op.Identity(self), op.constant(0)
    rank = op.rank(self)
    dim %= rank
    values, indices = sorted_along(op, self, dim, False)
    # Runs of equal elements are numbered; the longest has the mode, the first of them the smallest.
    before, after = op.Slice(values, [0], [-1], [dim]), op.Slice(values, [1], [2**63 - 1], [dim])
    starts = op.cast(op.Not(op.Equal(before, after)), INT64)
    pads = [0] * (2 * rank)
    pads[dim] = 1
    run = op.CumSum(op.Pad(starts, pads), op.constant(dim))
    ones = op.Expand(op.constant(1), op.Shape(run))
    lengths = op.ScatterElements(op.Mul(run, 0), run, ones, axis=dim, reduction="add")
    longest = op.ArgMax(lengths, axis=dim, keepdims=1)
    last = op.Sub(op.GatherElements(op.CumSum(lengths, op.constant(dim)), longest, axis=dim), 1)
    return (
        _without(op, op.GatherElements(values, last, axis=dim), dim, keepdim),
        _without(op, op.GatherElements(indices, last, axis=dim), dim, keepdim),
    )
