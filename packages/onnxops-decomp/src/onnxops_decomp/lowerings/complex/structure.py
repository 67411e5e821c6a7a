"""Complex forms of operators that move numbers or add them up, and of matrix products.

What moves whole numbers is the real operator on the tensor with its trailing dimension, once the dimensions are
counted from the front. Any other operator that is linear in its complex operand is applied to each part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import is_complex, mark_complex
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.formulas.loops import repeat
from onnxops_decomp.formulas.products import zero_if_empty
from onnxops_decomp.lowerings.complex.numbers import complex_operands, joined, mul, multiplied, parts
from onnxops_decomp.lowerings.pointwise.conversions import as_complex, convert
from onnxops_decomp.lowerings.reductions.over_dimensions import Dims, lower_spreads
from onnxops_decomp.lowerings.registry import Function, builtin_table, lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["builtin_function", "created", "partwise", "prod_dim", "product", "transpose"]

aten = torch.ops.aten

# Longer products run in a loop.
_UNROLLED = 8


def builtin_function(name: str) -> Function:
    entry = builtin_table().find(name)
    if entry is None:
        raise LoweringError(f"{name} of complex numbers needs its lowering for real ones, which does not exist.")
    return entry.function


def _map(function: Any, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_map(function, element) for element in value)
    return function(value)


def _part(op: OpBuilder, value: Any, index: int) -> Any:
    """Return one part of every complex tensor within an argument; the imaginary part of a real one is 0."""
    if is_complex(value):
        return op.Gather(value, index, axis=-1)
    if isinstance(value, complex):
        return value.imag if index else value.real
    return value


def partwise(name: str) -> Function:
    """Lowering of an operator that is linear in its one complex operand, or list of them."""

    def apply(op: OpBuilder, *args: Any, **kwargs: Any) -> Any:
        function = builtin_function(name)
        dtype = kwargs.get("dtype")
        if isinstance(dtype, torch.dtype) and dtype.is_complex:
            kwargs["dtype"] = dtype.to_real()
            first = args[0]
            args = (as_complex(op, first) if isinstance(first, ir.Value) else first, *args[1:])
        results = [
            function(
                op,
                *(_map(lambda value, i=index: _part(op, value, i), argument) for argument in args),
                **kwargs,
            )
            for index in (0, 1)
        ]
        if isinstance(results[0], ir.Value):
            return joined(op, *results)
        return [joined(op, real, imag) for real, imag in zip(*results, strict=True)]

    return apply


def _moved(name: str, position: int, new_axes: int = 0) -> Function:
    """Lowering of an operator that moves whole numbers, with its dimension, or list of them, at ``position``."""
    by_parts = partwise(name)

    def apply(op: OpBuilder, *args: Any, **kwargs: Any) -> Any:
        rank = op.rank(args[0]) - 1 + new_axes
        if rank == 0:
            return by_parts(op, *args, **kwargs)
        arguments = list(args)
        arguments[position] = _map(lambda dim: dim % rank, arguments[position])
        return _map(mark_complex, builtin_function(name)(op, *arguments, **kwargs))

    return apply


def _sized(name: str) -> Function:
    """Lowering of an operator that takes the sizes of its result."""

    def apply(op: OpBuilder, self: ir.Value, size: list[Any], **kwargs: Any) -> Any:
        return mark_complex(builtin_function(name)(op, self, [*size, 2], **kwargs))

    return apply


for _name in ("expand", "reshape", "view", "_unsafe_view", "_reshape_copy", "view_copy", "expand_copy", "broadcast_to"):
    lowering(f"aten::{_name}", complex=True)(_sized(f"aten::{_name}"))

for _name in (
    "flip",
    "index_select",
    "narrow",
    "select.int",
    "select_copy.int",
    "slice.Tensor",
    "slice_copy.Tensor",
    "split_with_sizes",
    "split.Tensor",
    "squeeze.dim",
    "squeeze.dims",
    "unbind.int",
):
    lowering(f"aten::{_name}", complex=True)(_moved(f"aten::{_name}", 2 if _name.startswith("split") else 1))
lowering(aten.unsqueeze.default, complex=True)(_moved("aten::unsqueeze", 1, new_axes=1))


@lowering(aten.permute.default, aten.permute_copy.default, complex=True)
def permute(op: OpBuilder, self: ir.Value, dims: list[int]) -> ir.Value:
    rank = len(dims)
    return mark_complex(op.Transpose(self, perm=[*(dim % rank for dim in dims), rank]))


@lowering(aten.transpose.int, aten.transpose_copy.int, aten.swapaxes.default, aten.swapdims.default, complex=True)
def transpose(op: OpBuilder, self: ir.Value, dim0: int, dim1: int) -> ir.Value:
    rank = op.rank(self) - 1
    perm = list(range(rank + 1))
    if rank:
        dim0, dim1 = dim0 % rank, dim1 % rank
        perm[dim0], perm[dim1] = perm[dim1], perm[dim0]
    return mark_complex(op.Transpose(self, perm=perm))


@lowering(aten.cat.default, aten.concat.default, aten.concatenate.default, complex=True)
def cat(op: OpBuilder, tensors: list[ir.Value], dim: int = 0) -> ir.Value:
    operands = complex_operands(op, *tensors)
    rank = max(op.rank(operand) for operand in operands) - 1
    # torch lets 1-D tensors without elements stand among others of any rank.
    kept = [operand for operand in operands if op.rank(operand) == rank + 1]
    return mark_complex(op.Concat(*kept, axis=dim % rank))


@lowering(aten.stack.default, complex=True)
def stack(op: OpBuilder, tensors: list[ir.Value], dim: int = 0) -> ir.Value:
    operands = complex_operands(op, *tensors)
    axis = dim % op.rank(operands[0])
    return mark_complex(op.Concat(*(op.Unsqueeze(operand, [axis]) for operand in operands), axis=axis))


@lowering(aten.constant_pad_nd.default, complex=True)
def constant_pad_nd(op: OpBuilder, self: ir.Value, pad: list[Any], value: Any = 0) -> ir.Value:
    padded = builtin_function("aten::constant_pad_nd")
    if value == 0:
        return mark_complex(padded(op, self, [0, 0, *pad], 0))
    number = complex(value)
    real, imag = parts(op, self)
    return joined(op, padded(op, real, pad, number.real), padded(op, imag, pad, number.imag))


def _unchanged(op: OpBuilder, self: ir.Value) -> ir.Value:
    return self


for _name in ("alias", "clone", "contiguous", "detach", "lift_fresh", "lift_fresh_copy", "resolve_conj", "resolve_neg"):
    lowering(f"aten::{_name}", complex=True)(_unchanged)


for _name in (
    "_reshape_alias",
    "_unsafe_index.Tensor",
    "as_strided",
    "cumsum",
    "diag_embed",
    "diagonal",
    "diagonal_copy",
    "gather",
    "index.Tensor",
    "mean",
    "mean.dim",
    "movedim.int",
    "movedim.intlist",
    "repeat",
    "roll",
    "squeeze",
    "sum",
    "sum.dim_IntList",
    "t",
    "take_along_dim",
    "tile",
    "trace",
    "tril",
    "triu",
    "unfold",
):
    lowering(f"aten::{_name}", complex=True)(partwise(f"aten::{_name}"))


# ---- new tensors


def created(name: str, position: int | None = None) -> Function:
    """Lowering of an operator that makes a tensor, filled with the number at ``position`` where it takes one."""

    def apply(op: OpBuilder, *args: Any, dtype: torch.dtype | None = None) -> ir.Value:
        arguments = [_part(op, argument, 0) for argument in args]
        real_dtype = dtype.to_real() if dtype is not None and dtype.is_complex else dtype
        real: ir.Value = builtin_function(name)(op, *arguments, dtype=real_dtype)
        fill = 0 if position is None else args[position]
        if dtype is not None and not dtype.is_complex:
            return real
        if not isinstance(fill, complex) or fill.imag == 0:
            return as_complex(op, real)
        arguments[position or 0] = fill.imag
        return joined(op, real, builtin_function(name)(op, *arguments, dtype=real_dtype))

    return apply


for _name in ("zeros", "ones", "zeros_like", "ones_like", "new_zeros", "new_ones", "new_empty", "empty_like", "eye"):
    lowering(f"aten::{_name}", complex=True)(created(f"aten::{_name}"))
lowering(aten.empty.memory_format, complex=True)(created("aten::empty.memory_format"))
lowering(aten.scalar_tensor.default, complex=True)(created("aten::scalar_tensor", 0))
lowering(aten.full.default, complex=True)(created("aten::full", 1))
lowering(aten.full_like.default, complex=True)(created("aten::full_like", 1))
lowering(aten.new_full.default, complex=True)(created("aten::new_full", 2))


# ---- spread


def _moments(op: OpBuilder, value: ir.Value, dim: Dims, correction: float, keepdim: bool) -> tuple[ir.Value, ir.Value]:
    variance = builtin_function("aten::var.correction")
    spreads = (variance(op, part, dim, correction, keepdim) for part in parts(op, value))
    return op.Add(*spreads), partwise("aten::mean.dim")(op, value, dim, keepdim)


lower_spreads(_moments, complex=True)


# ---- products


def product(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    left, right = complex_operands(op, self, other)
    (x, y), (u, v) = parts(op, left), parts(op, right)
    result = joined(
        op,
        op.Sub(op.MatMul(x, u), op.MatMul(y, v)),
        op.Add(op.MatMul(x, v), op.MatMul(y, u)),
    )
    return mark_complex(zero_if_empty(op, result, op.size(x, -1)))


def _of_one_dtype(self: ir.Value, other: ir.Value) -> None:
    """Refuse the product of a complex and a real tensor.

    Raises:
        LoweringError: As torch does, which promotes no operand of a product of matrices.
    """
    if not (is_complex(self) and is_complex(other)):
        raise LoweringError("torch multiplies matrices of one dtype only, not complex and real ones.")


@lowering(aten.matmul.default, aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default, complex=True)
def matmul(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    _of_one_dtype(self, other)
    return product(op, self, other)


@lowering(aten.vdot.default, complex=True)
def vdot(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    _of_one_dtype(self, other)
    return product(op, mark_complex(op.Mul(self, [1.0, -1.0])), other)


@lowering(aten.prod.default, complex=True)
def prod(op: OpBuilder, self: ir.Value, dtype: torch.dtype | None = None) -> ir.Value:
    if dtype is not None:
        self = convert(op, self, dtype)
    rank = op.rank(self) - 1
    flat = self if rank == 1 else mark_complex(op.Reshape(self, [-1, 2]))
    return prod_dim(op, flat, 0)


@lowering(aten.prod.dim_int, complex=True)
def prod_dim(
    op: OpBuilder, self: ir.Value, dim: int, keepdim: bool = False, dtype: torch.dtype | None = None
) -> ir.Value:
    if dtype is not None:
        self = convert(op, self, dtype)
    rank = op.rank(self) - 1
    if rank == 0:
        return self
    axis = dim % rank
    count = op.size(self, axis)
    one = op.constant([1.0, 0.0], op.dtype(self))
    if isinstance(count, int) and count <= _UNROLLED:
        factors = [mark_complex(op.Gather(self, index, axis=axis)) for index in range(count)]
        sizes = [size for index, size in enumerate(op.sizes(self)) if index != axis]
        result = factors[0] if factors else mark_complex(op.copy(op.expand(one, sizes)))
        for factor in factors[1:]:
            result = multiplied(op, result, factor)
    else:
        result = _product_by_loop(op, self, axis, one)
    return mark_complex(op.Unsqueeze(result, [axis])) if keepdim else result


def _product_by_loop(op: OpBuilder, z: ir.Value, axis: int, one: ir.Value) -> ir.Value:
    def step(body: OpBuilder, i: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        return [multiplied(body, state[0], body.Gather(z, i, axis=axis))], []

    start = op.expand(one, [size for index, size in enumerate(op.sizes(z)) if index != axis])
    return mark_complex(repeat(op, op.size(z, axis), [start], step)[0][0])


@lowering(aten.addcmul.default, complex=True)
def addcmul(op: OpBuilder, self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> ir.Value:
    product = mul(op, tensor1, tensor2)
    left, right = complex_operands(op, self, product if value == 1 else mul(op, product, value))
    return mark_complex(op.Add(left, right))
