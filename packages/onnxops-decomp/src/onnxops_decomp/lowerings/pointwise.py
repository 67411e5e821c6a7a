"""Arithmetic and elementary functions, element by element."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import promote, promoted, result_dtype
from onnxops_decomp.lowerings.registry import Function, lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder import OpBuilder
    from onnxops_decomp.dtypes import Operand

aten = torch.ops.aten


def _scaled(op: OpBuilder, other: ir.Value, alpha: Operand) -> ir.Value:
    """Return ``alpha * other``; torch multiplies in the dtype of ``other``."""
    if isinstance(alpha, int | float) and alpha == 1:
        return other
    factor = op.cast(alpha, other.dtype) if isinstance(alpha, ir.Value) and other.dtype is not None else alpha
    return op.Mul(other, factor)


@lowering(aten.add.Tensor, aten.add.Scalar)
@promoted("self", "other")
def add(op: OpBuilder, self: ir.Value, other: ir.Value, alpha: Operand = 1) -> ir.Value:
    if self.dtype == ir.DataType.BOOL:
        return op.Or(self, other)
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
    if self.dtype == ir.DataType.BOOL:
        return op.And(self, other)
    return op.Mul(self, other)


@lowering(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor, aten.true_divide.Scalar)
@promoted("self", "other", to_float=True)
def div(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    return op.Div(self, other)


def _unary_float(op_type: str) -> Function:
    """Lowering of a function that computes in floats: integers and bools become the default float dtype."""

    @promoted("self", to_float=True)
    def unary(op: OpBuilder, self: ir.Value) -> ir.Value:
        return op.emit(op_type, self)

    return unary


for _name, _op_type in {
    "cos": "Cos",
    "erf": "Erf",
    "exp": "Exp",
    "log": "Log",
    "sigmoid": "Sigmoid",
    "sin": "Sin",
    "sqrt": "Sqrt",
    "tanh": "Tanh",
}.items():
    lowering(f"aten::{_name}")(_unary_float(_op_type))


@lowering(aten.reciprocal.default)
@promoted("self", to_float=True)
def reciprocal(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.Reciprocal(self)


@lowering(aten.rsqrt.default)
@promoted("self", to_float=True)
def rsqrt(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.Reciprocal(op.Sqrt(self))


@lowering(aten.neg.default)
def neg(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.Neg(self)


@lowering(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
@promoted("self", "other")
def where(op: OpBuilder, condition: ir.Value, self: ir.Value, other: ir.Value) -> ir.Value:
    return op.Where(op.cast(condition, ir.DataType.BOOL), self, other)


@lowering(aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar)
def pow(op: OpBuilder, self: Operand, exponent: Operand) -> ir.Value:
    dtype = result_dtype(self, exponent)
    if isinstance(exponent, int | float) and isinstance(self, ir.Value):
        base = op.cast(self, dtype)
        if exponent == 2:
            return op.Mul(base, base)
        if exponent == 0.5:
            return op.Sqrt(base)
    base, power = promote(op, self, exponent, dtype=dtype)
    return op.Pow(base, power)
