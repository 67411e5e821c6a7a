"""Arithmetic, element by element."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import promote, promoted, result_dtype, to_torch
from onnxops_decomp.formulas.integer_powers import integer_power, power_by_squaring
from onnxops_decomp.lowerings.pointwise.comparison import sign_bit
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.spec.signs import is_never_negative

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.dtypes import Operand

aten = torch.ops.aten

BOOL, DOUBLE, INT32 = ir.DataType.BOOL, ir.DataType.DOUBLE, ir.DataType.INT32


def _scaled(op: OpBuilder, other: ir.Value, alpha: Operand) -> ir.Value:
    """Return ``alpha * other``; torch multiplies in the dtype of ``other``."""
    if isinstance(alpha, int | float) and alpha == 1:
        return other
    factor = op.cast(alpha, other.dtype) if isinstance(alpha, ir.Value) and other.dtype is not None else alpha
    return op.Mul(other, factor)


def static_number(op: OpBuilder, value: ir.Value) -> float | None:
    """Return the number that ``value`` holds if it is a constant of one element, else None."""
    array = op.static(value)
    return float(array.item()) if array is not None and array.size == 1 else None


@lowering(aten.add.Tensor, aten.add.Scalar)
@promoted("self", "other")
def add(op: OpBuilder, self: ir.Value, other: ir.Value, alpha: Operand = 1) -> ir.Value:
    if self.dtype == BOOL:
        if isinstance(alpha, ir.Value):
            return op.Or(self, op.And(other, op.cast(alpha, BOOL)))
        return op.Or(self, other) if alpha else op.And(self, op.Or(other, True))
    return op.Add(self, _scaled(op, other, alpha))


@lowering(aten.sub.Tensor, aten.sub.Scalar)
@promoted("self", "other")
def sub(op: OpBuilder, self: ir.Value, other: ir.Value, alpha: Operand = 1) -> ir.Value:
    return op.Sub(self, _scaled(op, other, alpha))


@lowering(aten.rsub.Tensor, aten.rsub.Scalar)
@promoted("self", "other")
def rsub(op: OpBuilder, self: ir.Value, other: ir.Value, alpha: Operand = 1) -> ir.Value:
    return op.Sub(other, _scaled(op, self, alpha))


@lowering(aten.mul.Tensor, aten.mul.Scalar)
@promoted("self", "other")
def mul(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    if self.dtype == BOOL:
        return op.And(self, other)
    return op.Mul(self, other)


@lowering(aten.addcmul.default)
@promoted("self", "tensor1", "tensor2")
def addcmul(op: OpBuilder, self: ir.Value, tensor1: ir.Value, tensor2: ir.Value, value: Operand = 1) -> ir.Value:
    return op.Add(self, op.Mul(_scaled(op, tensor1, value), tensor2))


@lowering(aten.addcdiv.default)
@promoted("self", "tensor1", "tensor2")
def addcdiv(op: OpBuilder, self: ir.Value, tensor1: ir.Value, tensor2: ir.Value, value: Operand = 1) -> ir.Value:
    return op.Add(self, op.Div(_scaled(op, tensor1, value), tensor2))


@lowering(aten.lerp.Tensor, aten.lerp.Scalar)
def lerp(op: OpBuilder, self: ir.Value, end: ir.Value, weight: Operand) -> ir.Value:
    step = op.Sub(end, self)
    if isinstance(weight, int | float):
        # Past the middle torch starts from the other end, which makes the result exact at both.
        return op.Add(self, op.Mul(step, weight)) if abs(weight) < 0.5 else op.Sub(end, op.Mul(step, 1 - weight))
    share = op.cast(weight, op.dtype(self))
    near = op.Add(self, op.Mul(share, step))
    far = op.Sub(end, op.Mul(step, op.Sub(1, share)))
    return op.Where(op.Less(op.Abs(share), 0.5), near, far)


# ---- division


@lowering(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor, aten.true_divide.Scalar)
@promoted("self", "other", to_float=True)
def div(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    return op.Div(self, other)


@lowering(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(op: OpBuilder, self: ir.Value, other: ir.Value, rounding_mode: str | None = None) -> ir.Value:
    if rounding_mode is None:
        return div(op, self, other)
    left, right = promote(op, self, other)
    if rounding_mode == "floor":
        return floor_divided(op, left, right)
    quotient = op.Div(left, right)
    return quotient if op.dtype(left).is_integer() else truncated(op, quotient)


@lowering(aten.floor_divide.default, aten.floor_divide.Scalar)
@promoted("self", "other")
def floor_divide(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    return floor_divided(op, self, other)


def floor_divided(op: OpBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return ``a // b`` as Python has it, which is not always the rounded quotient of floats: 1 // 0.1 is 9."""
    divisor = static_number(op, b)
    if not op.dtype(a).is_floating_point():
        return _floor_divided_integers(op, a, b, divisor)
    if divisor and math.frexp(divisor)[0] in (0.5, -0.5):
        # The product is NaN for infinities, which have no quotient.
        return op.Add(op.Floor(op.Div(a, b)), op.Mul(a, 0.0))
    remainder = op.Mod(a, b, fmod=1)
    toward_zero = op.Round(op.Div(op.Sub(a, remainder), b))
    quotient = op.Sub(toward_zero, op.cast(_is_opposite(op, remainder, b), op.dtype(a)))
    return quotient if divisor else op.Where(op.Equal(b, 0), op.Div(a, b), quotient)


def _floor_divided_integers(op: OpBuilder, a: ir.Value, b: ir.Value, divisor: float | None) -> ir.Value:
    dtype = op.dtype(a)
    if divisor == 1:
        return a
    if not divisor or divisor < 0 or is_never_negative(a, op.static):
        return op.floor_div(a, b)
    if dtype.itemsize < 4:
        return op.cast(_floor_divided_integers(op, op.cast(a, INT32), op.cast(b, INT32), divisor), dtype)
    # Div rounds towards zero: of a negative number n, that of n + 1 is one too much. No step leaves the dtype.
    step = op.Clip(a, -1, 0)
    return op.Add(op.Div(op.Sub(a, step), b), step)


def _is_opposite(op: OpBuilder, remainder: ir.Value, b: ir.Value) -> ir.Value:
    """Return where a remainder is not zero and has another sign than the divisor."""
    divisor = static_number(op, b)
    if divisor:
        return op.Less(remainder, 0) if divisor > 0 else op.Greater(remainder, 0)
    opposite = op.Xor(op.Less(remainder, 0), op.Less(b, 0))
    return op.And(opposite, op.Not(op.Equal(remainder, 0)))


@lowering(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
@promoted("self", "other")
def remainder(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    if not op.dtype(self).is_floating_point():
        return op.Mod(self, other)
    rest = op.Mod(self, other, fmod=1)
    return op.Where(_is_opposite(op, rest, other), op.Add(rest, other), rest)


@lowering(aten.fmod.Tensor, aten.fmod.Scalar)
@promoted("self", "other")
def fmod(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    return op.Mod(self, other, fmod=1)


# ---- powers


@lowering(aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar)
def power(op: OpBuilder, self: Operand, exponent: Operand) -> ir.Value:
    dtype = result_dtype(self, exponent)
    if isinstance(exponent, int | float) and isinstance(self, ir.Value):
        result = _static_power(op, op.cast(self, dtype), exponent)
        if result is not None:
            return result
    base, raised = promote(op, self, exponent, dtype=dtype)
    return op.Pow(base, raised) if dtype.is_floating_point() else integer_power(op, base, raised)


def _static_power(op: OpBuilder, base: ir.Value, exponent: float) -> ir.Value | None:
    if exponent == 1:
        return base
    if exponent == 2:
        return op.Mul(base, base)
    if exponent == 3:
        return op.Mul(op.Mul(base, base), base)
    if not op.dtype(base).is_floating_point():
        return power_by_squaring(op, base, int(exponent)) if exponent > 0 else None
    if exponent == 0.5:
        return op.Sqrt(base)
    if exponent == -0.5:
        return op.Reciprocal(op.Sqrt(base))
    if exponent == -1:
        return op.Reciprocal(base)
    return None


@lowering(
    aten.float_power.Tensor_Tensor,
    aten.float_power.Tensor_Scalar,
    aten.float_power.Scalar,
)
def float_power(op: OpBuilder, self: Operand, exponent: Operand) -> ir.Value:
    self = op.cast(self, DOUBLE) if isinstance(self, ir.Value) else op.constant(float(self), DOUBLE)
    return power(op, self, op.cast(exponent, DOUBLE) if isinstance(exponent, ir.Value) else float(exponent))


@lowering(aten.square.default)
def square(op: OpBuilder, self: ir.Value) -> ir.Value:
    return power(op, self, 2)


@lowering(aten.reciprocal.default)
@promoted("self", to_float=True)
def reciprocal(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.Reciprocal(self)


@lowering(aten.rsqrt.default)
@promoted("self", to_float=True)
def rsqrt(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.Reciprocal(op.Sqrt(self))


@lowering(aten.hypot.default)
@promoted("self", "other")
def hypot(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    # Scaled by the larger leg, so that its square can neither overflow nor vanish.
    a, b = op.Abs(self), op.Abs(other)
    large, small = op.Max(a, b), op.Min(a, b)
    ratio = op.Div(small, large)
    length = op.Mul(large, op.Sqrt(op.Add(op.Mul(ratio, ratio), 1)))
    plain = op.Or(op.Equal(large, 0), op.IsInf(large))
    return op.Where(plain, large, op.Where(op.Or(op.IsInf(a), op.IsInf(b)), math.inf, length))


# ---- sign and rounding


@lowering(aten.neg.default)
def neg(op: OpBuilder, self: ir.Value) -> ir.Value:
    dtype = op.dtype(self)
    if dtype.name.startswith("UINT"):
        return op.Sub(0, self)
    return op.Neg(self)


@lowering(aten.positive.default)
def positive(op: OpBuilder, self: ir.Value) -> ir.Value:
    return self


@lowering(aten.abs.default)
def abs_(op: OpBuilder, self: ir.Value) -> ir.Value:
    return self if self.dtype == BOOL else op.Abs(self)


@lowering(aten.sign.default, aten.sgn.default)
def sign(op: OpBuilder, self: ir.Value) -> ir.Value:
    if self.dtype == BOOL:
        return self
    result = op.Sign(self)
    if not op.minds_nan(self):
        return result
    # torch has 0 as the sign of NaN; ONNX does not say.
    return op.Where(op.IsNaN(self), 0, result)


@lowering(aten.copysign.Tensor, aten.copysign.Scalar)
@promoted("self", "other", to_float=True)
def copysign(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    size = op.Abs(self)
    return op.Where(sign_bit(op, other), op.Neg(size), size)


@lowering(aten.heaviside.default)
@promoted("self", "values")
def heaviside(op: OpBuilder, self: ir.Value, values: ir.Value) -> ir.Value:
    if self.dtype == BOOL:
        return op.Or(self, values)
    return op.Where(op.Equal(self, 0), values, op.cast(op.Greater(self, 0), op.dtype(self)))


def _rounding(op: OpBuilder, op_type: str, value: ir.Value) -> ir.Value:
    """Round floats; integers are whole already."""
    return op.emit(op_type, value) if op.dtype(value).is_floating_point() else value


@lowering(aten.floor.default)
def floor(op: OpBuilder, self: ir.Value) -> ir.Value:
    return _rounding(op, "Floor", self)


@lowering(aten.ceil.default)
def ceil(op: OpBuilder, self: ir.Value) -> ir.Value:
    return _rounding(op, "Ceil", self)


@lowering(aten.round.default, aten.round.decimals)
def round_(op: OpBuilder, self: ir.Value, decimals: int = 0) -> ir.Value:
    if not op.dtype(self).is_floating_point() or decimals == 0:
        return _rounding(op, "Round", self)
    scale = 10.0 ** abs(decimals)
    if decimals > 0:
        return op.Div(op.Round(op.Mul(self, scale)), scale)
    return op.Mul(op.Round(op.Div(self, scale)), scale)


def truncated(op: OpBuilder, value: ir.Value) -> ir.Value:
    """Round floats towards zero."""
    return op.Where(op.Less(value, 0), op.Ceil(value), op.Floor(value))


@lowering(aten.trunc.default, aten.fix.default)
def trunc(op: OpBuilder, self: ir.Value) -> ir.Value:
    return truncated(op, self) if op.dtype(self).is_floating_point() else self


@lowering(aten.frac.default)
def frac(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.Sub(self, truncated(op, self))


@lowering(aten.nan_to_num.default)
def nan_to_num(
    op: OpBuilder,
    self: ir.Value,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> ir.Value:
    dtype = op.dtype(self)
    if not dtype.is_floating_point():
        return self
    limits = torch.finfo(to_torch(dtype))
    value = op.Where(op.IsNaN(self), 0.0 if nan is None else nan, self)
    value = op.Where(op.IsInf(self, detect_negative=0), limits.max if posinf is None else posinf, value)
    return op.Where(op.IsInf(self, detect_positive=0), limits.min if neginf is None else neginf, value)
