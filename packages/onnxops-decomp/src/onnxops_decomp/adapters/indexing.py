"""Gather, scatter, sort: negative indices, batches and reductions that came later, and what there was before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxops_decomp.builder.forms import adapter
from onnxops_decomp.errors import UnsupportedOpsetError
from onnxops_decomp.formulas.loops import repeat_one
from onnxops_decomp.formulas.operands import arange, dim_sizes, halves, rank_of, static_ints
from onnxops_decomp.spec.inference import dims_of
from onnxops_decomp.spec.signs import is_never_negative

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

_BOOL, _INT64, _DOUBLE = ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.DOUBLE


# ---- indices that count from the end


def _from_front(op: OpBuilder, index: ir.Value, size: Size) -> ir.Value:
    """Count indices from the front of an axis of ``size``."""
    if is_never_negative(index, op.static):
        return index
    array = op.static(index)
    if array is not None and isinstance(size, int):
        return op.constant(np.where(array < 0, array + size, array), op.dtype(index))
    moved = op.Add(index, op.cast(size, op.dtype(index)) if isinstance(size, ir.Value) else size)
    return op.Where(op.Less(index, 0), moved, index)


@adapter("Gather", below=11)
def gather(op: OpBuilder, data: ir.Value, indices: ir.Value, *, older: OpBuilder, axis: int = 0) -> ir.Value:
    if is_never_negative(indices, op.static):
        return older.Gather(data, indices, axis=axis)
    dims = dims_of(data)
    size = op.size(data, axis if dims is None else axis % len(dims))
    return older.Gather(data, _from_front(op, indices, size), axis=axis)


def _linear(op: OpBuilder, tuples: ir.Value, sizes: Sequence[Size]) -> ir.Value:
    """Turn index tuples along the last axis into positions in the flattened axes of ``sizes``; that axis goes."""
    tuples = op.cast(tuples, _INT64)
    last = op.rank(tuples) - 1
    position: ir.Value | None = None
    for axis, size in enumerate(sizes):
        part = op.Squeeze(op.Slice(tuples, [axis], [axis + 1], [last]), [last])
        part = _from_front(op, part, size)
        position = part if position is None else op.Add(op.Mul(position, size), part)
    assert position is not None
    return position


def _tuple_length(op: OpBuilder, indices: ir.Value, op_type: str, lowest: int) -> int:
    dims = dims_of(indices)
    if not dims or not isinstance(dims[-1], int):
        raise UnsupportedOpsetError(op_type, op.opset, lowest=lowest, reason="the length of the index tuples")
    return dims[-1]


# ---- GatherElements, GatherND


@adapter("GatherElements", below=11)
def gather_elements(op: OpBuilder, data: ir.Value, indices: ir.Value, *, older: OpBuilder, axis: int = 0) -> ir.Value:
    sizes, wanted = dim_sizes(op, data, "GatherElements", 11), dim_sizes(op, indices, "GatherElements", 11)
    rank = len(sizes)
    axis %= rank
    position: ir.Value | None = None
    for a in range(rank):
        if a == axis:
            part = _from_front(op, op.cast(indices, _INT64), sizes[a])
        else:
            part = op.Unsqueeze(arange(op, wanted[a]), [other for other in range(rank) if other != a])
        position = part if position is None else op.Add(op.Mul(position, sizes[a]), part)
    assert position is not None
    return older.Gather(op.Reshape(data, [-1]), position, axis=0)


@adapter("GatherND", below=12)
def gather_nd_of_batches(
    op: OpBuilder, data: ir.Value, indices: ir.Value, *, older: OpBuilder, batch_dims: int = 0
) -> ir.Value:
    if not batch_dims:
        return older.GatherND(data, indices)
    sizes = dim_sizes(op, indices, "GatherND", 12)
    rank = len(sizes)
    tuples = [op.cast(indices, _INT64)]
    for axis in reversed(range(batch_dims)):
        counter = op.Unsqueeze(arange(op, sizes[axis]), [other for other in range(rank) if other != axis])
        tuples.insert(0, op.expand(counter, [*sizes[:-1], 1]))
    return op.GatherND(data, op.Concat(*tuples, axis=-1))


@adapter("GatherND", below=11)
def gather_nd(op: OpBuilder, data: ir.Value, indices: ir.Value, *, older: OpBuilder) -> ir.Value:
    sizes = dim_sizes(op, data, "GatherND", 11)
    length = _tuple_length(op, indices, "GatherND", 11)
    rows = op.reshape(data, [op.size_mul(*sizes[:length]), *sizes[length:]])
    # The positions count from the front.
    return older.Gather(rows, _linear(op, indices, sizes[:length]), axis=0)


# ---- ScatterElements, ScatterND


_COMBINE = {"add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}


def _scatter_combined(
    op: OpBuilder, data: ir.Value, indices: ir.Value, updates: ir.Value, axis: int, reduction: str
) -> ir.Value:
    """Combine slice after slice along ``axis``: within one, no two entries go to the same element."""
    dims = dims_of(indices)
    axis = axis if dims is None else axis % len(dims)

    def step(b: OpBuilder, state: ir.Value, index: ir.Value) -> ir.Value:
        where, what = b.Gather(indices, index, axis=axis), b.Gather(updates, index, axis=axis)
        combined = b.emit(_COMBINE[reduction], b.GatherElements(state, where, axis=axis), what)
        return b.ScatterElements(state, where, combined, axis=axis)

    return repeat_one(op, data, op.size(indices, axis), step)


@adapter("ScatterElements", below=18)
def scatter_elements_of_extremes(
    op: OpBuilder,
    data: ir.Value,
    indices: ir.Value,
    updates: ir.Value,
    *,
    older: OpBuilder,
    axis: int = 0,
    reduction: str = "none",
) -> ir.Value:
    if reduction in ("max", "min"):
        return _scatter_combined(op, data, indices, updates, axis, reduction)
    return older.ScatterElements(data, indices, updates, axis=axis, reduction=reduction)


@adapter("ScatterElements", below=16)
def scatter_elements_of_sums(
    op: OpBuilder,
    data: ir.Value,
    indices: ir.Value,
    updates: ir.Value,
    *,
    older: OpBuilder,
    axis: int = 0,
    reduction: str = "none",
) -> ir.Value:
    if reduction != "none":
        return _scatter_combined(op, data, indices, updates, axis, reduction)
    return older.ScatterElements(data, indices, updates, axis=axis)


@adapter("ScatterElements", below=11)
def scatter_elements(
    op: OpBuilder, data: ir.Value, indices: ir.Value, updates: ir.Value, *, older: OpBuilder, axis: int = 0
) -> ir.Value:
    axis %= rank_of(op, data, "ScatterElements", 11)
    if op.opset < 9:
        raise UnsupportedOpsetError("ScatterElements", op.opset, lowest=9)
    return older.Scatter(data, _from_front(op, indices, op.size(data, axis)), updates, axis=axis)


def _scatter_rows(op: OpBuilder, data: ir.Value, indices: ir.Value, updates: ir.Value, reduction: str) -> ir.Value:
    """Combine tuple after tuple of indices."""
    length = _tuple_length(op, indices, "ScatterND", 18 if reduction in ("max", "min") else 16)
    sizes = dim_sizes(op, data, "ScatterND", 16)
    tuples = op.Reshape(indices, [-1, length])
    count = op.size_mul(*op.sizes(indices)[:-1])
    rows = op.reshape(updates, [count, *sizes[length:]])

    def step(b: OpBuilder, state: ir.Value, index: ir.Value) -> ir.Value:
        where, what = b.Gather(tuples, index, axis=0), b.Gather(rows, index, axis=0)
        return b.ScatterND(state, where, b.emit(_COMBINE[reduction], b.GatherND(state, where), what))

    return repeat_one(op, data, count, step)


@adapter("ScatterND", below=18)
def scatter_nd_of_extremes(
    op: OpBuilder, data: ir.Value, indices: ir.Value, updates: ir.Value, *, older: OpBuilder, reduction: str = "none"
) -> ir.Value:
    if reduction in ("max", "min"):
        return _scatter_rows(op, data, indices, updates, reduction)
    return older.ScatterND(data, indices, updates, reduction=reduction)


@adapter("ScatterND", below=16)
def scatter_nd_of_sums(
    op: OpBuilder, data: ir.Value, indices: ir.Value, updates: ir.Value, *, older: OpBuilder, reduction: str = "none"
) -> ir.Value:
    if reduction != "none":
        return _scatter_rows(op, data, indices, updates, reduction)
    return older.ScatterND(data, indices, updates)


@adapter("ScatterND", below=11)
def scatter_nd(op: OpBuilder, data: ir.Value, indices: ir.Value, updates: ir.Value) -> ir.Value:
    sizes = dim_sizes(op, data, "ScatterND", 11)
    length = _tuple_length(op, indices, "ScatterND", 11)
    tuples = op.Reshape(indices, [-1, length])
    count, width = op.size_mul(*op.sizes(indices)[:-1]), op.size_mul(*sizes[length:])
    rows = op.reshape(data, [op.size_mul(*sizes[:length]), width])
    where = op.expand(op.Unsqueeze(_linear(op, tuples, sizes[:length]), [1]), [count, width])
    what = op.reshape(updates, [count, width])
    return op.reshape(op.ScatterElements(rows, where, what, axis=0), sizes)


@adapter("TensorScatter", below=24)
def tensor_scatter(
    op: OpBuilder,
    past_cache: ir.Value,
    update: ir.Value,
    write_indices: ir.Value | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> ir.Value:
    sizes = dim_sizes(op, update, "TensorScatter", 24)
    rank = len(sizes)
    axis %= rank
    position = op.Unsqueeze(arange(op, sizes[axis]), [a for a in range(rank) if a != axis])
    if write_indices is not None:
        position = op.Add(op.Unsqueeze(write_indices, list(range(1, rank))), position)
    if mode == "circular":
        position = op.Mod(position, op.size(past_cache, axis))
    return op.ScatterElements(past_cache, op.expand(position, sizes), update, axis=axis)


# ---- OneHot


@adapter("OneHot", below=11)
def one_hot_from_front(
    op: OpBuilder, indices: ir.Value, depth: ir.Value, values: ir.Value, *, older: OpBuilder, axis: int = -1
) -> ir.Value:
    whole = op.cast(indices, _INT64)
    if not is_never_negative(whole, op.static):
        scalar = op.Reshape(op.cast(depth, _INT64), [])
        moved = op.Add(whole, scalar)
        # What counts beyond the front gives no hot element, as what counts beyond the end does.
        moved = op.Where(op.Less(moved, 0), scalar, moved)
        whole = op.Where(op.Less(whole, 0), moved, whole)
    return older.OneHot(whole, depth, values, axis=axis)


@adapter("OneHot", below=9)
def one_hot(op: OpBuilder, indices: ir.Value, depth: ir.Value, values: ir.Value, *, axis: int = -1) -> ir.Value:
    rank = rank_of(op, indices, "OneHot", 9) + 1
    axis %= rank
    classes = arange(op, op.Reshape(op.cast(depth, _INT64), []))
    other = [a for a in range(rank) if a != axis]
    chosen = op.Equal(op.Unsqueeze(indices, [axis]), op.Unsqueeze(classes, other) if other else classes)
    off, on = (op.Squeeze(op.Slice(values, [i], [i + 1], [0]), [0]) for i in (0, 1))
    return op.Where(chosen, on, off)


# ---- TopK


@adapter("TopK", below=11)
def top_k_of_floats(
    op: OpBuilder,
    x: ir.Value,
    k: ir.Value,
    *,
    older: OpBuilder,
    axis: int = -1,
    largest: int = 1,
    sorted: int = 1,
    _outputs: int = 1,
) -> tuple[ir.Value, ...]:
    dtype = op.dtype(x)
    if dtype.is_floating_point():
        values, index = older.emit_many("TopK", 2, x if largest else op.Neg(x), k, axis=axis)
        return (values if largest else op.Neg(values), index)[:_outputs]
    rank = rank_of(op, x, "TopK", 11)
    if dtype in (_INT64, ir.DataType.UINT64):
        index = _order_of_long(op, x, k, axis % rank, largest)
    else:
        wide = op.cast(x, _DOUBLE)
        index = older.emit_many("TopK", 2, wide if largest else op.Neg(wide), k, axis=axis)[1]
    return (op.GatherElements(x, index, axis=axis), index)[:_outputs]


def _order_of_long(op: OpBuilder, x: ir.Value, k: ir.Value, axis: int, largest: int) -> ir.Value:
    """Return the indices of the ``k`` outermost 64-bit integers, by two stable sorts of their halves as doubles."""
    high, low = halves(op, x)
    if not largest:
        high, low = op.Neg(high), op.Neg(low)
    size = op.size(x, axis)
    everything = op.constant([size]) if isinstance(size, int) else op.vector([size])
    by_low = op.emit_many("TopK", 2, low, everything, axis=axis)[1]
    by_high = op.emit_many("TopK", 2, op.GatherElements(high, by_low, axis=axis), k, axis=axis)[1]
    return op.GatherElements(by_low, by_high, axis=axis)


@adapter("TopK", below=10)
def top_k_with_attribute(
    op: OpBuilder, x: ir.Value, k: ir.Value, *, older: OpBuilder, axis: int = -1, _outputs: int = 1
) -> tuple[ir.Value, ...]:
    count = static_ints(op, k, "TopK", "a number of elements", 10)
    assert count is not None
    dims = dims_of(x)
    return older.emit_many("TopK", _outputs, x, k=count[0], axis=axis if dims is None else axis % len(dims))
