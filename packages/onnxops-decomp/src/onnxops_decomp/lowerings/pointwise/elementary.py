"""Exponentials, logarithms, trigonometric and hyperbolic functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import promote, promoted, result_dtype, to_torch
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.formulas.float_bits import mantissa_and_exponent, power_of_two
from onnxops_decomp.lowerings.pointwise.comparison import sign_bit
from onnxops_decomp.lowerings.registry import Function, lowering
from onnxops_decomp.spec.inference import dims_of

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

aten = torch.ops.aten


def _unary_float(op_type: str) -> Function:
    """Lowering of a function that computes in floats: integers and bools become the default float dtype."""

    @promoted("self", to_float=True)
    def unary(op: OpBuilder, self: ir.Value) -> ir.Value:
        return op.emit(op_type, self)

    return unary


for _name, _op_type in {
    "acos": "Acos",
    "acosh": "Acosh",
    "asin": "Asin",
    "asinh": "Asinh",
    "atan": "Atan",
    "atanh": "Atanh",
    "cos": "Cos",
    "cosh": "Cosh",
    "erf": "Erf",
    "exp": "Exp",
    "log": "Log",
    "sigmoid": "Sigmoid",
    "sin": "Sin",
    "sinh": "Sinh",
    "sqrt": "Sqrt",
    "tan": "Tan",
    "tanh": "Tanh",
}.items():
    lowering(f"aten::{_name}")(_unary_float(_op_type))


@lowering(aten.exp2.default)
@promoted("self", to_float=True)
def exp2(op: OpBuilder, self: ir.Value) -> ir.Value:
    return power_of_two(op, self)


@lowering(aten.expm1.default)
@promoted("self", to_float=True)
def expm1(op: OpBuilder, self: ir.Value) -> ir.Value:
    # exp(x) - 1 loses every digit near 0, 2 t / (1 - t) of t = tanh(x / 2) none; far from 0 it is the other way round.
    half = op.Tanh(op.Mul(self, 0.5))
    near = op.Div(op.Add(half, half), op.Sub(1, half))
    return op.Where(op.Less(op.Abs(self), 0.5), near, op.Sub(op.Exp(self), 1))


@lowering(aten.log1p.default)
@promoted("self", to_float=True)
def log1p(op: OpBuilder, self: ir.Value) -> ir.Value:
    # What rounding 1 + x loses is added back; where it overflows or is 0 there is nothing to add.
    shifted = op.Add(self, 1)
    plain = op.Log(shifted)
    lost = op.Sub(self, op.Sub(shifted, 1))
    return op.Where(op.Less(op.Abs(self), 0.5), op.Add(plain, op.Div(lost, shifted)), plain)


def _log_base(base: float) -> Function:
    """Logarithms; those of whole powers are whole where ``floor`` and its like may follow.

    A quotient of logarithms may miss a whole number by a rounding. What makes up for it takes several times as long, so
    that tensors of floats are left to it: numbers, integers and doubles are what sizes and counts come as.
    """

    @promoted("self", to_float=True)
    def quotient(op: OpBuilder, self: ir.Value) -> ir.Value:
        return op.Div(op.Log(self), math.log(base))

    def log(op: OpBuilder, self: ir.Value) -> ir.Value:
        result = quotient(op, self)
        if op.dtype(self).is_floating_point() and op.dtype(self) != ir.DataType.DOUBLE and dims_of(self) != ():
            return result
        whole = op.Round(result)
        power = op.Pow(op.constant(base, op.dtype(result)), whole)
        return op.Where(op.Equal(power, op.cast(self, op.dtype(result))), whole, result)

    return log


lowering(aten.log2.default)(_log_base(2))
lowering(aten.log10.default)(_log_base(10))


@lowering(aten.logit.default)
@promoted("self", to_float=True)
def logit(op: OpBuilder, self: ir.Value, eps: float | None = None) -> ir.Value:
    value = self if eps is None else op.Clip(self, eps, 1 - eps)
    return op.Log(op.Div(value, op.Sub(1, value)))


@lowering(aten.sinc.default)
@promoted("self", to_float=True)
def sinc(op: OpBuilder, self: ir.Value) -> ir.Value:
    angle = op.Mul(self, math.pi)
    return op.Where(op.Equal(self, 0), 1, op.Div(op.Sin(angle), angle))


@lowering(aten.deg2rad.default)
@promoted("self", to_float=True)
def deg2rad(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.Mul(self, math.pi / 180)


@lowering(aten.rad2deg.default)
@promoted("self", to_float=True)
def rad2deg(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.Mul(self, 180 / math.pi)


@lowering(aten.atan2.default)
@promoted("self", "other", to_float=True)
def atan2(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    y, x = op.Abs(self), op.Abs(other)
    # The angle in the first quadrant; equal legs stand for 0 / 0 and inf / inf, too.
    ratio = op.Where(op.Equal(y, x), op.Cast(op.Greater(y, 0), to=op.dtype(y)), op.Div(y, x))
    angle = op.Atan(ratio)
    angle = op.Where(sign_bit(op, other), op.Sub(math.pi, angle), angle)
    return op.Where(sign_bit(op, self), op.Neg(angle), angle)


# ---- sums of exponentials, products with logarithms


@lowering(aten.logaddexp.default)
@promoted("self", "other")
def logaddexp(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    return log_of_sum(op, self, other, 1.0)


@lowering(aten.logaddexp2.default)
@promoted("self", "other")
def logaddexp2(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    return log_of_sum(op, self, other, math.log(2))


def log_of_sum(op: OpBuilder, a: ir.Value, b: ir.Value, unit: float) -> ir.Value:
    """Return ``log(exp(a) + exp(b))`` for exponents and logarithm in multiples of ``unit``."""
    large = op.Max(a, b)
    distance = op.Abs(op.Sub(a, b))
    rest = op.Div(log1p(op, op.Exp(op.Mul(distance, -unit))), unit)
    # Equal infinities have no distance.
    return op.Where(op.IsInf(large), large, op.Add(large, rest))


@lowering(
    aten.xlogy.Tensor,
    aten.xlogy.Scalar_Other,
    aten.xlogy.Scalar_Self,
    aten.special_xlogy.default,
    aten.special_xlogy.other_scalar,
    aten.special_xlogy.self_scalar,
)
@promoted("self", "other", to_float=True)
def xlogy(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    return _times_log(op, self, other, op.Log(other))


@lowering(
    aten.special_xlog1py.default,
    aten.special_xlog1py.other_scalar,
    aten.special_xlog1py.self_scalar,
)
@promoted("self", "other", to_float=True)
def xlog1py(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    return _times_log(op, self, other, log1p(op, other))


def _times_log(op: OpBuilder, x: ir.Value, y: ir.Value, log: ir.Value) -> ir.Value:
    """Return ``x * log``, which is 0 for an ``x`` of 0 unless ``y`` is NaN."""
    zero = op.Equal(x, 0)
    if op.minds_nan(y):
        zero = op.And(zero, op.Not(op.IsNaN(y)))
    return op.Where(zero, 0, op.Mul(x, log))


# ---- binary exponents


@lowering(aten.ldexp.Tensor)
def ldexp(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    dtype = result_dtype(self, other, 1.0)
    mantissa, exponent = promote(op, self, other, dtype=dtype)
    return op.Mul(mantissa, op.Pow(op.constant(2.0, dtype), exponent))


@lowering(aten.frexp.Tensor)
def frexp(op: OpBuilder, self: ir.Value) -> tuple[ir.Value, ir.Value]:
    dtype = op.dtype(self)
    value = op.cast(self, ir.DataType.DOUBLE)
    # Numbers without a mantissa of their own: zero, infinity, NaN.
    plain = op.Or(op.Equal(value, 0), op.Not(op.Equal(op.Sub(value, value), 0)))
    mantissa, exponent = mantissa_and_exponent(op, op.Where(plain, 1, op.Abs(value)))
    mantissa = op.Where(op.Less(value, 0), op.Neg(mantissa), mantissa)
    whole = op.cast(op.Where(plain, 0, exponent), ir.DataType.INT32)
    return op.cast(op.Where(plain, value, mantissa), dtype), whole


@lowering(aten.nextafter.default)
@promoted("self", "other")
def nextafter(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    dtype = op.dtype(self)
    if dtype == ir.DataType.DOUBLE:
        raise LoweringError("nextafter of float64 has no ONNX form, as no wider dtype exists; compute it in float32.")
    limits = torch.finfo(to_torch(dtype))
    digits, lowest = 1 - int(math.log2(limits.eps)), int(math.log2(limits.smallest_normal))
    value, target = op.cast(self, ir.DataType.DOUBLE), op.cast(other, ir.DataType.DOUBLE)
    zero = op.Equal(value, 0)
    outward = op.Or(zero, op.Equal(op.Less(value, target), op.Greater(value, 0)))
    size = op.Where(op.Or(zero, op.IsInf(value)), limits.smallest_normal, op.Abs(value))
    mantissa, exponent = mantissa_and_exponent(op, size)
    # Towards zero a power of two has its neighbour at half the distance.
    near = op.And(op.Not(outward), op.Equal(mantissa, 0.5))
    exponent = op.Sub(exponent, op.cast(near, ir.DataType.DOUBLE))
    step = power_of_two(op, op.Max(op.Sub(exponent, digits), lowest + 1 - digits))
    moved = op.Add(value, op.Where(op.Less(value, target), step, op.Neg(step)))
    inward = op.And(op.IsInf(value), op.Not(outward))
    moved = op.Where(inward, op.Mul(op.Sign(value), limits.max), moved)
    result = op.Where(op.Equal(value, target), target, moved)
    undefined = op.Or(op.IsNaN(value), op.IsNaN(target))
    return op.cast(op.Where(undefined, math.nan, result), dtype)
