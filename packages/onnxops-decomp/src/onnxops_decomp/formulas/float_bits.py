"""The parts of floating-point numbers, and the integers that have the same bits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.spec.significands import SIGNIFICAND_BITS

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["floats_from_bits", "mantissa_and_exponent", "power_of_two", "to_bits"]

_INT64, _DOUBLE = ir.DataType.INT64, ir.DataType.DOUBLE


def mantissa_and_exponent(op: OpBuilder, size: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return mantissa and exponent of positive DOUBLE numbers, the mantissa in [1/2, 1)."""
    exponent = op.Add(op.Floor(op.Div(op.Log(size), math.log(2))), 1)
    # Scaled in two steps: neither power is out of range where the number itself is at its end.
    first = op.Floor(op.Mul(exponent, 0.5))
    mantissa = op.Mul(op.Mul(size, power_of_two(op, op.Neg(first))), power_of_two(op, op.Sub(first, exponent)))
    # The logarithm may have been rounded across a power of two.
    low, high = op.Less(mantissa, 0.5), op.GreaterOrEqual(mantissa, 1)
    dtype = op.dtype(size)
    exponent = op.Add(op.Sub(exponent, op.cast(low, dtype)), op.cast(high, dtype))
    return op.Where(low, op.Mul(mantissa, 2), op.Where(high, op.Mul(mantissa, 0.5), mantissa)), exponent


def power_of_two(op: OpBuilder, exponent: ir.Value) -> ir.Value:
    """Return two to a power of the dtype of the exponent."""
    return op.Pow(op.constant(2.0, op.dtype(exponent)), exponent)


def _fields(dtype: ir.DataType) -> tuple[int, int]:
    """Return how many bits the fraction of a dtype of IEEE 754 has, and the bias of its exponent."""
    fraction = SIGNIFICAND_BITS[dtype] - 1
    return fraction, 2 ** (dtype.bitwidth - 2 - fraction) - 1


def to_bits(op: OpBuilder, x: ir.Value) -> ir.Value:
    """Return the bits of floating-point numbers as INT64; those of a NaN are torch's own, without sign."""
    fraction, bias = _fields(op.dtype(x))
    value = op.cast(x, _DOUBLE)
    plain = op.Or(op.Equal(value, 0), op.Not(op.Equal(op.Sub(value, value), 0)))
    size = op.Where(plain, 1, op.Abs(value))
    mantissa, exponent = mantissa_and_exponent(op, size)
    biased = op.Add(exponent, bias - 1)
    # Numbers below the normal ones are multiples of the smallest one; no power of that size is a DOUBLE.
    places = (bias - 1 + fraction) // 2
    multiple = op.Mul(op.Mul(size, 2.0**places), 2.0 ** (bias - 1 + fraction - places))
    field = op.Mul(op.cast(biased, _INT64), 2**fraction)
    normal = op.Add(field, op.cast(op.Mul(op.Sub(op.Mul(mantissa, 2), 1), 2.0**fraction), _INT64))
    small = op.LessOrEqual(biased, 0)
    bits = op.Where(small, op.cast(op.Where(small, multiple, 0), _INT64), normal)
    infinity = (2 * bias + 1) * 2**fraction
    nan, zero = op.Not(op.Equal(value, value)), op.Equal(value, 0)
    bits = op.Where(plain, op.Where(zero, 0, op.Where(nan, infinity + 2 ** (fraction - 1), infinity)), bits)
    # 1 / -0 is -inf.
    negative = op.Or(op.Less(value, 0), op.Less(op.Reciprocal(value), 0))
    return op.Where(negative, op.Add(bits, -(2 ** (op.dtype(x).bitwidth - 1))), bits)


def floats_from_bits(op: OpBuilder, bits: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return the floating-point numbers of a dtype that have the bits of integers of as many, given as INT64."""
    fraction, bias = _fields(dtype)
    negative = op.Less(bits, 0)
    # In two steps, as the sign alone is no positive number.
    magnitude = op.Where(negative, op.Add(op.Add(bits, 2 ** (dtype.bitwidth - 1) - 1), 1), bits)
    field = op.Div(magnitude, 2**fraction)
    rest = op.cast(op.Sub(magnitude, op.Mul(field, 2**fraction)), _DOUBLE)
    power = op.cast(field, _DOUBLE)
    outside = op.Equal(field, 2 * bias + 1)
    exponent = op.Where(outside, 0, op.Sub(power, bias))
    normal = op.Mul(op.Add(op.Mul(rest, 2.0**-fraction), 1), power_of_two(op, exponent))
    places = (bias - 1 + fraction) // 2
    multiple = op.Mul(op.Mul(rest, 2.0**-places), 2.0 ** -(bias - 1 + fraction - places))
    value = op.Where(op.Equal(field, 0), multiple, normal)
    value = op.Where(outside, op.Where(op.Equal(rest, 0), op.constant(math.inf, _DOUBLE), math.nan), value)
    # A factor keeps the sign of a zero, which ONNX Runtime's Where does not.
    return op.cast(op.Mul(value, op.Where(negative, op.constant(-1.0, _DOUBLE), 1.0)), dtype)
