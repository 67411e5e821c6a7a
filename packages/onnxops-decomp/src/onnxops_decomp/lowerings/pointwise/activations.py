"""Activation functions and softmax."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import Operand, to_ir
from onnxops_decomp.lowerings.pointwise.elementary import expm1
from onnxops_decomp.lowerings.registry import Function, lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

aten = torch.ops.aten

Scalar = bool | int | float


def _plain(op_type: str) -> Function:
    """Lowering of a function that ONNX has under the same definition."""

    def activation(op: OpBuilder, self: ir.Value) -> ir.Value:
        return op.emit(op_type, self)

    return activation


for _name, _op_type in {
    "hardswish": "HardSwish",
    "mish": "Mish",
    "silu": "Swish",
}.items():
    lowering(f"aten::{_name}")(_plain(_op_type))


@lowering(aten.relu.default)
def relu(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.Relu(self)


@lowering(aten.relu6.default)
def relu6(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.Clip(self, 0, 6)


@lowering(aten.hardtanh.default)
def hardtanh(op: OpBuilder, self: ir.Value, min_val: Scalar = -1, max_val: Scalar = 1) -> ir.Value:
    return op.Clip(self, min_val, max_val)


@lowering(aten.hardsigmoid.default)
def hardsigmoid(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.HardSigmoid(self, alpha=1 / 6, beta=0.5)


@lowering(aten.gelu.default)
def gelu(op: OpBuilder, self: ir.Value, approximate: str = "none") -> ir.Value:
    return op.Gelu(self, approximate=approximate)


@lowering(aten.selu.default)
def selu(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.Selu(self)


@lowering(aten.leaky_relu.default)
def leaky_relu(op: OpBuilder, self: ir.Value, negative_slope: Operand = 0.01) -> ir.Value:
    if isinstance(negative_slope, ir.Value):
        return op.Where(op.Greater(self, 0), self, op.Mul(self, negative_slope))
    return op.LeakyRelu(self, alpha=negative_slope)


@lowering(aten.elu.default)
def elu(op: OpBuilder, self: ir.Value, alpha: Operand = 1, scale: Operand = 1, input_scale: Operand = 1) -> ir.Value:
    if not isinstance(alpha, ir.Value) and scale == input_scale == 1:
        return op.Elu(self, alpha=alpha)
    scaled = op.Mul(self, input_scale)
    # What is negative may grow instead of decay, for which Elu is the identity.
    if isinstance(input_scale, ir.Value) or input_scale < 0:
        below = op.Mul(expm1(op, scaled), alpha)
    else:
        below = op.Mul(op.Elu(scaled), alpha) if isinstance(alpha, ir.Value) else op.Elu(scaled, alpha=alpha)
    return op.Where(op.Greater(self, 0), op.Mul(self, scale), op.Mul(below, scale))


@lowering(aten.celu.default)
def celu(op: OpBuilder, self: ir.Value, alpha: Operand = 1.0) -> ir.Value:
    if isinstance(alpha, ir.Value):
        number = op.cast(alpha, op.dtype(self))
        return elu(op, self, number, 1, op.Div(1.0, number))
    if op.dtype(self) == ir.DataType.FLOAT:
        return op.Celu(self, alpha=alpha)
    return elu(op, self, alpha, 1, 1 / alpha)


@lowering(aten.softplus.default)
def softplus(op: OpBuilder, self: ir.Value, beta: Operand = 1, threshold: Operand = 20) -> ir.Value:
    scaled = op.Mul(self, beta)
    result = op.Div(op.Softplus(scaled), beta)
    # Above the threshold torch returns its input, ONNX adds exp(-threshold): nothing, where that is rounded away.
    if _is_rounded_away(threshold, op.dtype(self)):
        return result
    return op.Where(op.Greater(scaled, threshold), self, result)


def _is_rounded_away(threshold: Operand, dtype: ir.DataType) -> bool:
    if isinstance(threshold, ir.Value) or dtype == ir.DataType.DOUBLE or threshold <= 0:
        return False
    return math.exp(-threshold) / threshold < 2.0**-26


@lowering(aten.log_sigmoid.default)
def log_sigmoid(op: OpBuilder, self: ir.Value) -> ir.Value:
    # The logarithm of a number between 1/2 and 1: that of a small one is inexact, and infinite for numbers below -17.
    return op.Add(op.Min(self, 0), op.Log(op.Sigmoid(op.Abs(self))))


@lowering(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(op: OpBuilder, self: ir.Value) -> tuple[ir.Value, ir.Value]:
    return log_sigmoid(op, self), op.Exp(op.Neg(op.Abs(self)))


@lowering(aten.threshold.default)
def threshold(op: OpBuilder, self: ir.Value, threshold: Scalar, value: Scalar) -> ir.Value:
    if threshold == value == 0:
        return op.Relu(self)
    return op.Where(op.LessOrEqual(self, threshold), value, self)


@lowering(aten.softshrink.default)
def softshrink(op: OpBuilder, self: ir.Value, lambd: Scalar = 0.5) -> ir.Value:
    # What lies outside [-lambd, lambd], moved towards zero by lambd; NaN and infinity pass.
    return op.Add(op.Max(op.Sub(self, lambd), 0), op.Min(op.Add(self, lambd), 0))


@lowering(aten.hardshrink.default)
def hardshrink(op: OpBuilder, self: ir.Value, lambd: Scalar = 0.5) -> ir.Value:
    return op.Where(op.LessOrEqual(op.Abs(self), lambd), 0, self)


@lowering(aten.glu.default)
def glu(op: OpBuilder, self: ir.Value, dim: int = -1) -> ir.Value:
    value, gate = op.emit_many("Split", 2, self, num_outputs=2, axis=dim)
    return op.Mul(value, op.Sigmoid(gate))


@lowering(aten.prelu.default, aten._prelu_kernel.default)
def prelu(op: OpBuilder, self: ir.Value, weight: ir.Value) -> ir.Value:
    rank, weights = op.rank(self), op.rank(weight)
    if weights == 1:
        size = op.size(weight, 0)
        if size == 1:
            weight = op.Reshape(weight, []) if rank == 0 else weight
        elif rank > 2:
            # One slope for each channel, which is dimension 1.
            weight = op.Unsqueeze(weight, list(range(1, rank - 1)))
    return op.PRelu(self, weight)


@lowering(aten.rrelu.default)
def rrelu(
    op: OpBuilder,
    self: ir.Value,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: object = None,
) -> ir.Value:
    if not training:
        return op.LeakyRelu(self, alpha=(lower + upper) / 2)
    noise = op.RandomUniformLike(self, low=lower, high=upper)
    return op.Where(op.LessOrEqual(self, 0), op.Mul(self, noise), self)


# ---- softmax


def _along(op: OpBuilder, op_type: str, value: ir.Value, dim: int) -> ir.Value:
    """Emit an operator with an axis; a 0-d tensor is taken as one of a single element."""
    if op.rank(value) > 0:
        return op.emit(op_type, value, axis=dim)
    return op.Squeeze(op.emit(op_type, op.Unsqueeze(value, [0]), axis=0), [0])


def _float(op: OpBuilder, value: ir.Value, dtype: torch.dtype | None) -> ir.Value:
    if dtype is not None:
        return op.cast(value, to_ir(dtype))
    return value if op.dtype(value).is_floating_point() else op.cast(value, to_ir(torch.get_default_dtype()))


@lowering(aten.softmax.int, aten.special_softmax.default)
def softmax(op: OpBuilder, self: ir.Value, dim: int, dtype: torch.dtype | None = None) -> ir.Value:
    return _along(op, "Softmax", _float(op, self, dtype), dim)


@lowering(aten.special_log_softmax.default)
@lowering(aten.log_softmax.int)
def log_softmax(op: OpBuilder, self: ir.Value, dim: int, dtype: torch.dtype | None = None) -> ir.Value:
    return _along(op, "LogSoftmax", _float(op, self, dtype), dim)


@lowering(aten._softmax.default)
def _softmax(op: OpBuilder, self: ir.Value, dim: int, half_to_float: bool) -> ir.Value:
    return softmax(op, self, dim, torch.float32 if half_to_float else None)


@lowering(aten._log_softmax.default)
def _log_softmax(op: OpBuilder, self: ir.Value, dim: int, half_to_float: bool) -> ir.Value:
    return log_softmax(op, self, dim, torch.float32 if half_to_float else None)


@lowering(aten._safe_softmax.default)
def _safe_softmax(op: OpBuilder, self: ir.Value, dim: int, dtype: torch.dtype | None = None) -> ir.Value:
    result = softmax(op, self, dim, dtype)
    masked = op.ReduceMin(op.cast(op.Equal(self, -math.inf), ir.DataType.UINT8), [dim], keepdims=1)
    return op.Where(op.cast(masked, ir.DataType.BOOL), 0, result)
