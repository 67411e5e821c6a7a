"""Elementary functions of complex numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import mark_complex
from onnxops_decomp.lowerings.complex.numbers import (
    abs_,
    angle,
    complex_operands,
    joined,
    multiplied,
    parts,
    reciprocal,
)
from onnxops_decomp.lowerings.pointwise.comparison import sign_bit
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

aten = torch.ops.aten


@lowering(aten.exp.default, complex=True)
def exp(op: OpBuilder, self: ir.Value) -> ir.Value:
    x, y = parts(op, self)
    size = op.Exp(x)
    return joined(op, op.Mul(size, op.Cos(y)), op.Mul(size, op.Sin(y)))


@lowering(aten.log.default, complex=True)
def log(op: OpBuilder, self: ir.Value) -> ir.Value:
    return joined(op, op.Log(abs_(op, self)), angle(op, self))


def _log_base(base: float) -> Any:
    def log_base(op: OpBuilder, self: ir.Value) -> ir.Value:
        return mark_complex(op.Div(log(op, self), math.log(base)))

    return log_base


lowering(aten.log2.default, complex=True)(_log_base(2))
lowering(aten.log10.default, complex=True)(_log_base(10))


@lowering(aten.sqrt.default, complex=True)
def sqrt(op: OpBuilder, self: ir.Value) -> ir.Value:
    x, y = parts(op, self)
    # The larger part of the root comes from a sum, the other from it: no digits cancel.
    large = op.Sqrt(op.Mul(op.Add(abs_(op, self), op.Abs(x)), 0.5))
    small = op.Where(op.Equal(large, 0), 0, op.Div(op.Abs(y), op.Mul(large, 2)))
    right = op.GreaterOrEqual(x, 0)
    imag = op.Where(right, small, large)
    return joined(op, op.Where(right, large, small), op.Where(sign_bit(op, y), op.Neg(imag), imag))


@lowering(aten.rsqrt.default, complex=True)
def rsqrt(op: OpBuilder, self: ir.Value) -> ir.Value:
    return reciprocal(op, sqrt(op, self))


@lowering(aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar, complex=True)
def power(op: OpBuilder, self: Any, exponent: Any) -> ir.Value:
    base, raised = complex_operands(op, self, exponent)
    if exponent == 2:
        return multiplied(op, base, base)
    if exponent == 1:
        return mark_complex(base)
    value = exp(op, multiplied(op, log(op, mark_complex(base)), raised))
    nothing = _is_zero(op, base)
    value = op.Where(nothing, _power_of_zero(op, raised), value)
    one = op.constant([1.0, 0.0], op.dtype(value))
    trivial = _is_zero(op, raised)
    if isinstance(exponent, ir.Value):
        # torch has no 0 ** 0 of two tensors, but for a number 0 it does not look at the base.
        trivial = op.And(trivial, op.Not(nothing))
    return mark_complex(op.Where(trivial, one, value))


def _is_zero(op: OpBuilder, z: ir.Value) -> ir.Value:
    """Tell which numbers are 0, with a dimension of size 1 in place of that of the parts."""
    return op.Equal(op.ReduceMax(op.Abs(z), [op.rank(z) - 1], keepdims=1), 0)


def _power_of_zero(op: OpBuilder, exponent: ir.Value) -> ir.Value:
    """Return what torch takes powers of 0 for: nothing, infinity, or undefined, by the sign of the real part."""
    x, _ = parts(op, exponent)
    none, undefined = op.constant(0.0, op.dtype(x)), op.constant(math.nan, op.dtype(x))
    positive = op.Greater(x, 0)
    infinite = op.Where(op.Less(x, 0), op.constant(math.inf, op.dtype(x)), undefined)
    return joined(op, op.Where(positive, none, infinite), op.Where(positive, none, undefined))


def _waves(op: OpBuilder, self: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
    """Return sin and cos of the real part, sinh and cosh of the imaginary part."""
    x, y = parts(op, self)
    return op.Sin(x), op.Cos(x), op.Sinh(y), op.Cosh(y)


@lowering(aten.sin.default, complex=True)
def sin(op: OpBuilder, self: ir.Value) -> ir.Value:
    sine, cosine, sinh_y, cosh_y = _waves(op, self)
    return joined(op, op.Mul(sine, cosh_y), op.Mul(cosine, sinh_y))


@lowering(aten.cos.default, complex=True)
def cos(op: OpBuilder, self: ir.Value) -> ir.Value:
    sine, cosine, sinh_y, cosh_y = _waves(op, self)
    return joined(op, op.Mul(cosine, cosh_y), op.Neg(op.Mul(sine, sinh_y)))


def turned(op: OpBuilder, z: ir.Value) -> ir.Value:
    """Return ``i z``."""
    x, y = parts(op, z)
    return joined(op, op.Neg(y), x)


def turned_back(op: OpBuilder, z: ir.Value) -> ir.Value:
    """Return ``z / i``."""
    x, y = parts(op, z)
    return joined(op, y, op.Neg(x))


@lowering(aten.sinh.default, complex=True)
def sinh(op: OpBuilder, self: ir.Value) -> ir.Value:
    return turned_back(op, sin(op, turned(op, self)))


@lowering(aten.cosh.default, complex=True)
def cosh(op: OpBuilder, self: ir.Value) -> ir.Value:
    return cos(op, turned(op, self))


@lowering(aten.tanh.default, complex=True)
def tanh(op: OpBuilder, self: ir.Value) -> ir.Value:
    x, y = parts(op, self)
    # Beyond 20 tanh is 1 to the last digit, and cosh has not overflowed yet.
    real, imaginary = op.Mul(op.Clip(x, -20, 20), 2), op.Mul(y, 2)
    divisor = op.Add(op.Cosh(real), op.Cos(imaginary))
    return joined(op, op.Div(op.Sinh(real), divisor), op.Div(op.Sin(imaginary), divisor))


@lowering(aten.tan.default, complex=True)
def tan(op: OpBuilder, self: ir.Value) -> ir.Value:
    return turned_back(op, tanh(op, turned(op, self)))


@lowering(aten.sigmoid.default, complex=True)
def sigmoid(op: OpBuilder, self: ir.Value) -> ir.Value:
    grown = exp(op, mark_complex(op.Neg(self)))
    return reciprocal(op, mark_complex(op.Add(grown, op.constant([1.0, 0.0], op.dtype(grown)))))
