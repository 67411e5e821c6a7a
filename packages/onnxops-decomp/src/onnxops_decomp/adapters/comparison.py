"""Comparisons, selection, and the extremes: dtypes and broadcasting that came step by step.

All of it is exact, also for infinities, NaN and integers beyond 2**53. Booleans and ordered values pass through wider
floats only where these represent every value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxops_decomp.builder.forms import Adapter, adapter
from onnxops_decomp.formulas.operands import arange, broadcast_sizes, halves
from onnxops_decomp.spec.inference import dims_of, same_dim

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

_BOOL, _INT64, _UINT64 = ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.UINT64
_DOUBLE = ir.DataType.DOUBLE
_LONG = (_INT64, _UINT64)


def _is_float(op: OpBuilder, value: ir.Value) -> bool:
    return op.dtype(value).is_floating_point()


# ---- Less, Greater


def _fits_double(op: OpBuilder, value: ir.Value) -> bool:
    """Tell whether rounding to a double keeps the order of ``value`` against any integer."""
    array = op.static(value)
    return array is not None and bool((array < 2**53).all() and (array > -(2**53)).all())


def _ordered_long(op_type: str) -> Adapter:
    def compare(op: OpBuilder, a: ir.Value, b: ir.Value, *, older: OpBuilder) -> ir.Value:
        if op.dtype(a) not in _LONG:
            return older.emit(op_type, a, b)
        if _fits_double(op, a) or _fits_double(op, b):
            return older.emit(op_type, op.cast(a, _DOUBLE), op.cast(b, _DOUBLE))
        (a_high, a_low), (b_high, b_low) = halves(op, a), halves(op, b)
        tie = op.Equal(a_high, b_high)
        return op.Or(older.emit(op_type, a_high, b_high), op.And(tie, older.emit(op_type, a_low, b_low)))

    return compare


for _name in ("Greater", "Less"):
    adapter(_name, below=9)(_ordered_long(_name))


# ---- Equal, and the comparisons that include it


def _not_nan(op: OpBuilder, x: ir.Value) -> ir.Value | None:
    """Return where ``x`` is a number, or None if it is one everywhere."""
    array = op.static(x)
    if array is not None and not np.isnan(array.astype(np.float64)).any():
        return None
    return op.Or(op.Less(x, 1), op.Greater(x, 0))


def _where_numbers(op: OpBuilder, result: ir.Value, *operands: ir.Value) -> ir.Value:
    for operand in operands:
        number = _not_nan(op, operand)
        result = result if number is None else op.And(result, number)
    return result


@adapter("Equal", below=11)
def equal(op: OpBuilder, a: ir.Value, b: ir.Value, *, older: OpBuilder) -> ir.Value:
    if op.dtype(a) == _UINT64:
        return older.Equal(op.cast(a, _INT64), op.cast(b, _INT64))
    if not _is_float(op, a):
        return older.Equal(a, b)
    differ = op.Or(op.Less(a, b), op.Greater(a, b))
    return _where_numbers(op, op.Not(differ), a, b)


def _or_equal(strict: str, opposite: str) -> Adapter:
    def compare(op: OpBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
        if not _is_float(op, a):
            return op.Not(op.emit(opposite, a, b))
        if op.opset >= 11:
            return op.Or(op.emit(strict, a, b), op.Equal(a, b))
        return _where_numbers(op, op.Not(op.emit(opposite, a, b)), a, b)

    return compare


adapter("GreaterOrEqual", below=12)(_or_equal("Greater", "Less"))
adapter("LessOrEqual", below=12)(_or_equal("Less", "Greater"))


@adapter("IsNaN", below=9)
def is_nan(op: OpBuilder, x: ir.Value) -> ir.Value:
    return op.Not(op.Or(op.Less(x, 1), op.Greater(x, 0)))


@adapter("IsInf", below=10)
def is_inf(op: OpBuilder, x: ir.Value, *, detect_negative: int = 1, detect_positive: int = 1) -> ir.Value:
    largest = float(np.finfo(op.dtype(x).numpy()).max)
    if not detect_negative and not detect_positive:
        return op.And(op.Less(x, 0), op.Greater(x, 0))
    if not detect_negative:
        return op.Greater(x, largest)
    if not detect_positive:
        return op.Less(x, -largest)
    return op.Greater(op.Abs(x), largest)


@adapter("Sign", below=9)
def sign(op: OpBuilder, x: ir.Value) -> ir.Value:
    dtype = op.dtype(x)
    if not dtype.is_signed():
        return op.cast(op.cast(x, _BOOL), dtype)
    return op.Sub(op.cast(op.Greater(x, 0), dtype), op.cast(op.Less(x, 0), dtype))


# ---- Where


@adapter("Where", below=9)
def where(op: OpBuilder, condition: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    dtype = op.dtype(x)
    if dtype == _BOOL:
        return op.Or(op.And(condition, x), op.And(op.Not(condition), y))
    if dtype.is_integer():
        return op.Add(y, op.Mul(op.cast(condition, dtype), op.Sub(x, y)))
    # Arithmetic would spread NaN and infinities, so floats are picked by their index.
    if dims_of(x) == () and dims_of(y) == ():
        both = op.Concat(op.Reshape(y, [1]), op.Reshape(x, [1]), axis=0)
        return op.Gather(both, op.cast(condition, _INT64), axis=0)
    shape = broadcast_sizes(op, [condition, x, y], "Where", 9)
    count = op.size_mul(*shape)
    flat = [op.Reshape(op.expand(value, shape), [-1]) for value in (y, x)]
    chosen = op.Reshape(op.expand(op.cast(condition, _INT64), shape), [-1])
    index = op.Add(arange(op, count), op.Mul(chosen, count))
    return op.reshape(op.Gather(op.Concat(*flat, axis=0), index, axis=0), shape)


# ---- Max, Min, Sum, Mean


def _extreme_of_long(op_type: str, comparison: str) -> Adapter:
    def extreme(op: OpBuilder, *values: ir.Value, older: OpBuilder) -> ir.Value:
        if op.dtype(values[0]) not in _LONG:
            return older.emit(op_type, *values)
        result, *others = values
        for other in others:
            result = op.Where(op.emit(comparison, result, other), result, other)
        return result

    return extreme


adapter("Max", below=12)(_extreme_of_long("Max", "Greater"))
adapter("Min", below=12)(_extreme_of_long("Min", "Less"))


def _same_shape(values: Sequence[ir.Value]) -> bool:
    dims = [dims_of(value) for value in values]
    first = dims[0]
    return first is not None and all(
        other is not None and len(other) == len(first) and all(map(same_dim, other, first)) for other in dims
    )


def _broadcast(op: OpBuilder, values: Sequence[ir.Value], op_type: str) -> Sequence[ir.Value]:
    """Bring values to one shape: below opset 8 the operator did not broadcast."""
    if _same_shape(values):
        return values
    shape = broadcast_sizes(op, values, op_type, 8)
    return [op.expand(value, shape) for value in values]


@adapter("Max", below=8)
def maximum(op: OpBuilder, *values: ir.Value, older: OpBuilder) -> ir.Value:
    bounded = _bounded(op, values)
    if bounded is not None:
        return op.Clip(bounded[0], bounded[1])
    return _fold_pairs(op, older, "Max", "Greater", values)


@adapter("Min", below=8)
def minimum(op: OpBuilder, *values: ir.Value, older: OpBuilder) -> ir.Value:
    bounded = _bounded(op, values)
    if bounded is not None:
        return op.Clip(bounded[0], None, bounded[1])
    return _fold_pairs(op, older, "Min", "Less", values)


def _fold_pairs(op: OpBuilder, older: OpBuilder, op_type: str, comparison: str, values: Sequence[ir.Value]) -> ir.Value:
    dtype = op.dtype(values[0])
    if dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16) or (dtype == _DOUBLE and op.takes_doubles(op_type)):
        return older.emit(op_type, *_broadcast(op, values, op_type))
    result, *others = values
    for other in others:
        first = op.emit(comparison, result, other)
        if dtype.is_floating_point():
            number = _not_nan(op, result)
            first = first if number is None else op.Or(first, op.Not(number))
        result = op.Where(first, result, other)
    return result


def _bounded(op: OpBuilder, values: Sequence[ir.Value]) -> tuple[ir.Value, ir.Value] | None:
    """Return a value and the constant that bounds it, if that is what the operands are."""
    if len(values) != 2 or op.dtype(values[0]) not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        return None
    for value, other in ((values[0], values[1]), (values[1], values[0])):
        bound = op.static(other)
        if bound is not None and bound.ndim == 0 and not np.isnan(bound):
            return value, other
    return None


@adapter("Sum", below=8)
def sum_(op: OpBuilder, *values: ir.Value) -> ir.Value:
    total, *others = values
    for other in others:
        total = op.Add(total, other)
    return total


@adapter("Mean", below=8)
def mean(op: OpBuilder, *values: ir.Value) -> ir.Value:
    return op.Div(sum_(op, *values), len(values))
