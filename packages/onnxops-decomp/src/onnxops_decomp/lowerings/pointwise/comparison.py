"""Comparisons, logic, choice between elements, minimum, maximum and clamp."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import promote, promoted, result_dtype
from onnxops_decomp.lowerings.registry import Function, lowering
from onnxops_decomp.spec.inference import same_dim

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.dtypes import Operand

aten = torch.ops.aten

BOOL = ir.DataType.BOOL


def truth(op: OpBuilder, value: Operand) -> ir.Value:
    """Return ``value != 0`` as torch's logical functions see it; NaN is true."""
    return op.cast(value, BOOL) if isinstance(value, ir.Value) else op.constant(bool(value))


def _comparison(op_type: str) -> Function:
    @promoted("self", "other")
    def compare(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
        return op.emit(op_type, self, other)

    return compare


for _name, _op_type in {
    "eq": "Equal",
    "ge": "GreaterOrEqual",
    "gt": "Greater",
    "le": "LessOrEqual",
    "lt": "Less",
}.items():
    lowering(f"aten::{_name}.Tensor", f"aten::{_name}.Scalar")(_comparison(_op_type))


@lowering(aten.ne.Tensor, aten.ne.Scalar)
@promoted("self", "other")
def ne(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    return op.Not(op.Equal(self, other))


@lowering(aten.equal.default)
def equal(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    pairs = list(zip(op.sizes(self), op.sizes(other), strict=False))
    if op.rank(self) != op.rank(other) or any(a != b for a, b in pairs if isinstance(a, int) and isinstance(b, int)):
        return op.constant(False)
    left, right = promote(op, self, other)
    if all(same_dim(op.dim(a), op.dim(b)) for a, b in pairs):
        return _all_true(op, op.Equal(left, right))
    # Where the sizes differ, so many elements can be compared at least, whatever comes of it.
    left, right = op.reshape(left, [-1]), op.reshape(right, [-1])
    count = op.vector([op.size_min(op.size(left, 0), op.size(right, 0))])
    begun = op.Equal(*(op.Slice(flat, [0], count, [0]) for flat in (left, right)))
    return op.And(_all_true(op, op.Equal(op.Shape(self), op.Shape(other))), _all_true(op, begun))


def _all_true(op: OpBuilder, truths: ir.Value) -> ir.Value:
    return op.cast(op.ReduceMin(op.cast(truths, ir.DataType.UINT8), keepdims=0), BOOL)


def _logical(op_type: str) -> Function:
    def logical(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
        return op.emit(op_type, truth(op, self), truth(op, other))

    return logical


for _name, _op_type in {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}.items():
    lowering(f"aten::{_name}")(_logical(_op_type))


@lowering(aten.logical_not.default)
def logical_not(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.Not(truth(op, self))


def _false_like(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.Expand(op.constant(False), op.Shape(self))


@lowering(aten.isnan.default)
def isnan(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.IsNaN(self) if op.dtype(self).is_floating_point() else _false_like(op, self)


@lowering(aten.isinf.default)
def isinf(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.IsInf(self) if op.dtype(self).is_floating_point() else _false_like(op, self)


@lowering(aten.isposinf.default)
def isposinf(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.IsInf(self, detect_negative=0) if op.dtype(self).is_floating_point() else _false_like(op, self)


@lowering(aten.isneginf.default)
def isneginf(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.IsInf(self, detect_positive=0) if op.dtype(self).is_floating_point() else _false_like(op, self)


@lowering(aten.isfinite.default)
def isfinite(op: OpBuilder, self: ir.Value) -> ir.Value:
    if not op.dtype(self).is_floating_point():
        return op.Not(_false_like(op, self))
    # The difference of a number with itself is 0 exactly where the number is finite, else NaN.
    return op.Equal(op.Sub(self, self), 0)


@lowering(aten.isreal.default)
def isreal(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.Not(_false_like(op, self))


@lowering(aten.signbit.default)
def sign_bit(op: OpBuilder, value: ir.Value) -> ir.Value:
    """Return whether the sign bit is set, also that of a negative zero (not that of a NaN)."""
    if value.dtype == BOOL or (value.dtype is not None and value.dtype.name.startswith("UINT")):
        return _false_like(op, value)
    if not op.dtype(value).is_floating_point():
        return op.Less(value, 0)
    # 1 / -0 is -inf, and the reciprocal keeps the sign of every other number but -inf, whose is -0.
    return op.Or(op.Less(value, 0), op.Less(op.Reciprocal(value), 0))


@lowering(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
@promoted("self", "other")
def where(op: OpBuilder, condition: ir.Value, self: ir.Value, other: ir.Value) -> ir.Value:
    return op.Where(truth(op, condition), self, other)


@lowering(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(op: OpBuilder, self: ir.Value, mask: ir.Value, value: Operand) -> ir.Value:
    return op.Where(truth(op, mask), promote(op, value, dtype=self.dtype)[0], self)


@lowering(aten.maximum.default, aten.max.other)
@promoted("self", "other")
def maximum(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    return op.Or(self, other) if self.dtype == BOOL else op.Max(self, other)


@lowering(aten.minimum.default, aten.min.other)
@promoted("self", "other")
def minimum(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    return op.And(self, other) if self.dtype == BOOL else op.Min(self, other)


def _ignoring_nan(op: OpBuilder, op_type: str, self: ir.Value, other: ir.Value) -> ir.Value:
    left = op.Where(op.IsNaN(self), other, self)
    right = op.Where(op.IsNaN(other), self, other)
    return op.emit(op_type, left, right)


@lowering(aten.fmax.default)
@promoted("self", "other")
def fmax(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    return _ignoring_nan(op, "Max", self, other) if op.dtype(self).is_floating_point() else maximum(op, self, other)


@lowering(aten.fmin.default)
@promoted("self", "other")
def fmin(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    return _ignoring_nan(op, "Min", self, other) if op.dtype(self).is_floating_point() else minimum(op, self, other)


def _is_number(op: OpBuilder, bound: ir.Value) -> bool:
    """Tell whether Clip takes the bound as torch does: for NaN it is no bound, where torch gives NaN."""
    if op.rank(bound) != 0:
        return False
    static = op.static(bound)
    return not op.dtype(bound).is_floating_point() or (static is not None and not np.isnan(static).any())


@lowering(aten.clamp.default, aten.clamp.Tensor)
def clamp(op: OpBuilder, self: ir.Value, min: Operand | None = None, max: Operand | None = None) -> ir.Value:
    dtype = result_dtype(*(operand for operand in (self, min, max) if operand is not None))
    value = op.cast(self, dtype)
    low, high = (None if bound is None else promote(op, bound, dtype=dtype)[0] for bound in (min, max))
    if all(bound is None or _is_number(op, bound) for bound in (low, high)):
        # A bound left out stops at the largest finite number, where torch lets infinity pass.
        infinite = dtype.is_floating_point()
        low = op.constant(-math.inf, dtype) if low is None and infinite else low
        high = op.constant(math.inf, dtype) if high is None and infinite else high
        return op.Clip(value, low, high)
    value = value if low is None else op.Max(value, low)
    return value if high is None else op.Min(value, high)


@lowering(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(op: OpBuilder, self: ir.Value, min: Operand) -> ir.Value:
    return clamp(op, self, min, None)


@lowering(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(op: OpBuilder, self: ir.Value, max: Operand) -> ir.Value:
    return clamp(op, self, None, max)


@lowering(aten.isclose.default)
def isclose(
    op: OpBuilder,
    self: ir.Value,
    other: ir.Value,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> ir.Value:
    close = op.Equal(*promote(op, self, other))
    if op.dtype(self).is_floating_point():
        # An infinite difference is never close, however large the allowance.
        difference = op.Abs(op.Sub(self, other))
        allowed = op.Add(op.Mul(op.Abs(other), rtol), atol)
        near = op.And(op.LessOrEqual(difference, allowed), isfinite(op, difference))
        close = op.Or(close, near)
        if equal_nan:
            close = op.Or(close, op.And(op.IsNaN(self), op.IsNaN(other)))
        return close
    if rtol == 0 and atol == 0:
        return close
    dtype = ir.DataType.DOUBLE
    left, right = op.cast(self, dtype), op.cast(other, dtype)
    return op.Or(close, op.LessOrEqual(op.Abs(op.Sub(left, right)), op.Add(op.Mul(op.Abs(right), rtol), atol)))


@lowering(aten.allclose.default)
def allclose(
    op: OpBuilder,
    self: ir.Value,
    other: ir.Value,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> ir.Value:
    return _all_true(op, isclose(op, self, other, rtol, atol, equal_nan))
