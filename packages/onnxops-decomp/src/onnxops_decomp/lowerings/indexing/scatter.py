"""Tensors with some elements replaced: index_put, scatter and their relatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import torch

from onnxops_decomp.lowerings.indexing.picking import (
    IndexPlan,
    as_index,
    as_mask,
    indices_in_range,
    nonzero_rows,
    plan_index,
    stacked_indices,
)
from onnxops_decomp.lowerings.layout.joining import torch_broadcast_sizes
from onnxops_decomp.lowerings.layout.shapes import axis_in, flattened, unsqueeze_at
from onnxops_decomp.lowerings.layout.slicing import from_start, take_slice
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.spec.inference import dims_of, same_dim

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size
    from onnxops_decomp.dtypes import Operand

aten = torch.ops.aten

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_BOOL, _INT64 = ir.DataType.BOOL, ir.DataType.INT64


def _like(op: OpBuilder, value: Operand, self: ir.Value) -> ir.Value:
    """Return a replacement in the dtype of the tensor that it goes into."""
    dtype = op.dtype(self)
    return op.cast(value, dtype) if isinstance(value, ir.Value) else op.constant(value, dtype)


def _scatter_nd(op: OpBuilder, data: ir.Value, indices: ir.Value, updates: ir.Value, reduction: str) -> ir.Value:
    if reduction == "none" or data.dtype not in _HALVES:
        return op.ScatterND(data, indices, updates, reduction=reduction)
    # Runtimes reduce in single precision at least, or have no kernel.
    wide = [op.cast(value, ir.DataType.FLOAT) for value in (data, updates)]
    return op.cast(op.ScatterND(wide[0], indices, wide[1], reduction=reduction), op.dtype(data))


# ---- index_put


def _is_single(value: ir.Value) -> bool:
    return all(isinstance(dim, int) and dim == 1 for dim in dims_of(value) or ())


@lowering(
    aten.index_put.default,
    aten.index_put.hacked_twin,
    aten._unsafe_index_put.default,
    aten._index_put_impl.default,
)
def index_put(
    op: OpBuilder,
    self: ir.Value,
    indices: Sequence[ir.Value | None],
    values: ir.Value,
    accumulate: bool = False,
    unsafe: bool = False,
) -> ir.Value:
    values = _like(op, values, self)
    given = [(axis, item) for axis, item in enumerate(indices) if item is not None]
    if (
        len(given) == 1
        and given[0][1].dtype == _BOOL
        and _is_single(values)
        and op.rank(values) <= min(op.rank(self), 1)
    ):
        axis, mask = given[0]
        replaced = op.Add(self, values) if accumulate and self.dtype != _BOOL else values
        if not (accumulate and self.dtype == _BOOL):
            rest = range(op.rank(mask), op.rank(self) - axis)
            return op.Where(unsqueeze_at(op, mask, list(rest)), replaced, self)
    plan = plan_index(op, self, indices)
    if not plan.indices:
        return op.expand(op.Add(self, values) if accumulate else values, op.sizes(self))
    if self.dtype == _BOOL and accumulate:
        # The sum of booleans is their disjunction.
        plan = IndexPlan(op.cast(plan.value, ir.DataType.INT32), plan.axes, plan.indices, plan.first)
        return op.cast(_put(op, plan, op.cast(values, ir.DataType.INT32), "add"), _BOOL)
    result = _put(op, plan, values, "add" if accumulate else "none")
    return result if plan.value is self else op.reshape(result, op.sizes(self))


def _put(op: OpBuilder, plan: IndexPlan, values: ir.Value, reduction: str) -> ir.Value:
    if len(plan.indices) == 1 and plan.axes[0] > 0 and op.rank(plan.indices[0]) == 1:
        return _put_along(op, plan, values, reduction)
    stacked, rank = stacked_indices(op, plan)
    sizes = op.sizes(plan.value)
    broadcast = op.sizes(stacked)[:-1]
    rest = [sizes[axis] for axis in plan.front[len(plan.axes) :]]
    wanted = [*rest[: plan.first], *broadcast, *rest[plan.first :]]
    updates = op.expand(values, wanted)
    if plan.first:
        # torch has the broadcast axes of the values where the indexed axes stand; ScatterND wants them first.
        order = [*range(plan.first, plan.first + rank), *range(plan.first), *range(plan.first + rank, len(wanted))]
        updates = op.Transpose(updates, perm=order)
    moved = op.Transpose(plan.value, perm=plan.front)
    result = _scatter_nd(op, moved, stacked, updates, reduction)
    return op.Transpose(result, perm=[int(axis) for axis in np.argsort(plan.front)])


def _put_along(op: OpBuilder, plan: IndexPlan, values: ir.Value, reduction: str) -> ir.Value:
    """Write along one inner axis without moving it to the front."""
    axis, index = plan.axes[0], plan.indices[0]
    sizes = op.sizes(plan.value)
    wanted = [*sizes[:axis], op.size(index, 0), *sizes[axis + 1 :]]
    return op.ScatterElements(
        plan.value, _along(op, index, wanted, axis), op.expand(values, wanted), axis=axis, reduction=reduction
    )


def _along(op: OpBuilder, index: ir.Value, sizes: Sequence[Size], axis: int) -> ir.Value:
    """Spread a 1-D index along ``axis`` of a tensor of the given sizes."""
    rank = len(sizes)
    return op.expand(unsqueeze_at(op, index, range(1, rank - axis)), sizes)


@lowering(aten._unsafe_masked_index_put_accumulate.default)
def unsafe_masked_index_put_accumulate(
    op: OpBuilder, self: ir.Value, mask: ir.Value, indices: Sequence[ir.Value | None], values: ir.Value
) -> ir.Value:
    kept = op.Where(mask, values, op.constant(0, op.dtype(values)))
    return index_put(op, self, indices_in_range(op, self, indices), kept, accumulate=True)


# ---- scatter along one axis

_REDUCTIONS = {
    "sum": "add",
    "add": "add",
    "prod": "mul",
    "multiply": "mul",
    "amax": "max",
    "amin": "min",
    "mean": "add",
}


def _scatter(
    op: OpBuilder, self: ir.Value, dim: int, index: ir.Value, src: ir.Value, reduction: str = "none"
) -> ir.Value:
    """Scatter ``src``, of which the part of the size of ``index`` counts."""
    if 0 in (dims_of(index) or ()):
        return self
    if self.dtype == _BOOL and reduction != "none":
        number = ir.DataType.INT32
        return op.cast(_scatter(op, op.cast(self, number), dim, index, op.cast(src, number), reduction), _BOOL)
    if self.dtype in _HALVES and reduction != "none":
        wide = (op.cast(self, ir.DataType.FLOAT), dim, index, op.cast(src, ir.DataType.FLOAT))
        return op.cast(_scatter(op, *wide, reduction), op.dtype(self))
    rank = op.rank(self)
    index = as_index(op, index)
    if rank == 0:
        one = [op.reshape(x, [1]) for x in (self, index, src)]
        return op.Squeeze(op.ScatterElements(*one, axis=0, reduction=reduction), [0])
    if op.rank(index) == 0:
        index, src = op.Reshape(index, [1]), op.reshape(src, [1])
    return op.ScatterElements(self, index, _cropped(op, src, index), axis=axis_in(rank, dim), reduction=reduction)


def _cropped(op: OpBuilder, src: ir.Value, index: ir.Value) -> ir.Value:
    if op.rank(src) == 0:
        return op.expand(src, op.sizes(index))
    for axis, (own, wanted) in enumerate(zip(dims_of(src) or (), dims_of(index) or (), strict=False)):
        if not same_dim(own, wanted):
            src = take_slice(op, src, axis, 0, op.size(index, axis))
    return src


@lowering(aten.scatter.src, aten.scatter.value, aten.scatter.reduce, aten.scatter.value_reduce)
def scatter(
    op: OpBuilder, self: ir.Value, dim: int, index: ir.Value, src: Operand, *, reduce: str | None = None
) -> ir.Value:
    updates = _spread(op, src, self, index)
    return _scatter(op, self, dim, index, updates, "none" if reduce is None else _REDUCTIONS[reduce])


def _spread(op: OpBuilder, src: Operand, self: ir.Value, index: ir.Value) -> ir.Value:
    value = _like(op, src, self)
    return op.expand(value, op.sizes(index)) if op.rank(value) == 0 else value


@lowering(aten.scatter_add.default)
def scatter_add(op: OpBuilder, self: ir.Value, dim: int, index: ir.Value, src: ir.Value) -> ir.Value:
    return _scatter(op, self, dim, index, src, "add")


@lowering(aten.scatter_reduce.two)
def scatter_reduce(
    op: OpBuilder,
    self: ir.Value,
    dim: int,
    index: ir.Value,
    src: ir.Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> ir.Value:
    if 0 in (dims_of(index) or ()):
        return self
    start = self if include_self else _scatter(op, self, dim, index, _neutral(op, self, index, reduce))
    result = _scatter(op, start, dim, index, src, _REDUCTIONS[reduce])
    if reduce != "mean":
        return result
    return _divided(op, result, _counts(op, self, dim, index, include_self))


def _neutral(op: OpBuilder, self: ir.Value, index: ir.Value, reduce: str) -> ir.Value:
    """Return the element that a reduction starts from, in the size of ``index``."""
    dtype = op.dtype(self)
    number: Any
    if reduce in ("amax", "amin"):
        if dtype.is_floating_point():
            number = -np.inf if reduce == "amax" else np.inf
        elif dtype == _BOOL:
            number = reduce == "amin"
        else:
            info = np.iinfo(dtype.numpy())
            number = info.min if reduce == "amax" else info.max
    else:
        number = 1 if reduce == "prod" else 0
    return op.expand(op.constant(number, dtype), op.sizes(index))


def _counts(op: OpBuilder, self: ir.Value, dim: int, index: ir.Value, include_self: bool) -> ir.Value:
    dtype = op.dtype(self)
    initial = op.expand(op.constant(1 if include_self else 0, dtype), op.sizes(self))
    ones = op.expand(op.constant(1, dtype), op.sizes(index))
    counts = _scatter(op, initial, dim, index, ones, "add")
    return counts if include_self else op.Max(counts, op.constant(1, dtype))


def _divided(op: OpBuilder, total: ir.Value, counts: ir.Value) -> ir.Value:
    return op.Div(total, counts) if op.dtype(total).is_floating_point() else op.floor_div(total, counts)


# ---- an index along one axis


def _expanded_index(op: OpBuilder, index: ir.Value, source: ir.Value, axis: int) -> ir.Value:
    flat = as_index(op, op.Reshape(index, [1]) if op.rank(index) == 0 else index)
    return _along(op, flat, op.sizes(source), axis)


def _index_scatter(
    op: OpBuilder, self: ir.Value, dim: int, index: ir.Value, source: ir.Value, reduction: str
) -> ir.Value:
    rank = op.rank(self)
    if rank == 0:
        index = flattened(op, index)
        return op.Squeeze(
            _index_scatter(op, op.Unsqueeze(self, [0]), 0, index, op.reshape(source, [-1]), reduction), [0]
        )
    axis = axis_in(rank, dim)
    if op.rank(source) < rank:
        source = op.Unsqueeze(source, [axis])
    if axis == 0 and self.dtype != _BOOL:
        flat = as_index(op, op.Reshape(index, [1]) if op.rank(index) == 0 else index)
        return _scatter_nd(op, self, op.Unsqueeze(flat, [1]), source, reduction)
    return _scatter(op, self, axis, _expanded_index(op, index, source, axis), source, reduction)


@lowering(aten.index_add.default)
def index_add(
    op: OpBuilder, self: ir.Value, dim: int, index: ir.Value, source: ir.Value, *, alpha: Operand = 1
) -> ir.Value:
    if not (isinstance(alpha, int | float) and alpha == 1):
        source = op.And(source, op.constant(bool(alpha))) if self.dtype == _BOOL else op.Mul(source, alpha)
    return _index_scatter(op, self, dim, index, source, "add")


@lowering(aten.index_copy.default)
def index_copy(op: OpBuilder, self: ir.Value, dim: int, index: ir.Value, source: ir.Value) -> ir.Value:
    return _index_scatter(op, self, dim, index, source, "none")


@lowering(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(op: OpBuilder, self: ir.Value, dim: int, index: ir.Value, value: Operand) -> ir.Value:
    rank = op.rank(self)
    axis = axis_in(rank, dim)
    whole = op.Unsqueeze(self, [0]) if rank == 0 else self
    flat = as_index(op, op.Reshape(index, [1]) if op.rank(index) == 0 else index)
    unmarked = op.expand(op.constant(False), [op.size(whole, axis)])
    marks = op.expand(op.constant(True), [op.size(flat, 0)])
    mask = op.ScatterElements(unmarked, flat, marks, axis=0)
    mask = unsqueeze_at(op, mask, range(1, max(rank, 1) - axis))
    filled = op.Where(mask, _like(op, value, self), whole)
    return op.Squeeze(filled, [0]) if rank == 0 else filled


@lowering(aten.index_reduce.default)
def index_reduce(
    op: OpBuilder,
    self: ir.Value,
    dim: int,
    index: ir.Value,
    source: ir.Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> ir.Value:
    rank = op.rank(self)
    axis = axis_in(rank, dim)
    if rank == 0 or op.rank(source) < rank:
        source = op.reshape(source, [-1]) if rank == 0 else op.Unsqueeze(source, [axis])
    wide = op.Reshape(self, [1]) if rank == 0 else self
    spread = _expanded_index(op, index, source, axis)
    result = scatter_reduce(op, wide, axis, spread, source, reduce, include_self=include_self)
    return op.Squeeze(result, [0]) if rank == 0 else result


@lowering(aten.put.default)
def put(op: OpBuilder, self: ir.Value, index: ir.Value, source: ir.Value, accumulate: bool = False) -> ir.Value:
    flat = [flattened(op, x) for x in (self, index, source)]
    result = _scatter(op, flat[0], 0, flat[1], flat[2], "add" if accumulate else "none")
    return op.reshape(result, op.sizes(self))


# ---- masks and views


@lowering(aten.masked_scatter.default)
def masked_scatter(op: OpBuilder, self: ir.Value, mask: ir.Value, source: ir.Value) -> ir.Value:
    sizes = torch_broadcast_sizes(op, [self, mask])
    self, mask = (op.expand(x, sizes) for x in (self, as_mask(op, mask)))
    rows = nonzero_rows(op, mask)
    count = op.Shape(rows, start=1, end=2)
    updates = op.Slice(flattened(op, source), [0], count, [0])
    whole = op.Reshape(self, [1]) if not sizes else self
    result = op.ScatterND(whole, op.Transpose(rows, perm=[1, 0]), updates)
    return result if sizes else op.Squeeze(result, [0])


@lowering(aten.select_scatter.default)
def select_scatter(op: OpBuilder, self: ir.Value, src: ir.Value, dim: int, index: Size) -> ir.Value:
    rank = op.rank(self)
    axis = axis_in(rank, dim)
    size = op.size(self, axis)
    if isinstance(size, int) and isinstance(index, int):
        mask = op.constant(np.arange(size) == index % size)
    else:
        mask = op.Equal(op.Range(0, size, 1), from_start(op, index, size))
    mask = unsqueeze_at(op, mask, range(1, rank - axis))
    return op.Where(mask, op.Unsqueeze(_like(op, src, self), [axis]), self)


@lowering(aten.slice_scatter.default)
def slice_scatter(
    op: OpBuilder,
    self: ir.Value,
    src: ir.Value,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: Size = 1,
) -> ir.Value:
    axis = axis_in(op.rank(self), dim)
    src = _like(op, src, self)
    begin: Size = 0 if start is None else start
    size = op.size(self, axis)
    if isinstance(begin, int) and begin < 0:
        begin = op.size_max(op.size_add(size, begin), 0)
    if isinstance(begin, int) and isinstance(size, int):
        begin = min(begin, size)
    length = op.size(src, axis)
    if isinstance(step, int) and step == 1:
        before = [] if begin == 0 else [take_slice(op, self, axis, 0, begin)]
        if not isinstance(begin, int):
            # Where it starts may count from the end, or lie outside; how long it is follows from that.
            begin, length = op.size(before[0], axis), op.Shape(src, start=axis, end=axis + 1)
        after = take_slice(op, self, axis, op.size_add(begin, length), None)
        kept = [part for part in (*before, src, after) if (dims_of(part) or (1,))[axis] != 0]
        if same_dim(op.dim(size), op.dim(length)):
            return src
        return op.Concat(*kept, axis=axis)
    if isinstance(length, int) and length == 0:
        return self
    if not isinstance(begin, int):
        begin = op.Max(from_start(op, begin, size), 0)
    return _stepped_scatter(op, self, src, axis, begin, step)


def _stepped_scatter(op: OpBuilder, self: ir.Value, src: ir.Value, axis: int, begin: Size, step: Size) -> ir.Value:
    """Pick each position of the slice from ``src``, which may be empty, and every other one from ``self`` behind it."""
    places = op.Range(0, op.size(self, axis), 1)
    offset = op.Sub(places, begin)
    position = op.floor_div(offset, op.vector([step]))
    length = op.size(src, axis)
    inside = op.And(op.GreaterOrEqual(offset, 0), op.Less(position, length))
    mask = op.And(inside, op.Equal(op.Mod(offset, step), 0))
    picked = op.Gather(op.Concat(src, self, axis=axis), op.Where(mask, position, op.Add(places, length)), axis=axis)
    op.set_dims(picked, dims_of(self) or ())
    return picked
