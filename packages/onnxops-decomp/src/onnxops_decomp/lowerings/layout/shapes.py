"""Views that keep every element: reshape, permute, squeeze, expand, and the operators that only copy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.builder.sizes import is_zero
from onnxops_decomp.dtypes import to_ir
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.spec.inference import Dim, dims_of

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

__all__ = ["ASSERTIONS", "axis_in", "flattened", "swap_axes", "unsqueeze_at"]

aten = torch.ops.aten

# Overloads that check something and return nothing.
ASSERTIONS = (
    aten._assert_async.default,
    aten._assert_async.msg,
    aten._assert_scalar.default,
    aten._assert_tensor_metadata.default,
    aten._linalg_check_errors.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
)


def axis_in(rank: int, dim: int) -> int:
    """Return ``dim`` counted from the front; a 0-d tensor has one axis for this purpose, as in torch."""
    return range(max(rank, 1))[dim]


def unsqueeze_at(op: OpBuilder, value: ir.Value, axes: Sequence[int]) -> ir.Value:
    """Insert axes of size 1 at the given non-negative places of the result."""
    return op.Unsqueeze(value, list(axes)) if axes else value


@lowering(aten.transpose.int, aten.transpose_copy.int, aten.swapaxes.default, aten.swapdims.default)
def swap_axes(op: OpBuilder, value: ir.Value, first: int, second: int) -> ir.Value:
    """Exchange two axes, which may be negative."""
    rank = op.rank(value)
    perm = list(range(rank))
    if rank:
        first, second = axis_in(rank, first), axis_in(rank, second)
        perm[first], perm[second] = perm[second], perm[first]
    return op.Transpose(value, perm=perm)


@lowering(aten.flatten.using_ints, aten.ravel.default)
def flattened(op: OpBuilder, value: ir.Value, start: int = 0, end: int = -1) -> ir.Value:
    """Merge the axes ``start`` to ``end`` (inclusive) into one; a 0-d tensor becomes 1-D."""
    rank = op.rank(value)
    if rank == 0:
        return op.Reshape(value, [1])
    start, end = axis_in(rank, start), axis_in(rank, end)
    if start == end:
        return value
    sizes = op.sizes(value)
    return op.reshape(value, [*sizes[:start], op.size_mul(*sizes[start : end + 1]), *sizes[end + 1 :]])


def _unchanged(op: OpBuilder, self: ir.Value) -> ir.Value:
    return self


for _operator in (
    aten.alias,
    aten.contiguous,
    aten.clone,
    aten.detach,
    aten.lift,
    aten.lift_fresh,
    aten.lift_fresh_copy,
    aten.resolve_conj,
    aten.resolve_neg,
    aten.real,
):
    lowering(_operator.default)(_unchanged)
for _name in ("aten::requires_grad_", "aten::cpu", "aten::cuda", "aten::alias_copy", "aten::detach_copy"):
    lowering(_name)(_unchanged)


@lowering(*ASSERTIONS)
def assertion(op: OpBuilder, *args: object, **kwargs: object) -> None:
    """Return an assertion: the exporter checks it at the boundary, the graph computes nothing for it."""


@lowering(aten._functional_assert_async.msg, aten._functional_assert_scalar.default)
def functional_assertion(op: OpBuilder, self: object, assert_msg: str, dep_token: ir.Value) -> ir.Value:
    """Return an assertion that later ones depend on by a tensor that it returns."""
    return dep_token


# ---- the same elements in another shape


@lowering(
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten._reshape_copy.default,
    aten.view_copy.default,
)
def reshape(op: OpBuilder, self: ir.Value, size: Sequence[Size]) -> ir.Value:
    sizes = list(size)
    if -1 in [s for s in sizes if isinstance(s, int)] and any(map(is_zero, sizes)):
        # ONNX cannot infer a size beside a zero; torch only accepts that where the rest of the sizes decides it.
        position = next(i for i, s in enumerate(sizes) if isinstance(s, int) and s == -1)
        known = op.size_mul(*(s for i, s in enumerate(sizes) if i != position))
        sizes[position] = op.size_floordiv(op.size_mul(*op.sizes(self)), known)
    return op.reshape(self, sizes)


@lowering(aten._reshape_alias.default)
def reshape_alias(op: OpBuilder, self: ir.Value, size: Sequence[Size], stride: Sequence[Size]) -> ir.Value:
    return op.reshape(self, list(size))


@lowering(aten.view_as.default, aten.reshape_as.default)
def reshape_as(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    return op.reshape(self, op.sizes(other))


@lowering(aten.resize.default)
def resize(op: OpBuilder, self: ir.Value, size: Sequence[Size]) -> ir.Value:
    """Keep the first elements; torch leaves those that are added undefined, here they are zero."""
    wanted, have = op.size_mul(*size), op.size_mul(*op.sizes(self))
    flat = op.Reshape(self, [-1])
    if not (isinstance(wanted, int) and isinstance(have, int)) or wanted > have:
        flat = op.Pad(flat, op.vector([0, op.size_max(op.size_sub(wanted, have), 0)]))
    return op.reshape(flat if wanted == have else op.Slice(flat, [0], op.vector([wanted]), [0]), list(size))


@lowering(aten.resize_as.default)
def resize_as(op: OpBuilder, self: ir.Value, the_template: ir.Value) -> ir.Value:
    return resize(op, self, op.sizes(the_template))


@lowering(aten._shape_as_tensor.default)
def shape_as_tensor(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.vector(op.sizes(self))


@lowering(aten.view.dtype, aten.view_copy.dtype)
def view_dtype(op: OpBuilder, self: ir.Value, dtype: torch.dtype) -> ir.Value:
    wanted = to_ir(dtype)
    if wanted.bitwidth != op.dtype(self).bitwidth:
        raise LoweringError(
            f"Reading {op.dtype(self).name} memory as {wanted.name} changes the number of elements, which no ONNX "
            "operator does; use a dtype of the same size."
        )
    return op.BitCast(self, to=wanted)


@lowering(aten.unflatten.int)
def unflatten(op: OpBuilder, self: ir.Value, dim: int, sizes: Sequence[Size]) -> ir.Value:
    dim = axis_in(op.rank(self), dim)
    own = op.sizes(self)
    known = [size for size in sizes if isinstance(size, int) and size != -1]
    if isinstance(whole := own[dim], int) and len(known) == len(sizes) - 1 and (part := math.prod([*known, 1])):
        # Where another dimension has no elements, Reshape cannot tell the size that is left open.
        sizes = [whole // part if isinstance(size, int) and size == -1 else size for size in sizes]
    return reshape(op, self, [*own[:dim], *sizes, *own[dim + 1 :]])


@lowering(aten.unsqueeze.default, aten.unsqueeze_copy.default)
def unsqueeze(op: OpBuilder, self: ir.Value, dim: int) -> ir.Value:
    return op.Unsqueeze(self, [range(op.rank(self) + 1)[dim]])


def _may_be_one(dim: Dim) -> bool:
    return dim == 1 if isinstance(dim, int) else dim.value is None


def _squeezed(op: OpBuilder, value: ir.Value, axes: Sequence[int]) -> ir.Value:
    """Drop those of ``axes`` that have size 1; a named size is another than 1, as torch assumes of it."""
    gone = [axis for axis in axes if axis < op.rank(value) and _may_be_one((dims_of(value) or ())[axis])]
    return op.Squeeze(value, gone) if gone else value


@lowering(
    *(aten.squeeze.default, aten.squeeze_copy.default, aten.squeeze.dim, aten.squeeze_copy.dim),
    *(aten.squeeze.dims, aten.squeeze_copy.dims),
)
def squeeze(op: OpBuilder, self: ir.Value, dim: int | Sequence[int] | None = None) -> ir.Value:
    if dim is None:
        return _squeezed(op, self, [axis for axis, size in enumerate(dims_of(self) or ()) if isinstance(size, int)])
    dims = [dim] if isinstance(dim, int) else dim
    return _squeezed(op, self, sorted(axis_in(op.rank(self), axis) for axis in dims))


# ---- the axes in another order


@lowering(aten.permute.default, aten.permute_copy.default)
def permute(op: OpBuilder, self: ir.Value, dims: Sequence[int]) -> ir.Value:
    rank = op.rank(self)
    return op.Transpose(self, perm=[dim % rank for dim in dims]) if rank else self


@lowering(aten.t.default, aten.t_copy.default)
def t(op: OpBuilder, self: ir.Value) -> ir.Value:
    return swap_axes(op, self, 0, 1) if op.rank(self) == 2 else self


@lowering(aten.mT.default, aten.mH.default, aten.adjoint.default)
def matrix_transpose(op: OpBuilder, self: ir.Value) -> ir.Value:
    return swap_axes(op, self, -2, -1)


@lowering(aten.numpy_T.default, aten.matrix_H.default)
def reversed_axes(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.Transpose(self, perm=list(range(op.rank(self)))[::-1])


@lowering(aten.movedim.intlist, aten.moveaxis.intlist, aten.movedim.int, aten.moveaxis.int)
def movedim(op: OpBuilder, self: ir.Value, source: int | Sequence[int], destination: int | Sequence[int]) -> ir.Value:
    source, destination = ([axes] if isinstance(axes, int) else axes for axes in (source, destination))
    rank = op.rank(self)
    if rank == 0:
        return self
    place = {to % rank: origin % rank for origin, to in zip(source, destination, strict=True)}
    rest = iter(axis for axis in range(rank) if axis not in place.values())
    return op.Transpose(self, perm=[place[axis] if axis in place else next(rest) for axis in range(rank)])


# ---- sizes of 1 repeated


@lowering(aten.expand.default, aten.expand_copy.default)
def expand(op: OpBuilder, self: ir.Value, size: Sequence[Size], implicit: bool = False) -> ir.Value:
    return op.expand(self, size)


@lowering(aten.expand_as.default)
def expand_as(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    return op.expand(self, op.sizes(other))


@lowering(aten.broadcast_to.default)
def broadcast_to(op: OpBuilder, self: ir.Value, size: Sequence[Size]) -> ir.Value:
    return op.expand(self, size)


@lowering(aten.atleast_1d.default)
def atleast_1d(op: OpBuilder, self: ir.Value) -> ir.Value:
    return self if op.rank(self) else op.Unsqueeze(self, [0])


@lowering(aten.atleast_2d.default)
def atleast_2d(op: OpBuilder, self: ir.Value) -> ir.Value:
    return unsqueeze_at(op, self, {0: [0, 1], 1: [0]}.get(op.rank(self), []))


@lowering(aten.atleast_3d.default)
def atleast_3d(op: OpBuilder, self: ir.Value) -> ir.Value:
    return unsqueeze_at(op, self, {0: [0, 1, 2], 1: [0, 2], 2: [2]}.get(op.rank(self), []))


@lowering(aten.atleast_1d.Sequence)
def atleast_1d_all(op: OpBuilder, tensors: Sequence[ir.Value]) -> list[ir.Value]:
    return [atleast_1d(op, tensor) for tensor in tensors]


@lowering(aten.atleast_2d.Sequence)
def atleast_2d_all(op: OpBuilder, tensors: Sequence[ir.Value]) -> list[ir.Value]:
    return [atleast_2d(op, tensor) for tensor in tensors]


@lowering(aten.atleast_3d.Sequence)
def atleast_3d_all(op: OpBuilder, tensors: Sequence[ir.Value]) -> list[ir.Value]:
    return [atleast_3d(op, tensor) for tensor in tensors]
