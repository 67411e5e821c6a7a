"""Inverse functions of complex numbers, and functions that keep their digits near 0 or 1.

Source: W. Kahan, Branch Cuts for Complex Elementary Functions, or Much Ado About Nothing's Sign Bit (1987).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import mark_complex
from onnxops_decomp.lowerings.complex.functions import exp, sqrt, turned, turned_back
from onnxops_decomp.lowerings.complex.numbers import abs_, complex_operands, joined, multiplied, parts
from onnxops_decomp.lowerings.pointwise import elementary
from onnxops_decomp.lowerings.reductions.scans import running
from onnxops_decomp.lowerings.registry import builtin_table, lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.dtypes import Operand

aten = torch.ops.aten


def _real(op: OpBuilder, name: str, value: ir.Value) -> ir.Value:
    result: ir.Value = builtin_table()[f"aten::{name}"].function(op, value)
    return result


def _product_imag(op: OpBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return the imaginary part of ``conj(a) * b``."""
    (x, y), (u, v) = parts(op, a), parts(op, b)
    return op.Sub(op.Mul(x, v), op.Mul(y, u))


def _product_real(op: OpBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return the real part of ``a * b``."""
    (x, y), (u, v) = parts(op, a), parts(op, b)
    return op.Sub(op.Mul(x, u), op.Mul(y, v))


def _roots_around_one(op: OpBuilder, z: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return ``sqrt(1 - z)`` and ``sqrt(1 + z)``; the imaginary part 0 of ``1 - z`` has the other sign than z's."""
    x, y = parts(op, z)
    return sqrt(op, joined(op, op.Sub(1.0, x), op.Neg(y))), sqrt(op, joined(op, op.Add(x, 1.0), y))


@lowering(aten.asin.default, complex=True)
def asin(op: OpBuilder, self: ir.Value) -> ir.Value:
    below, above = _roots_around_one(op, self)
    real = elementary.atan2(op, parts(op, self)[0], _product_real(op, below, above))
    return joined(op, real, _real(op, "asinh", _product_imag(op, below, above)))


@lowering(aten.acos.default, complex=True)
def acos(op: OpBuilder, self: ir.Value) -> ir.Value:
    below, above = _roots_around_one(op, self)
    real = op.Mul(elementary.atan2(op, parts(op, below)[0], parts(op, above)[0]), 2.0)
    return joined(op, real, _real(op, "asinh", _product_imag(op, above, below)))


@lowering(aten.acosh.default, complex=True)
def acosh(op: OpBuilder, self: ir.Value) -> ir.Value:
    x, y = parts(op, self)
    below, above = sqrt(op, joined(op, op.Sub(x, 1.0), y)), sqrt(op, joined(op, op.Add(x, 1.0), y))
    (a, b), (c, d) = parts(op, below), parts(op, above)
    real = _real(op, "asinh", op.Add(op.Mul(a, c), op.Mul(b, d)))
    return joined(op, real, op.Mul(elementary.atan2(op, b, c), 2.0))


@lowering(aten.asinh.default, complex=True)
def asinh(op: OpBuilder, self: ir.Value) -> ir.Value:
    return turned_back(op, asin(op, turned(op, self)))


@lowering(aten.atanh.default, complex=True)
def atanh(op: OpBuilder, self: ir.Value) -> ir.Value:
    x, y = parts(op, self)
    squared, size = op.Mul(y, y), op.Abs(x)
    beside = op.Sub(1.0, size)
    # Where x is near -1 the logarithm of little is left; the function is odd.
    real = _real(op, "log1p", op.Div(op.Mul(size, 4.0), op.Add(op.Mul(beside, beside), squared)))
    real = op.Mul(real, op.Sign(x))
    across = op.Sub(op.Mul(beside, op.Add(size, 1.0)), squared)
    angle = elementary.atan2(op, op.Mul(y, 2.0), across)
    return joined(op, op.Mul(real, 0.25), op.Mul(angle, 0.5))


@lowering(aten.atan.default, complex=True)
def atan(op: OpBuilder, self: ir.Value) -> ir.Value:
    return turned_back(op, atanh(op, turned(op, self)))


@lowering(aten.exp2.default, complex=True)
def exp2(op: OpBuilder, self: ir.Value) -> ir.Value:
    return exp(op, mark_complex(op.Mul(self, math.log(2))))


@lowering(aten.expm1.default, complex=True)
def expm1(op: OpBuilder, self: ir.Value) -> ir.Value:
    x, y = parts(op, self)
    half = op.Sin(op.Mul(y, 0.5))
    # exp(x) cos(y) - 1, without the difference of two numbers near 1.
    real = op.Sub(op.Mul(_real(op, "expm1", x), op.Cos(y)), op.Mul(op.Mul(half, half), 2.0))
    return joined(op, real, op.Mul(op.Exp(x), op.Sin(y)))


@lowering(aten.log1p.default, complex=True)
def log1p(op: OpBuilder, self: ir.Value) -> ir.Value:
    x, y = parts(op, self)
    above = op.Add(x, 1.0)
    near = op.Mul(_real(op, "log1p", op.Add(op.Mul(x, op.Add(x, 2.0)), op.Mul(y, y))), 0.5)
    # The square of a large number overflows; there is nothing to keep near 1 then.
    large = op.Greater(abs_(op, self), 10.0)
    far = op.Log(abs_(op, joined(op, above, y)))
    return joined(op, op.Where(large, far, near), elementary.atan2(op, y, above))


def _log_of_sum(op: OpBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return ``log(exp(a) + exp(b))``, the term of the larger real part taken out."""
    first, second = parts(op, a)[0], parts(op, b)[0]
    greater = op.Unsqueeze(op.GreaterOrEqual(first, second), [op.rank(first)])
    largest, smallest = op.Where(greater, a, b), op.Where(greater, b, a)
    # Nothing is left of 0 + 0, whose logarithms have no difference.
    nothing = op.Unsqueeze(op.And(op.Equal(first, -math.inf), op.Equal(second, -math.inf)), [op.rank(first)])
    ratio = exp(op, mark_complex(op.Where(nothing, -math.inf, op.Sub(smallest, largest))))
    ratio = mark_complex(op.Where(nothing, 0.0, ratio))
    return mark_complex(op.Add(largest, log1p(op, ratio)))


@lowering(aten.logaddexp.default, complex=True)
def logaddexp(op: OpBuilder, self: Operand, other: Operand) -> ir.Value:
    return _log_of_sum(op, *complex_operands(op, self, other))


# ---- along a dimension


def _running(op: OpBuilder, z: ir.Value, dim: int, start: list[float], step: Any) -> ir.Value:
    rank = op.rank(z) - 1
    if rank == 0:
        return z

    def advance(body: OpBuilder, element: ir.Value, index: ir.Value, state: Any) -> list[ir.Value]:
        return [step(body, mark_complex(state[0]), mark_complex(element))]

    return mark_complex(running(op, z, dim % rank, [op.constant(start, op.dtype(z))], advance)[0])


def _as_dtype(op: OpBuilder, z: ir.Value, dtype: torch.dtype | None) -> ir.Value:
    return complex_operands(op, z)[0] if dtype is None else builtin_table()["aten::_to_copy"].function(op, z, dtype)


@lowering(aten.cumprod.default, complex=True)
def cumprod(op: OpBuilder, self: ir.Value, dim: int, dtype: torch.dtype | None = None) -> ir.Value:
    return _running(op, _as_dtype(op, self, dtype), dim, [1.0, 0.0], multiplied)


@lowering(aten.logcumsumexp.default, complex=True)
def logcumsumexp(op: OpBuilder, self: ir.Value, dim: int) -> ir.Value:
    return _running(op, self, dim, [-math.inf, 0.0], _log_of_sum)
