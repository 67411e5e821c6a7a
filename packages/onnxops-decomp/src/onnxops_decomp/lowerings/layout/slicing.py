"""Parts of a tensor along its axes: select, slice, split, and elements in another order (flip, roll)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import sympy
import torch

from onnxops_decomp.builder.sizes import INT64_MAX
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.lowerings.layout.shapes import axis_in, flattened, swap_axes
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.spec.inference import dims_of

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

__all__ = ["from_start", "split_at", "take_slice"]

aten = torch.ops.aten


def take_slice(
    op: OpBuilder, value: ir.Value, axis: int, start: Size | None, end: Size | None, step: Size = 1
) -> ir.Value:
    """Return ``value[start:end:step]`` along a non-negative axis; slices of the same tensor along other axes join."""
    dim = op.rank(value) and (dims_of(value) or ())[axis]
    start = 0 if start is None else start
    end = INT64_MAX if end is None or (isinstance(end, int) and isinstance(dim, int) and end >= dim) else end
    if isinstance(start, int) and isinstance(dim, int) and start < 0 and start <= -dim:
        start = 0
    if end == INT64_MAX and step == 1 and (start == 0 or _is_all_from_end(op, value, axis, start)):
        return value
    starts, ends, axes, steps = [start], [end], [axis], [step]
    joined = _slice_before(op, value)
    if joined is not None and axis not in joined[3]:
        value, *before = joined
        starts, ends, steps = [*before[0], start], [*before[1], end], [*before[3], step]
        axes = [*before[2], axis]
    plain = all(isinstance(s, int) and s == 1 for s in steps)
    return op.Slice(value, starts, ends, axes, None if plain else steps)


def _is_all_from_end(op: OpBuilder, value: ir.Value, axis: int, start: Size) -> bool:
    """Tell whether ``value[start:]`` begins as many places before the end as there are."""
    if isinstance(start, int):
        return False
    before, size = _expression(op, start), _expression(op, op.size(value, axis))
    return before is not None and size is not None and before + size == 0


def _slice_before(op: OpBuilder, value: ir.Value) -> tuple[ir.Value, list[int], list[int], list[int], list[int]] | None:
    """Return the operands of the static Slice that made ``value``, or None."""
    node = value.producer()
    if node is None or node.op_type != "Slice" or node.domain or node.inputs[0] is None:
        return None
    if "starts" in node.attributes:
        starts, ends = (list(node.attributes[name].as_ints()) for name in ("starts", "ends"))
        axes = list(node.attributes["axes"].as_ints()) if "axes" in node.attributes else list(range(len(starts)))
        return node.inputs[0], starts, ends, axes, [1] * len(starts)
    arrays = [op.static(operand) for operand in node.inputs[1:]]
    if len(arrays) < 3 or any(array is None for array in arrays):
        return None
    lists = [[int(element) for element in array] for array in arrays if array is not None]
    lists[2] = [axis % op.rank(value) for axis in lists[2]]
    steps = lists[3] if len(lists) > 3 else [1] * len(lists[0])
    return node.inputs[0], lists[0], lists[1], lists[2], steps


@lowering(aten.slice.Tensor, aten.slice_copy.Tensor)
def slice_tensor(
    op: OpBuilder,
    self: ir.Value,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: Size = 1,
) -> ir.Value:
    return take_slice(op, self, axis_in(op.rank(self), dim), start, end, step)


@lowering(aten.select.int, aten.select_copy.int)
def select(op: OpBuilder, self: ir.Value, dim: int, index: Size) -> ir.Value:
    axis = axis_in(op.rank(self), dim)
    size = (dims_of(self) or ())[axis]
    if isinstance(index, int) and isinstance(size, int):
        index = index % size
    return op.Gather(self, index, axis=axis)


def from_start(op: OpBuilder, index: Size, size: Size) -> Size:
    """Return the index of an item from the start, where it may count from the end."""
    if isinstance(index, int):
        return index if index >= 0 else op.size_add(size, index)
    return op.Where(op.Less(index, 0), op.Add(index, size), index)


@lowering(aten.narrow.default, aten.narrow_copy.default, aten.narrow.Tensor)
def narrow(op: OpBuilder, self: ir.Value, dim: int, start: Size, length: Size) -> ir.Value:
    axis = axis_in(op.rank(self), dim)
    start = from_start(
        op, op.cast(start, ir.DataType.INT64) if isinstance(start, ir.Value) else start, op.size(self, axis)
    )
    return take_slice(op, self, axis, start, op.size_add(start, length))


# ---- several parts


def split_at(op: OpBuilder, value: ir.Value, sizes: Sequence[Size], axis: int) -> list[ir.Value]:
    """Split ``value`` along a non-negative axis into parts of the given sizes."""
    if len(sizes) == 1:
        return [value]
    return list(op.emit_many("Split", len(sizes), value, op.vector(sizes), axis=axis))


def _static_size(op: OpBuilder, value: ir.Value, axis: int, purpose: str) -> int:
    size = op.size(value, axis)
    if isinstance(size, int):
        return size
    raise LoweringError(
        f"The number of parts depends on the dynamic size of axis {axis}; {purpose} gives a fixed number of tensors "
        "in ONNX. Make that dimension static, or split into sizes that are given."
    )


@lowering(aten.split.Tensor, aten.split_copy.Tensor, aten.unsafe_split.Tensor)
def split(op: OpBuilder, self: ir.Value, split_size: Size, dim: int = 0) -> list[ir.Value]:
    axis = axis_in(op.rank(self), dim)
    size = op.size(self, axis)
    if isinstance(size, int) and size == 0:
        return [self]
    if not isinstance(size, int) or not isinstance(split_size, int):
        return _split_dynamic(op, self, split_size, axis)
    full, rest = divmod(size, split_size) if split_size else (0, size)
    return split_at(op, self, [split_size] * full + ([rest] if rest or not full else []), axis)


def _expression(op: OpBuilder, size: Size) -> sympy.Expr | None:
    if isinstance(size, int):
        return sympy.Integer(size)
    dim = op.dim(size)
    return None if isinstance(dim, int) else op.context.expressions.get(str(dim.value))


def _split_dynamic(op: OpBuilder, value: ir.Value, split_size: Size, axis: int) -> list[ir.Value]:
    """Split along a dynamic axis; the captured program or the expressions of both sizes fix the number of parts."""
    if op.context.results is not None:
        others = op.size_mul(split_size, op.context.results - 1)
        last = op.size_sub(op.size(value, axis), others)
        return split_at(op, value, [split_size] * (op.context.results - 1) + [last], axis)
    whole, part = (_expression(op, size) for size in (op.size(value, axis), split_size))
    if whole is not None and part:
        count = sympy.simplify(whole / part)
        if isinstance(count, sympy.Integer):
            return split_at(op, value, [split_size] * int(count), axis)
    raise LoweringError(
        f"The number of parts depends on the dynamic size of axis {axis}, but ONNX's Split gives a fixed number of "
        "tensors. Make that dimension static, or split into sizes that are given."
    )


@lowering(
    aten.split_with_sizes.default,
    aten.split_with_sizes_copy.default,
    aten.unsafe_split_with_sizes.default,
    aten.split.sizes,
)
def split_with_sizes(op: OpBuilder, self: ir.Value, split_sizes: Sequence[Size], dim: int = 0) -> list[ir.Value]:
    return split_at(op, self, split_sizes, axis_in(op.rank(self), dim))


@lowering(aten.chunk.default, aten.unsafe_chunk.default)
def chunk(op: OpBuilder, self: ir.Value, chunks: int, dim: int = 0) -> list[ir.Value]:
    axis = axis_in(op.rank(self), dim)
    size = op.size(self, axis)
    if isinstance(size, int):
        part = -(-size // chunks)
        if part == 0:
            return split_at(op, self, [0] * chunks, axis)
        return split_at(op, self, [part] * (size // part) + [size % part] * (size % part > 0), axis)
    length = op.size_floordiv(op.size_add(size, chunks - 1), chunks)
    if chunks > 3:
        # The last of many parts may be missing, as in 5 = 2 + 2 + 1 for four of them.
        bounds: list[Size] = [op.size_mul(length, index) for index in range(chunks + 1)]
        return [take_slice(op, self, axis, start, end) for start, end in itertools.pairwise(bounds)]
    last = op.size_sub(size, op.size_mul(length, chunks - 1))
    return split_at(op, self, [length] * (chunks - 1) + [last], axis)


@lowering(aten.tensor_split.sections)
def tensor_split(op: OpBuilder, self: ir.Value, sections: int, dim: int = 0) -> list[ir.Value]:
    axis = axis_in(op.rank(self), dim)
    size = op.size(self, axis)
    # The first (size mod sections) parts are one longer: part i has (size + sections - 1 - i) // sections elements.
    sizes = [op.size_floordiv(op.size_add(size, sections - 1 - i), sections) for i in range(sections)]
    return split_at(op, self, sizes, axis)


@lowering(aten.tensor_split.indices)
def split_before(op: OpBuilder, self: ir.Value, indices: Sequence[Size], dim: int = 0) -> list[ir.Value]:
    axis = axis_in(op.rank(self), dim)
    bounds: list[Size | None] = [None, *indices, None]
    return [take_slice(op, self, axis, start, end) for start, end in itertools.pairwise(bounds)]


@lowering(aten.tensor_split.tensor_indices_or_sections)
def tensor_split_tensor(
    op: OpBuilder, self: ir.Value, tensor_indices_or_sections: ir.Value, dim: int = 0
) -> list[ir.Value]:
    array = op.static(tensor_indices_or_sections)
    if array is not None:
        return (
            tensor_split(op, self, int(array), dim) if array.ndim == 0 else split_before(op, self, array.tolist(), dim)
        )
    count = op.size(tensor_indices_or_sections, 0) if op.rank(tensor_indices_or_sections) else None
    if not isinstance(count, int):
        raise LoweringError("The model computes how many parts it splits into, but ONNX needs a fixed number.")
    return split_before(op, self, [op.Gather(tensor_indices_or_sections, i) for i in range(count)], dim)


@lowering(aten.unbind.int, aten.unbind_copy.int)
def unbind(op: OpBuilder, self: ir.Value, dim: int = 0) -> list[ir.Value]:
    axis = axis_in(op.rank(self), dim)
    count = _static_size(op, self, axis, "unbind")
    if count == 0:
        return []
    if count == 1:
        return [op.Squeeze(self, [axis])]
    return [op.Gather(self, index, axis=axis) for index in range(count)]


def _split(op: OpBuilder, value: ir.Value, parts: int | Sequence[int], axis: int) -> list[ir.Value]:
    return tensor_split(op, value, parts, axis) if isinstance(parts, int) else split_before(op, value, parts, axis)


@lowering(aten.hsplit.int, aten.hsplit.array)
def hsplit(op: OpBuilder, self: ir.Value, parts: int | Sequence[int]) -> list[ir.Value]:
    return _split(op, self, parts, 0 if op.rank(self) == 1 else 1)


@lowering(aten.vsplit.int, aten.vsplit.array)
def vsplit(op: OpBuilder, self: ir.Value, parts: int | Sequence[int]) -> list[ir.Value]:
    return _split(op, self, parts, 0)


@lowering(aten.dsplit.int, aten.dsplit.array)
def dsplit(op: OpBuilder, self: ir.Value, parts: int | Sequence[int]) -> list[ir.Value]:
    return _split(op, self, parts, 2)


# ---- other orders


@lowering(aten.flip.default)
def flip(op: OpBuilder, self: ir.Value, dims: Sequence[int]) -> ir.Value:
    rank = op.rank(self)
    if not dims or rank == 0:
        return self
    axes = [axis_in(rank, dim) for dim in dims]
    return op.Slice(self, [-1] * len(axes), [-INT64_MAX] * len(axes), axes, [-1] * len(axes))


@lowering(aten.fliplr.default)
def fliplr(op: OpBuilder, self: ir.Value) -> ir.Value:
    return flip(op, self, [1])


@lowering(aten.flipud.default)
def flipud(op: OpBuilder, self: ir.Value) -> ir.Value:
    return flip(op, self, [0])


@lowering(aten.rot90.default)
def rot90(op: OpBuilder, self: ir.Value, k: int = 1, dims: Sequence[int] = (0, 1)) -> ir.Value:
    first, second = dims
    match k % 4:
        case 1:
            return swap_axes(op, flip(op, self, [second]), first, second)
        case 2:
            return flip(op, self, dims)
        case 3:
            return swap_axes(op, flip(op, self, [first]), first, second)
    return self


@lowering(aten.roll.default)
def roll(op: OpBuilder, self: ir.Value, shifts: Sequence[Size], dims: Sequence[int] = ()) -> ir.Value:
    if not dims:
        sizes = op.sizes(self)
        return op.reshape(_rolled(op, flattened(op, self), shifts[0], 0), sizes)
    rank = op.rank(self)
    if rank == 0:
        return self
    for shift, dim in zip(shifts, dims, strict=True):
        self = _rolled(op, self, shift, axis_in(rank, dim))
    return self


def _rolled(op: OpBuilder, value: ir.Value, shift: Size, axis: int) -> ir.Value:
    """Roll along one axis: two slices where the size is static, which are copied faster than single elements."""
    size = op.size(value, axis)
    if isinstance(size, int) and isinstance(shift, int):
        if size == 0 or shift % size == 0:
            return value
        cut = size - shift % size
        return op.Concat(take_slice(op, value, axis, cut, None), take_slice(op, value, axis, 0, cut), axis=axis)
    indices = op.Mod(op.Sub(op.Range(0, size, 1), shift), op.size_max(size, 1))
    return op.Gather(value, indices, axis=axis)


@lowering(aten.unfold.default, aten.unfold_copy.default)
def unfold(op: OpBuilder, self: ir.Value, dimension: int, size: int, step: int) -> ir.Value:
    rank = op.rank(self)
    if rank == 0:
        return flattened(op, self) if size == 1 else take_slice(op, flattened(op, self), 0, 0, size)
    axis = axis_in(rank, dimension)
    last = op.size_sub(op.size(self, axis), size - 1)
    indices = op.Add(op.Unsqueeze(op.Range(0, last, step), [1]), op.constant(np.arange(size)[None, :]))
    windows = op.Gather(self, indices, axis=axis)
    perm = [*range(axis + 1), *range(axis + 2, rank + 1), axis + 1]
    return op.Transpose(windows, perm=perm)
