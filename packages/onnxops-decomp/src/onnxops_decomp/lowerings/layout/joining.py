"""Tensors put together: cat, stack and their relatives, repetition, and broadcasting of several tensors."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.builder.sizes import is_one
from onnxops_decomp.dtypes import promote
from onnxops_decomp.lowerings.layout.shapes import atleast_2d, atleast_3d, axis_in, flattened, unsqueeze_at
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.spec.inference import dims_of, same_dim

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

__all__ = ["concatenate", "torch_broadcast_sizes"]

aten = torch.ops.aten


@lowering(aten.cat.default, aten.concat.default, aten.concatenate.default)
def concatenate(op: OpBuilder, tensors: Sequence[ir.Value], dim: int) -> ir.Value:
    """Concatenate as torch does: dtypes are promoted, and 1-D tensors without elements are left out."""
    values = promote(op, *tensors)
    kept = [value for value in values if dims_of(value) != (0,)] or values[:1]
    return op.Concat(*kept, axis=axis_in(op.rank(kept[0]), dim))


@lowering(aten.stack.default, aten._stack.default)
def stack(op: OpBuilder, tensors: Sequence[ir.Value], dim: int = 0) -> ir.Value:
    axis = range(op.rank(tensors[0]) + 1)[dim]
    return op.Concat(*(op.Unsqueeze(value, [axis]) for value in promote(op, *tensors)), axis=axis)


@lowering(aten.hstack.default)
def hstack(op: OpBuilder, tensors: Sequence[ir.Value]) -> ir.Value:
    values = [value if op.rank(value) else op.Unsqueeze(value, [0]) for value in tensors]
    return concatenate(op, values, 0 if op.rank(values[0]) == 1 else 1)


@lowering(aten.vstack.default, aten.row_stack.default)
def vstack(op: OpBuilder, tensors: Sequence[ir.Value]) -> ir.Value:
    return concatenate(op, [atleast_2d(op, value) for value in tensors], 0)


@lowering(aten.dstack.default)
def dstack(op: OpBuilder, tensors: Sequence[ir.Value]) -> ir.Value:
    return concatenate(op, [atleast_3d(op, value) for value in tensors], 2)


@lowering(aten.column_stack.default)
def column_stack(op: OpBuilder, tensors: Sequence[ir.Value]) -> ir.Value:
    columns = [op.Reshape(value, [-1, 1]) if op.rank(value) < 2 else value for value in tensors]
    return concatenate(op, columns, 1)


# ---- repetition


@lowering(aten.repeat.default)
def repeat(op: OpBuilder, self: ir.Value, repeats: Sequence[Size]) -> ir.Value:
    dims = dims_of(self) or ()
    lead = len(repeats) - op.rank(self)
    wide = [count if axis < lead or dims[axis - lead] == 1 else None for axis, count in enumerate(repeats)]
    if all(size is not None or is_one(count) for size, count in zip(wide, repeats, strict=True)):
        return op.expand(self, [-1 if size is None else size for size in wide])
    return op.Tile(unsqueeze_at(op, self, range(lead)), op.vector(repeats))


@lowering(aten.tile.default)
def tile(op: OpBuilder, self: ir.Value, dims: Sequence[Size]) -> ir.Value:
    return repeat(op, self, [*[1] * (op.rank(self) - len(dims)), *dims])


@lowering(aten.repeat_interleave.self_int)
def repeat_interleave(
    op: OpBuilder, self: ir.Value, repeats: Size, dim: int | None = None, *, output_size: Size | None = None
) -> ir.Value:
    value = flattened(op, self) if dim is None or op.rank(self) == 0 else self
    axis = 0 if dim is None else axis_in(op.rank(value), dim)
    sizes = op.sizes(value)
    wide = op.Unsqueeze(value, [axis + 1])
    spread = op.expand(wide, [*[-1] * (axis + 1), repeats, *[-1] * (len(sizes) - axis - 1)])
    return op.reshape(spread, [*sizes[:axis], op.size_mul(sizes[axis], repeats), *sizes[axis + 1 :]])


@lowering(aten.repeat_interleave.Tensor)
def repeat_interleave_counts(op: OpBuilder, repeats: ir.Value, *, output_size: Size | None = None) -> ir.Value:
    """Position i belongs to the entry that is the first whose running total exceeds i."""
    counts = op.cast(repeats, ir.DataType.INT64)
    ends = op.CumSum(counts, op.constant(0))
    total = op.ReduceSum(counts, [0], keepdims=0)
    positions = op.Unsqueeze(op.Range(0, total, 1), [1])
    passed = op.cast(op.GreaterOrEqual(positions, op.Unsqueeze(ends, [0])), ir.DataType.INT64)
    return op.cast(op.ReduceSum(passed, [1], keepdims=0), op.dtype(repeats))


@lowering(aten.repeat_interleave.self_Tensor)
def repeat_interleave_tensor(
    op: OpBuilder,
    self: ir.Value,
    repeats: ir.Value,
    dim: int | None = None,
    *,
    output_size: Size | None = None,
) -> ir.Value:
    value = flattened(op, self) if dim is None or op.rank(self) == 0 else self
    axis = 0 if dim is None else axis_in(op.rank(value), dim)
    size = op.size(value, axis)
    known = dims_of(repeats)
    if not known or not same_dim(known[0], op.dim(size)):
        # Of a length known only at run time it may be one count for all.
        repeats = op.Expand(repeats, op.vector([size]))
    return op.Gather(value, repeat_interleave_counts(op, repeats), axis=axis)


# ---- broadcasting of several tensors


def torch_broadcast_sizes(op: OpBuilder, tensors: Sequence[ir.Value]) -> list[Size]:
    """Return the sizes that ``tensors`` broadcast to; a dynamic size is taken to differ from 1, as torch does."""
    rank = max(op.rank(tensor) for tensor in tensors)
    result: list[Size] = []
    for axis in range(-rank, 0):
        sizes = [op.size(tensor, axis) for tensor in tensors if op.rank(tensor) >= -axis]
        wide = [size for size in sizes if not (isinstance(size, int) and size == 1)]
        static = [size for size in wide if isinstance(size, int)]
        result.append(static[0] if static else wide[0] if wide else 1)
    return result


@lowering(aten.broadcast_tensors.default)
def broadcast_tensors(op: OpBuilder, tensors: Sequence[ir.Value]) -> list[ir.Value]:
    sizes = torch_broadcast_sizes(op, tensors)
    return [op.expand(tensor, sizes) for tensor in tensors]


@lowering(aten.meshgrid.default, aten.meshgrid.indexing)
def meshgrid(op: OpBuilder, tensors: Sequence[ir.Value], *, indexing: str = "ij") -> list[ir.Value]:
    vectors = [flattened(op, tensor) for tensor in tensors]
    axes = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        axes[:2] = [1, 0]
    sizes: list[Size] = [0] * len(vectors)
    for vector, axis in zip(vectors, axes, strict=True):
        sizes[axis] = op.size(vector, 0)
    grids = []
    for vector, axis in zip(vectors, axes, strict=True):
        shaped = unsqueeze_at(op, vector, [other for other in range(len(vectors)) if other != axis])
        grids.append(op.expand(shaped, sizes))
    return grids


@lowering(aten.cartesian_prod.default)
def cartesian_prod(op: OpBuilder, tensors: Sequence[ir.Value]) -> ir.Value:
    if len(tensors) == 1:
        return tensors[0]
    grids = meshgrid(op, tensors)
    return op.Concat(*(op.Reshape(grid, [-1, 1]) for grid in grids), axis=1)


@lowering(aten.block_diag.default)
def block_diag(op: OpBuilder, tensors: Sequence[ir.Value]) -> ir.Value:
    blocks = [atleast_2d(op, value) for value in promote(op, *tensors)]
    widths = [op.size(block, 1) for block in blocks]
    starts: list[Size] = [0]
    for width in widths:
        starts.append(op.size_add(starts[-1], width))
    rows = []
    for block, start, end in zip(blocks, starts, starts[1:], strict=False):
        rows.append(op.Pad(block, op.vector([0, start, 0, op.size_sub(starts[-1], end)])))
    return op.Concat(*rows, axis=0)


@lowering(aten.combinations.default)
def combinations(op: OpBuilder, self: ir.Value, r: int = 2, with_replacement: bool = False) -> ir.Value:
    """Combine elements by constant positions where the size is static, else by those of a mask over all tuples."""
    size = op.size(self, 0)
    if r < 2 and not isinstance(size, int):
        return op.Unsqueeze(self, [1]) if r == 1 else op.Slice(self, [0], [0], [0])
    if not isinstance(size, int):
        return op.Gather(self, _rising_positions(op, size, r, strictly=not with_replacement), axis=0)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    chosen = torch.tensor(list(choose(range(size), r)), dtype=torch.int64).reshape(-1, r)
    return self if r == 0 else op.Gather(self, op.constant(chosen.numpy()), axis=0)


def _rising_positions(op: OpBuilder, size: Size, r: int, *, strictly: bool) -> ir.Value:
    """Return the tuples of ``r`` positions of which each is larger than the one before, in rows."""
    positions = op.Range(0, size, 1)
    along = [op.Unsqueeze(positions, [axis for axis in range(r) if axis != own]) for own in range(r)]
    less = op.Less if strictly else op.LessOrEqual
    pairs = [less(left, right) for left, right in itertools.pairwise(along)]
    return op.Transpose(op.NonZero(functools.reduce(op.And, pairs)), perm=[1, 0])
