"""Elements picked by tensors: index, gather, take, nonzero, and selection by a mask."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import torch

from onnxops_decomp.errors import LoweringError
from onnxops_decomp.lowerings.layout.joining import torch_broadcast_sizes
from onnxops_decomp.lowerings.layout.shapes import axis_in, flattened, unsqueeze_at
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.spec.inference import dims_of, same_dim

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

__all__ = ["IndexPlan", "as_index", "as_mask", "indices_in_range", "nonzero_rows", "plan_index"]

aten = torch.ops.aten

_BOOL, _INT64 = ir.DataType.BOOL, ir.DataType.INT64
_NONZERO_DTYPES = (_BOOL, ir.DataType.FLOAT, ir.DataType.INT32, _INT64, ir.DataType.UINT8)


def as_index(op: OpBuilder, index: ir.Value) -> ir.Value:
    """Return an index tensor as INT64, which all of ONNX's indexing operators take."""
    return op.cast(index, _INT64)


def nonzero_rows(op: OpBuilder, value: ir.Value) -> ir.Value:
    """Return one row of positions per axis; a 0-d tensor counts as one element of one axis."""
    if op.rank(value) == 0:
        value = op.Reshape(value, [1])
    return op.NonZero(value if value.dtype in _NONZERO_DTYPES else op.cast(value, _BOOL))


# ---- index.Tensor


@dataclasses.dataclass(frozen=True)
class IndexPlan:
    """How an indexing expression is done by GatherND or ScatterND.

    Attributes:
        value: The tensor that is indexed, with an axis added for each 0-d mask.
        axes: The indexed axes of ``value``, ascending.
        indices: INT64 tensors for them, not broadcast yet.
        first: Axis of the result where the broadcast axes of the indices stand.
    """

    value: ir.Value
    axes: list[int]
    indices: list[ir.Value]
    first: int

    @property
    def front(self) -> list[int]:
        """Permutation that brings the indexed axes to the front."""
        rank = len(dims_of(self.value) or ())
        return [*self.axes, *(axis for axis in range(rank) if axis not in self.axes)]


def plan_index(op: OpBuilder, value: ir.Value, indices: Sequence[ir.Value | None]) -> IndexPlan:
    """Resolve masks and omitted indices as torch does."""
    axes: list[int] = []
    found: list[ir.Value] = []
    of_masks: list[range] = []
    axis = 0
    for index in indices:
        if index is None:
            axis += 1
            continue
        if index.dtype not in (_BOOL, ir.DataType.UINT8):
            axes.append(axis)
            found.append(as_index(op, index))
            axis += 1
            continue
        rank = op.rank(index)
        if rank == 0:
            value = op.Unsqueeze(value, [axis])
        rows = nonzero_rows(op, index)
        of_masks.append(range(len(found), len(found) + max(rank, 1)))
        for row in range(max(rank, 1)):
            found.append(op.Squeeze(rows, [0]) if rank < 2 else op.Gather(rows, row, axis=0))
            axes.append(axis)
            axis += 1
    consecutive = not axes or axes == list(range(axes[0], axes[-1] + 1))
    _broadcast_masked(op, found, of_masks)
    return IndexPlan(value, axes, found, axes[0] if consecutive and axes else 0)


def _broadcast_masked(op: OpBuilder, indices: list[ir.Value], of_masks: Sequence[range]) -> None:
    """Broadcast what several masks select, in place: a single place goes with all that another mask selects."""
    if len(of_masks) < 2:
        return
    wide = indices[of_masks[0].start]
    for own in of_masks[1:]:
        wide = op.Expand(wide, op.Shape(indices[own.start]))
    for place in (place for own in of_masks for place in own):
        indices[place] = op.Expand(indices[place], op.Shape(wide))


def stacked_indices(op: OpBuilder, plan: IndexPlan) -> tuple[ir.Value, int]:
    """Return the broadcast indices with the indexed axes as last dimension, and the rank of the broadcast part."""
    sizes = torch_broadcast_sizes(op, plan.indices)
    columns = [op.Unsqueeze(op.expand(index, sizes), [len(sizes)]) for index in plan.indices]
    return op.Concat(*columns, axis=len(sizes)), len(sizes)


@lowering(aten.index.Tensor, aten.index.Tensor_hacked_twin, aten._unsafe_index.Tensor)
def index(op: OpBuilder, self: ir.Value, indices: Sequence[ir.Value | None]) -> ir.Value:
    given = [(axis, item) for axis, item in enumerate(indices) if item is not None]
    if len(given) == 1:
        axis, only = given[0]
        if only.dtype in (_BOOL, ir.DataType.UINT8):
            if op.rank(only):
                return _masked_part(op, self, only, axis)
        else:
            return op.Gather(self, only if only.dtype == ir.DataType.INT32 else as_index(op, only), axis=axis)
    plan = plan_index(op, self, indices)
    if not plan.indices:
        return self
    if len(plan.indices) == 1:
        return op.Gather(plan.value, plan.indices[0], axis=plan.axes[0])
    outer = _outer_index(op, plan)
    if outer is not None:
        return outer
    stacked, rank = stacked_indices(op, plan)
    picked = op.GatherND(op.Transpose(plan.value, perm=plan.front), stacked)
    if plan.first == 0:
        return picked
    # The broadcast axes come first in GatherND's result; torch puts them where the indexed axes stood.
    whole = op.rank(picked)
    lead = range(rank, rank + plan.first)
    return op.Transpose(picked, perm=[*lead, *range(rank), *range(rank + plan.first, whole)])


def _outer_index(op: OpBuilder, plan: IndexPlan) -> ir.Value | None:
    """Index by tensors that vary along different axes, such as ``x[i[:, None], j]``, one axis after the other.

    Returns:
        The result, or None if the indices do not have that form.
    """
    shapes = [dims_of(index) or () for index in plan.indices]
    rank = max(map(len, shapes))
    places = [[rank - len(dims) + axis for axis, dim in enumerate(dims) if dim != 1] for dims in shapes]
    taken = [place for own in places for place in own]
    if not all(places) or len(set(taken)) < len(taken):
        return None
    # What each axis of the result so far stands for: an axis of the broadcast indices, or one of the tensor.
    axes: list[tuple[str, int]] = [("own", axis) for axis in range(op.rank(plan.value))]
    picked = plan.value
    for axis, index, own in zip(plan.axes, plan.indices, places, strict=True):
        ones = [other for other in range(op.rank(index)) if other + rank - op.rank(index) not in own]
        vector = op.Squeeze(index, ones)
        position = axes.index(("own", axis))
        if not _is_whole_axis(op, vector, picked, position):
            picked = op.Gather(picked, vector, axis=position)
        axes[position : position + 1] = [("index", place) for place in own]
    rest = [("own", axis) for axis in range(op.rank(plan.value)) if axis not in plan.axes]
    order = [*rest[: plan.first], *(("index", place) for place in sorted(taken)), *rest[plan.first :]]
    picked = op.Transpose(picked, perm=[axes.index(axis) for axis in order])
    return unsqueeze_at(op, picked, [plan.first + place for place in range(rank) if place not in taken])


def _is_whole_axis(op: OpBuilder, vector: ir.Value, value: ir.Value, axis: int) -> bool:
    """Tell whether ``vector`` is known to count from 0 through the whole axis."""
    length, size = dims_of(vector), dims_of(value)
    if length is None or size is None or len(length) != 1 or not same_dim(length[0], size[axis]):
        return False
    array, node = op.static(vector), vector.producer()
    if array is not None:
        return bool((array == np.arange(array.size)).all())
    if node is None or node.op_type != "Range" or node.domain:
        return False
    start, step = op.static(node.inputs[0]), op.static(node.inputs[2])
    return start is not None and step is not None and start.item() == 0 and step.item() == 1


def _masked_part(op: OpBuilder, value: ir.Value, mask: ir.Value, axis: int) -> ir.Value:
    """Keep what a mask over the axes from ``axis`` on selects."""
    count = op.rank(mask)
    merged = flattened(op, value, axis, axis + count - 1)
    mask = flattened(op, op.cast(mask, _BOOL))
    if op.rank(merged) == 1:
        return op.Compress(merged, mask)
    return op.Compress(merged, mask, axis=axis)


@lowering(aten._unsafe_masked_index.default)
def unsafe_masked_index(
    op: OpBuilder, self: ir.Value, mask: ir.Value, indices: Sequence[ir.Value | None], fill: bool | int | float
) -> ir.Value:
    """Positions outside the mask may hold indices out of range: they read element 0 and are filled afterwards."""
    picked = index(op, self, indices_in_range(op, self, indices))
    return op.Where(mask, picked, op.constant(fill, op.dtype(self)))


def indices_in_range(op: OpBuilder, value: ir.Value, indices: Sequence[ir.Value | None]) -> list[ir.Value | None]:
    """Replace indices that lie outside ``value`` by 0."""
    safe: list[ir.Value | None] = []
    for axis, item in enumerate(indices):
        if item is not None:
            inside = op.And(op.Less(item, op.size(value, axis)), op.GreaterOrEqual(item, 0))
            item = op.Where(inside, item, op.constant(0, op.dtype(item)))
        safe.append(item)
    return safe


@lowering(aten.index_select.default)
def index_select(op: OpBuilder, self: ir.Value, dim: int, index: ir.Value) -> ir.Value:
    if op.rank(self) == 0:
        return self
    if op.rank(index) == 0:
        index = op.Reshape(index, [1])
    return op.Gather(self, index, axis=axis_in(op.rank(self), dim))


@lowering(aten.gather.default)
def gather(op: OpBuilder, self: ir.Value, dim: int, index: ir.Value, *, sparse_grad: bool = False) -> ir.Value:
    rank = op.rank(index)
    if 0 in (dims_of(index) or ()):
        # An empty index may have any rank.
        return op.expand(op.constant(0, op.dtype(self)), op.sizes(index))
    if op.rank(self) == 0:
        return self if rank == 0 else op.expand(self, op.sizes(index))
    if rank == 0:
        return op.Squeeze(op.GatherElements(self, op.Reshape(index, [1]), axis=0), [0])
    return op.GatherElements(self, index, axis=axis_in(rank, dim))


@lowering(aten.take_along_dim.default)
def take_along_dim(op: OpBuilder, self: ir.Value, indices: ir.Value, dim: int | None = None) -> ir.Value:
    if dim is None:
        return op.GatherElements(flattened(op, self), flattened(op, indices), axis=0)
    rank = op.rank(self)
    axis = axis_in(rank, dim)
    wide = torch_broadcast_sizes(op, [self, indices])

    def with_own_axis(value: ir.Value) -> list[Size]:
        return [*wide[:axis], op.size(value, axis), *wide[axis + 1 :]]

    return op.GatherElements(
        op.expand(self, with_own_axis(self)), op.expand(indices, with_own_axis(indices)), axis=axis
    )


@lowering(aten.take.default)
def take(op: OpBuilder, self: ir.Value, index: ir.Value) -> ir.Value:
    return op.Gather(flattened(op, self), index, axis=0)


# ---- masks


def as_mask(op: OpBuilder, mask: ir.Value) -> ir.Value:
    """Return the mask of ``masked_select`` and its like as booleans.

    Raises:
        LoweringError: If it is of dtype uint8, which torch takes for a mask in other operators only.
    """
    if mask.dtype == ir.DataType.UINT8:
        raise LoweringError("As in torch, it takes a mask of dtype bool, not uint8.")
    return op.cast(mask, _BOOL)


@lowering(aten.masked_select.default)
def masked_select(op: OpBuilder, self: ir.Value, mask: ir.Value) -> ir.Value:
    sizes = torch_broadcast_sizes(op, [self, mask])
    value, wide = (flattened(op, op.expand(x, sizes)) for x in (self, as_mask(op, mask)))
    return op.Compress(value, wide)


@lowering(aten.nonzero.default, aten.argwhere.default)
def nonzero(op: OpBuilder, self: ir.Value) -> ir.Value:
    positions = op.Transpose(nonzero_rows(op, self), perm=[1, 0])
    if op.rank(self) == 0:
        return op.Slice(positions, [0], [0], [1])
    return positions


@lowering(aten.nonzero_numpy.default, aten.where.default)
def nonzero_numpy(op: OpBuilder, self: ir.Value) -> list[ir.Value]:
    rows = nonzero_rows(op, self)
    return [op.Gather(rows, axis, axis=0) for axis in range(max(op.rank(self), 1))]


@lowering(aten.nonzero_static.default)
def nonzero_static(op: OpBuilder, self: ir.Value, *, size: int, fill_value: int = -1) -> ir.Value:
    found = nonzero(op, self)
    if op.rank(self) == 0:
        return op.expand(op.constant([[]], _INT64), [size, 0])
    padded = op.Pad(found, [0, 0, size, 0], fill_value)
    return op.Slice(padded, [0], [size], [0])
