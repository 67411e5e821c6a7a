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
from onnxops_decomp.spec.inference import dims_of, is_nonnegative
from onnxops_decomp.spec.traits import Trait, has_trait

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

_BOOL, _INT64, _DOUBLE = ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.DOUBLE


# ---- indices that count from the end


def _is_positive(op: OpBuilder, value: ir.Value | None) -> bool:
    """Tell whether indices are known not to be negative, from how they are made."""
    for _ in range(8):
        array = op.static(value)
        if array is not None:
            return bool((array >= 0).all())
        if value is not None and is_nonnegative(value):
            return True
        node = None if value is None else value.producer()
        if node is None:
            return False
        if has_trait(node.op_type, Trait.COUNTS) or (node.op_type == "TopK" and value is node.outputs[1]):
            return True
        if node.op_type != "Cast" and not has_trait(node.op_type, Trait.MOVES):
            return False
        value = node.inputs[0]
    return False


def _from_front(op: OpBuilder, index: ir.Value, size: Size) -> ir.Value:
    """Count indices from the front of an axis of ``size``."""
    if _is_positive(op, index):
        return index
    newest = op.newest
    array = op.static(index)
    if array is not None and isinstance(size, int):
        return op.constant(np.where(array < 0, array + size, array), op.dtype(index))
    moved = newest.Add(index, newest.cast(size, op.dtype(index)) if isinstance(size, ir.Value) else size)
    return newest.Where(newest.Less(index, 0), moved, index)


@adapter("Gather", below=11)
def gather(op: OpBuilder, data: ir.Value, indices: ir.Value, *, axis: int = 0) -> ir.Value:
    if _is_positive(op, indices):
        return op.Gather(data, indices, axis=axis)
    dims = dims_of(data)
    size = op.newest.size(data, axis if dims is None else axis % len(dims))
    return op.Gather(data, _from_front(op, indices, size), axis=axis)


def _linear(op: OpBuilder, tuples: ir.Value, sizes: Sequence[Size]) -> ir.Value:
    """Turn index tuples along the last axis into positions in the flattened axes of ``sizes``; that axis goes."""
    newest = op.newest
    tuples = newest.cast(tuples, _INT64)
    last = op.rank(tuples) - 1
    position: ir.Value | None = None
    for axis, size in enumerate(sizes):
        part = newest.Squeeze(newest.Slice(tuples, [axis], [axis + 1], [last]), [last])
        part = _from_front(op, part, size)
        position = part if position is None else newest.Add(newest.Mul(position, size), part)
    assert position is not None
    return position


def _tuple_length(op: OpBuilder, indices: ir.Value, op_type: str, lowest: int) -> int:
    dims = dims_of(indices)
    if not dims or not isinstance(dims[-1], int):
        raise UnsupportedOpsetError(op_type, op.opset, lowest=lowest, reason="the length of the index tuples")
    return dims[-1]


# ---- GatherElements, GatherND


@adapter("GatherElements", below=11)
def gather_elements(op: OpBuilder, data: ir.Value, indices: ir.Value, *, axis: int = 0) -> ir.Value:
    newest = op.newest
    sizes, wanted = dim_sizes(op, data, "GatherElements", 11), dim_sizes(op, indices, "GatherElements", 11)
    rank = len(sizes)
    axis %= rank
    position: ir.Value | None = None
    for a in range(rank):
        if a == axis:
            part = _from_front(op, newest.cast(indices, _INT64), sizes[a])
        else:
            part = newest.Unsqueeze(arange(op, wanted[a]), [other for other in range(rank) if other != a])
        position = part if position is None else newest.Add(newest.Mul(position, sizes[a]), part)
    assert position is not None
    return op.Gather(newest.Reshape(data, [-1]), position, axis=0)


@adapter("GatherND", below=12)
def gather_nd_of_batches(op: OpBuilder, data: ir.Value, indices: ir.Value, *, batch_dims: int = 0) -> ir.Value:
    if not batch_dims:
        return op.GatherND(data, indices)
    newest = op.newest
    sizes = dim_sizes(op, indices, "GatherND", 12)
    rank = len(sizes)
    tuples = [newest.cast(indices, _INT64)]
    for axis in reversed(range(batch_dims)):
        counter = newest.Unsqueeze(arange(op, sizes[axis]), [other for other in range(rank) if other != axis])
        tuples.insert(0, newest.expand(counter, [*sizes[:-1], 1]))
    return newest.GatherND(data, newest.Concat(*tuples, axis=-1))


@adapter("GatherND", below=11)
def gather_nd(op: OpBuilder, data: ir.Value, indices: ir.Value) -> ir.Value:
    newest = op.newest
    sizes = dim_sizes(op, data, "GatherND", 11)
    length = _tuple_length(op, indices, "GatherND", 11)
    rows = newest.reshape(data, [newest.size_mul(*sizes[:length]), *sizes[length:]])
    return op.Gather(rows, _linear(op, indices, sizes[:length]), axis=0)


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

    return repeat_one(op, data, op.newest.size(indices, axis), step)


@adapter("ScatterElements", below=18)
def scatter_elements_of_extremes(
    op: OpBuilder, data: ir.Value, indices: ir.Value, updates: ir.Value, *, axis: int = 0, reduction: str = "none"
) -> ir.Value:
    if reduction in ("max", "min"):
        return _scatter_combined(op, data, indices, updates, axis, reduction)
    return op.ScatterElements(data, indices, updates, axis=axis, reduction=reduction)


@adapter("ScatterElements", below=16)
def scatter_elements_of_sums(
    op: OpBuilder, data: ir.Value, indices: ir.Value, updates: ir.Value, *, axis: int = 0, reduction: str = "none"
) -> ir.Value:
    if reduction != "none":
        return _scatter_combined(op, data, indices, updates, axis, reduction)
    return op.ScatterElements(data, indices, updates, axis=axis)


@adapter("ScatterElements", below=11)
def scatter_elements(op: OpBuilder, data: ir.Value, indices: ir.Value, updates: ir.Value, *, axis: int = 0) -> ir.Value:
    axis %= rank_of(op, data, "ScatterElements", 11)
    if op.opset < 9:
        raise UnsupportedOpsetError("ScatterElements", op.opset, lowest=9)
    return op.Scatter(data, _from_front(op, indices, op.newest.size(data, axis)), updates, axis=axis)


def _scatter_rows(op: OpBuilder, data: ir.Value, indices: ir.Value, updates: ir.Value, reduction: str) -> ir.Value:
    """Combine tuple after tuple of indices."""
    newest = op.newest
    length = _tuple_length(op, indices, "ScatterND", 18 if reduction in ("max", "min") else 16)
    sizes = dim_sizes(op, data, "ScatterND", 16)
    tuples = newest.Reshape(indices, [-1, length])
    count = newest.size_mul(*newest.sizes(indices)[:-1])
    rows = newest.reshape(updates, [count, *sizes[length:]])

    def step(b: OpBuilder, state: ir.Value, index: ir.Value) -> ir.Value:
        where, what = b.Gather(tuples, index, axis=0), b.Gather(rows, index, axis=0)
        return b.ScatterND(state, where, b.emit(_COMBINE[reduction], b.GatherND(state, where), what))

    return repeat_one(op, data, count, step)


@adapter("ScatterND", below=18)
def scatter_nd_of_extremes(
    op: OpBuilder, data: ir.Value, indices: ir.Value, updates: ir.Value, *, reduction: str = "none"
) -> ir.Value:
    if reduction in ("max", "min"):
        return _scatter_rows(op, data, indices, updates, reduction)
    return op.ScatterND(data, indices, updates, reduction=reduction)


@adapter("ScatterND", below=16)
def scatter_nd_of_sums(
    op: OpBuilder, data: ir.Value, indices: ir.Value, updates: ir.Value, *, reduction: str = "none"
) -> ir.Value:
    if reduction != "none":
        return _scatter_rows(op, data, indices, updates, reduction)
    return op.ScatterND(data, indices, updates)


@adapter("ScatterND", below=11)
def scatter_nd(op: OpBuilder, data: ir.Value, indices: ir.Value, updates: ir.Value) -> ir.Value:
    newest = op.newest
    sizes = dim_sizes(op, data, "ScatterND", 11)
    length = _tuple_length(op, indices, "ScatterND", 11)
    tuples = newest.Reshape(indices, [-1, length])
    count, width = newest.size_mul(*newest.sizes(indices)[:-1]), newest.size_mul(*sizes[length:])
    rows = newest.reshape(data, [newest.size_mul(*sizes[:length]), width])
    where = newest.expand(newest.Unsqueeze(_linear(op, tuples, sizes[:length]), [1]), [count, width])
    what = newest.reshape(updates, [count, width])
    return newest.reshape(newest.ScatterElements(rows, where, what, axis=0), sizes)


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
    newest = op.newest
    sizes = dim_sizes(op, update, "TensorScatter", 24)
    rank = len(sizes)
    axis %= rank
    position = newest.Unsqueeze(arange(op, sizes[axis]), [a for a in range(rank) if a != axis])
    if write_indices is not None:
        position = newest.Add(newest.Unsqueeze(write_indices, list(range(1, rank))), position)
    if mode == "circular":
        position = newest.Mod(position, newest.size(past_cache, axis))
    return newest.ScatterElements(past_cache, newest.expand(position, sizes), update, axis=axis)


# ---- OneHot


@adapter("OneHot", below=11)
def one_hot_from_front(
    op: OpBuilder, indices: ir.Value, depth: ir.Value, values: ir.Value, *, axis: int = -1
) -> ir.Value:
    newest = op.newest
    whole = newest.cast(indices, _INT64)
    if not _is_positive(op, whole):
        scalar = newest.Reshape(newest.cast(depth, _INT64), [])
        moved = newest.Add(whole, scalar)
        # What counts beyond the front gives no hot element, as what counts beyond the end does.
        moved = newest.Where(newest.Less(moved, 0), scalar, moved)
        whole = newest.Where(newest.Less(whole, 0), moved, whole)
    return op.OneHot(whole, depth, values, axis=axis)


@adapter("OneHot", below=9)
def one_hot(op: OpBuilder, indices: ir.Value, depth: ir.Value, values: ir.Value, *, axis: int = -1) -> ir.Value:
    newest = op.newest
    rank = rank_of(op, indices, "OneHot", 9) + 1
    axis %= rank
    classes = arange(op, newest.Reshape(newest.cast(depth, _INT64), []))
    other = [a for a in range(rank) if a != axis]
    chosen = newest.Equal(newest.Unsqueeze(indices, [axis]), newest.Unsqueeze(classes, other) if other else classes)
    off, on = (newest.Squeeze(newest.Slice(values, [i], [i + 1], [0]), [0]) for i in (0, 1))
    return newest.Where(chosen, on, off)


# ---- TopK


@adapter("TopK", below=11)
def top_k_of_floats(
    op: OpBuilder, x: ir.Value, k: ir.Value, *, axis: int = -1, largest: int = 1, sorted: int = 1, _outputs: int = 1
) -> Sequence[ir.Value]:
    newest, dtype = op.newest, op.dtype(x)
    if dtype.is_floating_point():
        values, index = op.emit_many("TopK", 2, x if largest else newest.Neg(x), k, axis=axis)
        return (values if largest else newest.Neg(values), index)[:_outputs]
    rank = rank_of(op, x, "TopK", 11)
    if dtype in (_INT64, ir.DataType.UINT64):
        index = _order_of_long(op, x, k, axis % rank, largest)
    else:
        wide = newest.cast(x, _DOUBLE)
        index = op.emit_many("TopK", 2, wide if largest else newest.Neg(wide), k, axis=axis)[1]
    return (newest.GatherElements(x, index, axis=axis), index)[:_outputs]


def _order_of_long(op: OpBuilder, x: ir.Value, k: ir.Value, axis: int, largest: int) -> ir.Value:
    """Return the indices of the ``k`` outermost 64-bit integers, by two stable sorts of their halves as doubles."""
    newest = op.newest
    high, low = halves(newest, x)
    if not largest:
        high, low = newest.Neg(high), newest.Neg(low)
    size = newest.size(x, axis)
    everything = newest.constant([size]) if isinstance(size, int) else newest.vector([size])
    by_low = op.emit_many("TopK", 2, low, everything, axis=axis)[1]
    by_high = op.emit_many("TopK", 2, newest.GatherElements(high, by_low, axis=axis), k, axis=axis)[1]
    return newest.GatherElements(by_low, by_high, axis=axis)


@adapter("TopK", below=10)
def top_k_with_attribute(
    op: OpBuilder, x: ir.Value, k: ir.Value, *, axis: int = -1, _outputs: int = 1
) -> Sequence[ir.Value]:
    count = static_ints(op, k, "TopK", "a number of elements", 10)
    assert count is not None
    dims = dims_of(x)
    return op.emit_many("TopK", _outputs, x, k=count[0], axis=axis if dims is None else axis % len(dims))
