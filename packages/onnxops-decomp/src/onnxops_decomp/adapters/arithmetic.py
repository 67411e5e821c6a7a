"""Arithmetic whose dtypes, bounds or very operator came later: Clip, Pow, Mod, Round, bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxops_decomp.builder.forms import Adapter, adapter
from onnxops_decomp.errors import UnsupportedOpsetError
from onnxops_decomp.formulas.float_bits import floats_from_bits, to_bits
from onnxops_decomp.formulas.integer_powers import power_by_squaring
from onnxops_decomp.spec.inference import dims_of
from onnxops_decomp.spec.significands import SIGNIFICAND_BITS

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder


_BOOL, _INT64, _DOUBLE = ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.DOUBLE


# ---- Clip


def _bounded(op: OpBuilder, x: ir.Value, low: ir.Value | None, high: ir.Value | None) -> ir.Value:
    if low is not None:
        x = op.Max(x, low)
    return x if high is None else op.Min(x, high)


@adapter("Clip", below=12)
def clip_of_floats(
    op: OpBuilder, input: ir.Value, min: ir.Value | None = None, max: ir.Value | None = None, *, older: OpBuilder
) -> ir.Value:
    dtype = op.dtype(input)
    plain = op.takes_doubles("Clip") if dtype == _DOUBLE else dtype.is_floating_point()
    return older.Clip(input, min, max) if plain else _bounded(op, input, min, max)


@adapter("Clip", below=11)
def clip_with_attributes(
    op: OpBuilder, input: ir.Value, min: ir.Value | None = None, max: ir.Value | None = None, *, older: OpBuilder
) -> ir.Value:
    low, high = _attribute(op, min, -np.inf), _attribute(op, max, np.inf)
    if low is None or high is None or not low <= high:
        return _bounded(op, input, min, max)
    # The attributes default to the largest finite numbers, which would clip infinities.
    return older.Clip(input, min=low, max=high)


def _attribute(op: OpBuilder, bound: ir.Value | None, absent: float) -> float | None:
    """Return a bound as the 32-bit float that an attribute is, or None if it is none."""
    if bound is None:
        return absent
    array = op.static(bound)
    if array is None or array.size != 1:
        return None
    number = float(array.item())
    with np.errstate(over="ignore"):
        return number if float(np.float32(number)) == number else None


# ---- Pow, Mod, Round


@adapter("Pow", below=12)
def pow_of_one_dtype(op: OpBuilder, x: ir.Value, y: ir.Value, *, older: OpBuilder) -> ir.Value:
    base, exponent = op.dtype(x), op.dtype(y)
    power = op.static(y)
    if power is not None and power.size == 1 and base.is_integer():
        n = float(power.item())
        if n == int(n) and 1 <= n <= 64:
            return _broadcast_like(op, power_by_squaring(op, x, int(n)), power)
    if base == exponent and base.is_floating_point():
        return older.Pow(x, y)
    if base in (_INT64, ir.DataType.UINT64):
        raise UnsupportedOpsetError("Pow", op.opset, lowest=12, reason=f"{base.name} to a power that is not constant")
    return op.cast(older.Pow(op.cast(x, _DOUBLE), op.cast(y, _DOUBLE)), base)


def _broadcast_like(op: OpBuilder, x: ir.Value, other: np.ndarray) -> ir.Value:
    dims = dims_of(x)
    if dims is not None and other.ndim <= len(dims):
        return x
    return op.Mul(x, op.constant(np.ones(other.shape), op.dtype(x)))


@adapter("Mod", below=28)
def mod_of_integers(op: OpBuilder, a: ir.Value, b: ir.Value, *, older: OpBuilder, fmod: int = 0) -> ir.Value:
    if fmod or not op.dtype(a).is_floating_point():
        return older.Mod(a, b, fmod=fmod)
    rest = older.Mod(a, b, fmod=1)
    # The rest has the sign of a; where b has the other one, one more b leads over to its side.
    other_side = op.Less(op.Mul(op.Sign(rest), op.Sign(b)), 0)
    return op.Where(other_side, op.Add(rest, b), rest)


@adapter("Mod", below=10)
def mod(op: OpBuilder, a: ir.Value, b: ir.Value, *, fmod: int = 0) -> ir.Value:
    dtype = op.dtype(a)
    if dtype.is_floating_point():
        raise UnsupportedOpsetError("Mod", op.opset, lowest=10, reason="the exact remainder of floats")
    rest = op.Sub(a, op.Mul(op.Div(a, b), b))
    if fmod or not dtype.is_signed():
        return rest
    wrong = op.And(op.cast(rest, _BOOL), op.Xor(op.Less(rest, 0), op.Less(b, 0)))
    return op.Add(rest, op.Mul(op.cast(wrong, dtype), b))


@adapter("Round", below=11)
def round_half_to_even(op: OpBuilder, x: ir.Value) -> ir.Value:
    size = op.Abs(x)
    low = op.Floor(size)
    rest = op.Sub(size, low)
    half_low = op.Mul(low, 0.5)
    odd = op.Greater(half_low, op.Floor(half_low))
    up = op.Or(op.Greater(rest, 0.5), op.And(odd, op.Not(op.Less(rest, 0.5))))
    # An infinity has the rest NaN, which the comparisons must not take for a half.
    up = op.And(up, op.Less(rest, 1))
    rounded = op.Add(low, op.cast(up, op.dtype(x)))
    return op.Mul(rounded, op.Sign(x))


# ---- Gemm


@adapter("Gemm", below=11)
def gemm_with_bias(
    op: OpBuilder, a: ir.Value, b: ir.Value, c: ir.Value | None = None, *, older: OpBuilder, **attributes: float
) -> ir.Value:
    return older.Gemm(a, b, op.constant(0, op.dtype(a)) if c is None else c, **attributes)


# ---- bits


def _bitwise(op_type: str, logical: str) -> Adapter:
    """Bits of both operands along a new last axis, combined as 0 and 1, and weighted back."""

    def combine(op: OpBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
        dtype = op.dtype(a)
        x, y = (_bits(op, op.cast(value, _INT64), dtype) for value in (a, b))
        bits = op.cast(op.emit(logical, x, y), _INT64)
        # Runtimes add integers as doubles, so the two halves of a long are added apart.
        low = _weighted(op, op.Slice(bits, [0], [32], [-1]), min(dtype.bitwidth, 32))
        if dtype.bitwidth > 32:
            high = _weighted(op, op.Slice(bits, [32], [64], [-1]), dtype.bitwidth - 32)
            low = op.Add(low, op.Mul(high, 2**32))
        return op.cast(low, dtype)

    return combine


def _weighted(op: OpBuilder, bits: ir.Value, count: int) -> ir.Value:
    weights = np.array([2**bit for bit in range(count)], np.int64)
    return op.ReduceSum(op.Mul(bits, weights), [-1], keepdims=0)


def _bits(op: OpBuilder, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return the bits of INT64 values as BOOL along a new last axis, the lowest ones first."""
    negative = op.Less(x, 0)
    # With all bits of a negative number flipped, what remains is not negative and divides without rounding.
    magnitude = op.Where(negative, op.Sub(-1, x), x)
    rank = op.rank(x)
    column, sign = op.Unsqueeze(magnitude, [rank]), op.Unsqueeze(negative, [rank])
    shifted = op.Div(column, np.array([2**bit for bit in range(min(dtype.bitwidth, 63))], np.int64))
    half = op.Mul(op.Div(shifted, 2), 2)
    bits = op.Xor(op.cast(op.Sub(shifted, half), _BOOL), sign)
    return op.Concat(bits, sign, axis=-1) if dtype.bitwidth == 64 else bits


for _name, _logical in {"BitwiseAnd": "And", "BitwiseOr": "Or", "BitwiseXor": "Xor"}.items():
    adapter(_name, below=18)(_bitwise(_name, _logical))


@adapter("BitwiseNot", below=18)
def bitwise_not(op: OpBuilder, x: ir.Value) -> ir.Value:
    dtype = op.dtype(x)
    ones = -1 if dtype.is_signed() else 2**dtype.bitwidth - 1
    return op.Sub(op.constant(np.array(ones, dtype.numpy()), dtype), x)


@adapter("BitShift", below=28)
def shift_of_signed(op: OpBuilder, x: ir.Value, y: ir.Value, *, older: OpBuilder, direction: str) -> ir.Value:
    dtype = op.dtype(x)
    if not dtype.is_signed():
        return older.BitShift(x, y, direction=direction)
    unsigned = ir.DataType[f"U{dtype.name}"]
    amount = op.cast(y, unsigned)
    if direction == "LEFT":
        return op.cast(older.BitShift(op.cast(x, unsigned), amount, direction=direction), dtype)
    # A negative number shifts in ones: flip its bits, shift in zeros, flip them back.
    negative = op.Less(x, 0)
    magnitude = op.Where(negative, op.Sub(-1, x), x)
    shifted = op.cast(older.BitShift(op.cast(magnitude, unsigned), amount, direction=direction), dtype)
    return op.Where(negative, op.Sub(-1, shifted), shifted)


@adapter("BitShift", below=11)
def shift_by_product(op: OpBuilder, x: ir.Value, y: ir.Value, *, direction: str) -> ir.Value:
    dtype, amount = op.dtype(x), op.static(y)
    if amount is None or (amount >= dtype.bitwidth - 1).any():
        raise UnsupportedOpsetError("BitShift", op.opset, lowest=11, reason="an amount that is not constant")
    factor = op.constant(2 ** amount.astype(np.uint64), dtype)
    return op.Mul(x, factor) if direction == "LEFT" else op.Div(x, factor)


@adapter("BitCast", below=26)
def bit_cast(op: OpBuilder, input: ir.Value, *, to: int) -> ir.Value:
    source, target = op.dtype(input), ir.DataType(to)
    if source == target:
        return input
    if source.bitwidth == target.bitwidth:
        if source.is_integer() and target.is_integer():
            return op.cast(input, target)
        if source in SIGNIFICAND_BITS and target.is_integer():
            return op.cast(to_bits(op, input), target)
        if source.is_integer() and target in SIGNIFICAND_BITS:
            signed = op.cast(input, ir.DataType[f"INT{source.bitwidth}"])
            return floats_from_bits(op, op.cast(signed, _INT64), target)
        if source in SIGNIFICAND_BITS and target in SIGNIFICAND_BITS:
            return floats_from_bits(op, to_bits(op, input), target)
    raise UnsupportedOpsetError("BitCast", op.opset, lowest=26, reason=f"{source.name} as {target.name}")
