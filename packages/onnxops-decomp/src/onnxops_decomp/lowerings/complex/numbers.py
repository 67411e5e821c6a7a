"""Complex numbers: real tensors with a trailing dimension for real and imaginary part."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import is_complex, mark_complex, promote, to_ir, to_torch
from onnxops_decomp.lowerings.pointwise import elementary
from onnxops_decomp.lowerings.pointwise.conversions import as_complex
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.dtypes import Operand

__all__ = ["bare", "complex_operands", "joined", "parts"]

aten = torch.ops.aten

BOOL = ir.DataType.BOOL

Parts = tuple[ir.Value, ir.Value]


def parts(op: OpBuilder, z: ir.Value) -> Parts:
    """Return real and imaginary part."""
    return op.Gather(z, 0, axis=-1), op.Gather(z, 1, axis=-1)


def joined(op: OpBuilder, real: ir.Value, imag: ir.Value) -> ir.Value:
    """Return the complex tensor of two real ones of one shape."""
    axis = op.rank(real)
    return mark_complex(op.Concat(op.Unsqueeze(real, [axis]), op.Unsqueeze(imag, [axis]), axis=axis))


@lowering(aten.view_as_real.default, aten.view_as_real_copy.default, complex=True)
def bare(op: OpBuilder, value: ir.Value) -> ir.Value:
    """Return a copy of ``value`` of its own, so that only one of the two is marked as complex."""
    return op.emit_many("Identity", 1, value)[0]


def _sample(value: Any) -> Any:
    """Return something that promotes in torch as ``value`` does."""
    if not isinstance(value, ir.Value):
        return value
    dtype = to_torch(value.dtype or ir.DataType.FLOAT)
    rank = len(value.shape or ()) - int(is_complex(value))
    sample = torch.zeros((1,) * min(rank, 1), dtype=dtype)
    return sample.to(dtype.to_complex()) if is_complex(value) else sample


def complex_operands(op: OpBuilder, *operands: Any) -> list[ir.Value]:
    """Return operands, at least one of them complex, as complex tensors of the dtype that torch computes in."""
    samples = [_sample(operand) for operand in operands]
    dtype = to_ir(functools.reduce(_promoted, samples[1:], samples[0]).dtype)
    return [_complex(op, operand, dtype) for operand in operands]


def _promoted(first: Any, second: Any) -> torch.Tensor:
    return torch.zeros((1,), dtype=torch.result_type(first, second))


def _complex(op: OpBuilder, operand: Any, dtype: ir.DataType) -> ir.Value:
    if isinstance(operand, ir.Value):
        return mark_complex(op.cast(as_complex(op, operand), dtype))
    number = complex(operand)
    return op.constant([number.real, number.imag], dtype)


# ---- between real and complex


@lowering(aten.complex.default)
def complex_(op: OpBuilder, real: ir.Value, imag: ir.Value) -> ir.Value:
    real, imag = promote(op, real, imag)
    if real.shape != imag.shape:
        # Each is broadcast to the shape of both by adding a zero of the other's shape.
        real, imag = op.Add(real, op.Mul(imag, 0)), op.Add(imag, op.Mul(real, 0))
    return joined(op, real, imag)


@lowering(aten.polar.default)
def polar(op: OpBuilder, abs: ir.Value, angle: ir.Value) -> ir.Value:
    return joined(op, op.Mul(abs, op.Cos(angle)), op.Mul(abs, op.Sin(angle)))


@lowering(aten.view_as_complex.default, aten.view_as_complex_copy.default)
def view_as_complex(op: OpBuilder, self: ir.Value) -> ir.Value:
    return mark_complex(bare(op, self))


@lowering(aten.real.default, "prims::real", complex=True)
def real(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.Gather(self, 0, axis=-1)


@lowering(aten.imag.default, "prims::imag", complex=True)
def imag(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.Gather(self, 1, axis=-1)


_CONJUGATES = (
    aten.conj.default,
    aten._conj.default,
    aten._conj_copy.default,
    aten.conj_physical.default,
    aten._conj_physical.default,
    "prims::conj",
    "prims::conj_physical",
)


@lowering(*_CONJUGATES, complex=True)
def conj(op: OpBuilder, self: ir.Value) -> ir.Value:
    return mark_complex(op.Mul(self, [1.0, -1.0]))


@lowering(*_CONJUGATES)
def conj_of_real(op: OpBuilder, self: ir.Value) -> ir.Value:
    return self


@lowering(aten.angle.default)
def angle_of_real(op: OpBuilder, self: ir.Value) -> ir.Value:
    if not op.dtype(self).is_floating_point():
        self = op.cast(self, to_ir(torch.get_default_dtype()))
    turned = op.Where(op.Less(self, 0), math.pi, op.constant(0, op.dtype(self)))
    return op.Where(op.IsNaN(self), self, turned) if op.minds_nan(self) else turned


@lowering(aten.angle.default, complex=True)
def angle(op: OpBuilder, self: ir.Value) -> ir.Value:
    x, y = parts(op, self)
    return elementary.atan2(op, y, x)


@lowering(aten.abs.default, complex=True)
def abs_(op: OpBuilder, self: ir.Value) -> ir.Value:
    # Squares that FLOAT has no room for DOUBLE has.
    wide = op.cast(self, ir.DataType.DOUBLE)
    return op.cast(op.ReduceL2(wide, [op.rank(self) - 1], keepdims=0), op.dtype(self))


@lowering(aten.sgn.default, complex=True)
def sgn(op: OpBuilder, self: ir.Value) -> ir.Value:
    size = op.ReduceL2(self, [op.rank(self) - 1], keepdims=1)
    return mark_complex(op.Div(self, op.Where(op.Equal(size, 0), 1, size)))


# ---- arithmetic


def _scaled(op: OpBuilder, z: ir.Value, alpha: Any) -> ir.Value:
    if isinstance(alpha, int | float):
        return z if alpha == 1 else op.Mul(z, alpha)
    return multiplied(op, *complex_operands(op, z, alpha))


@lowering(aten.add.Tensor, aten.add.Scalar, complex=True)
def add(op: OpBuilder, self: Operand, other: Operand, alpha: Any = 1) -> ir.Value:
    left, right = complex_operands(op, self, other)
    return mark_complex(op.Add(left, _scaled(op, right, alpha)))


@lowering(aten.sub.Tensor, aten.sub.Scalar, complex=True)
def sub(op: OpBuilder, self: Operand, other: Operand, alpha: Any = 1) -> ir.Value:
    left, right = complex_operands(op, self, other)
    return mark_complex(op.Sub(left, _scaled(op, right, alpha)))


@lowering(aten.rsub.Tensor, aten.rsub.Scalar, complex=True)
def rsub(op: OpBuilder, self: Operand, other: Operand, alpha: Any = 1) -> ir.Value:
    return sub(op, other, self, alpha)


def multiplied(op: OpBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return the product of two complex tensors of one dtype."""
    (x, y), (u, v) = parts(op, a), parts(op, b)
    return joined(op, op.Sub(op.Mul(x, u), op.Mul(y, v)), op.Add(op.Mul(x, v), op.Mul(y, u)))


def _stretched(op: OpBuilder, a: Any, b: Any) -> ir.Value | None:
    """Return ``a * b`` where only one of them is complex and the other a real tensor or number."""
    if is_complex(b):
        a, b = b, a
    if is_complex(b) or isinstance(b, complex):
        return None
    dtype = op.dtype(complex_operands(op, a, b)[0])
    factor = op.cast(op.Unsqueeze(b, [op.rank(b)]), dtype) if isinstance(b, ir.Value) else b
    return mark_complex(op.Mul(op.cast(a, dtype), factor))


@lowering(aten.mul.Tensor, aten.mul.Scalar, complex=True)
def mul(op: OpBuilder, self: Any, other: Any) -> ir.Value:
    result = _stretched(op, self, other)
    return multiplied(op, *complex_operands(op, self, other)) if result is None else result


def _inverse(op: OpBuilder, z: ir.Value) -> ir.Value:
    """Return ``1 / z``, scaled so that the square of its size cannot overflow."""
    axis = [op.rank(z) - 1]
    scale = op.ReduceMax(op.Abs(z), axis, keepdims=1)
    unit = op.Div(z, scale)
    return op.Div(op.Div(op.Mul(unit, [1.0, -1.0]), op.ReduceSumSquare(unit, axis, keepdims=1)), scale)


@lowering(aten.reciprocal.default, complex=True)
def reciprocal(op: OpBuilder, self: ir.Value) -> ir.Value:
    return mark_complex(_inverse(op, self))


@lowering(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor, aten.true_divide.Scalar, complex=True)
def div(op: OpBuilder, self: Any, other: Any) -> ir.Value:
    if is_complex(self) and not is_complex(other) and not isinstance(other, complex):
        dtype = op.dtype(complex_operands(op, self, other)[0])
        divisor = op.cast(op.Unsqueeze(other, [op.rank(other)]), dtype) if isinstance(other, ir.Value) else other
        return mark_complex(op.Div(op.cast(self, dtype), divisor))
    left, right = complex_operands(op, self, other)
    return multiplied(op, left, _inverse(op, right))


@lowering(aten.neg.default, aten._neg_view.default, complex=True)
def neg(op: OpBuilder, self: ir.Value) -> ir.Value:
    return mark_complex(op.Neg(self))


@lowering(aten.square.default, complex=True)
def square(op: OpBuilder, self: ir.Value) -> ir.Value:
    return multiplied(op, self, self)


# ---- comparison


@lowering(aten.eq.Tensor, aten.eq.Scalar, complex=True)
def eq(op: OpBuilder, self: Any, other: Any) -> ir.Value:
    same = op.Equal(*complex_operands(op, self, other))
    return op.And(*parts(op, same))


@lowering(aten.ne.Tensor, aten.ne.Scalar, complex=True)
def ne(op: OpBuilder, self: Any, other: Any) -> ir.Value:
    return op.Not(eq(op, self, other))


def _either(test: Callable[[OpBuilder, ir.Value], ir.Value], together: str) -> Callable[..., ir.Value]:
    """Lowering of a test of numbers from one of their parts."""

    def tested(op: OpBuilder, self: ir.Value) -> ir.Value:
        return op.emit(together, *parts(op, test(op, self)))

    return tested


lowering(aten.isnan.default, complex=True)(_either(lambda op, z: op.IsNaN(z), "Or"))
lowering(aten.isinf.default, complex=True)(_either(lambda op, z: op.IsInf(z), "Or"))
lowering(aten.isfinite.default, complex=True)(_either(lambda op, z: op.Equal(op.Sub(z, z), 0), "And"))
lowering(aten.logical_not.default, complex=True)(_either(lambda op, z: op.Equal(z, 0), "And"))


@lowering(aten.isreal.default, complex=True)
def isreal(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.Equal(op.Gather(self, 1, axis=-1), 0)


@lowering(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar, complex=True)
def where(op: OpBuilder, condition: ir.Value, self: Any, other: Any) -> ir.Value:
    left, right = complex_operands(op, self, other)
    return mark_complex(op.Where(op.Unsqueeze(op.cast(condition, BOOL), [op.rank(condition)]), left, right))


@lowering(aten.masked_fill.Scalar, aten.masked_fill.Tensor, complex=True)
def masked_fill(op: OpBuilder, self: ir.Value, mask: ir.Value, value: Any) -> ir.Value:
    filling = _complex(op, value, op.dtype(self))
    return mark_complex(op.Where(op.Unsqueeze(op.cast(mask, BOOL), [op.rank(mask)]), filling, self))
