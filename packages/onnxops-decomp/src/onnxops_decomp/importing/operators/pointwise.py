"""Operators that work element by element."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from onnxops_decomp.importing.registry import onnx_op
from onnxops_decomp.importing.values import of_bits, of_strings, ordered, widened

_SAME = {
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}
for _op_type, _function in _SAME.items():
    onnx_op(_op_type)(_function)
for _op_type, _function in {"And": torch.logical_and, "Or": torch.logical_or, "Xor": torch.logical_xor}.items():
    onnx_op(_op_type, since=7)(_function)


@onnx_op("Abs")
def absolute(X: Tensor) -> Tensor:
    return X if not X.dtype.is_signed else torch.abs(X)


@onnx_op("Neg")
@widened
def negative(X: Tensor) -> Tensor:
    return torch.neg(X)


@onnx_op("Sign")
def sign(input: Tensor) -> Tensor:
    if input.dtype.is_floating_point:
        return torch.where(torch.isnan(input), input, torch.sign(input))
    return torch.sign(input) if input.dtype.is_signed else (input != 0).to(input.dtype)


@onnx_op("Add", since=7)
@widened
def add(A: Tensor, B: Tensor) -> Tensor:
    return torch.add(A, B)


@onnx_op("Sub", since=7)
@widened
def sub(A: Tensor, B: Tensor) -> Tensor:
    return torch.sub(A, B)


@onnx_op("Mul", since=7)
@widened
def mul(A: Tensor, B: Tensor) -> Tensor:
    return torch.mul(A, B)


def _aligned(B: Tensor, A: Tensor, axis: int | None) -> Tensor:
    """Return the second operand of an operator before opset 7, whose first dimension is A's dimension ``axis``."""
    missing = 0 if axis is None else A.dim() - axis % max(A.dim(), 1) - B.dim()
    return B.reshape([*B.shape, *[1] * missing])


def _older(op_type: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    def aligned(A: Tensor, B: Tensor, axis: int | None = None, broadcast: int = 0) -> Tensor:
        return function(A, _aligned(B, A, axis))

    aligned.__name__ = aligned.__qualname__ = f"{op_type.lower()}_below_opset_7"
    globals()[aligned.__name__] = aligned
    onnx_op(op_type)(aligned)


def _unsigned_quotient(A: Tensor, B: Tensor) -> Tensor:
    """Return the quotient of uint64: half of the dividend by the divisor, doubled, and one more where the rest fits."""
    a, b = torch.broadcast_tensors(A.view(torch.int64), B.view(torch.int64))
    flip = -(2**63)
    half = (a >> 1) & 0x7FFF_FFFF_FFFF_FFFF
    divisor = torch.where(b > 0, b, 1)
    estimate = torch.div(half, divisor, rounding_mode="trunc") << 1
    rest = a - estimate * divisor
    small = estimate + ((rest ^ flip) >= (divisor ^ flip)).to(torch.int64)
    large = ((a ^ flip) >= (b ^ flip)).to(torch.int64)
    return torch.where(b < 0, large, small).view(torch.uint64)


def _divided(A: Tensor, B: Tensor) -> Tensor:
    return torch.div(A, B, rounding_mode="trunc")


@onnx_op("Div", since=7)
def div(A: Tensor, B: Tensor) -> Tensor:
    if A.is_floating_point() or A.is_complex():
        return torch.div(A, B)
    return _unsigned_quotient(A, B) if A.dtype == torch.uint64 else widened(_divided)(A, B)


@onnx_op("Mod")
def mod(A: Tensor, B: Tensor, fmod: int = 0) -> Tensor:
    if A.dtype == torch.uint64:
        return sub(A, mul(_unsigned_quotient(A, B), B))
    return widened(torch.fmod if fmod else torch.remainder)(A, B)


@onnx_op("Pow", since=7)
def power(X: Tensor, Y: Tensor) -> Tensor:
    if X.is_floating_point():
        return torch.pow(X, Y.to(X.dtype) if Y.is_floating_point() or not Y.dtype.is_signed else Y).to(X.dtype)
    if Y.is_floating_point():
        return torch.pow(X.double(), Y.double()).to(X.dtype)
    wide = widened(torch.pow)(X, Y.to(X.dtype) if Y.dtype in (torch.uint16, torch.uint32, torch.uint64) else Y)
    return wide.to(X.dtype)


for _op_type, _function in {
    "Add": add,
    "Sub": sub,
    "Mul": mul,
    "Div": div,
    "Pow": power,
    "And": torch.logical_and,
    "Or": torch.logical_or,
    "Xor": torch.logical_xor,
}.items():
    _older(_op_type, _function)


@ordered
def _less(A: Tensor, B: Tensor) -> Tensor:
    return torch.lt(A, B)


@ordered
def _equal(A: Tensor, B: Tensor) -> Tensor:
    return torch.eq(A, B)


@onnx_op("Less", since=7)
def less(A: Tensor, B: Tensor) -> Tensor:
    return _less(A, B)


@onnx_op("LessOrEqual")
def less_or_equal(A: Tensor, B: Tensor) -> Tensor:
    return _less(A, B) | _equal(A, B)


@onnx_op("Greater", since=7)
def greater(A: Tensor, B: Tensor) -> Tensor:
    return _less(B, A)


@onnx_op("GreaterOrEqual")
def greater_or_equal(A: Tensor, B: Tensor) -> Tensor:
    return _less(B, A) | _equal(A, B)


@onnx_op("Equal", since=7)
def equal(A: Any, B: Any) -> Tensor:
    if not isinstance(A, Tensor):  # strings
        return torch.from_numpy(A == B)
    return _equal(A, B)


for _op_type, _function in {"Less": less, "Greater": greater, "Equal": equal}.items():
    _older(_op_type, _function)


@onnx_op("Max")
def maximum(*data_0: Tensor) -> Tensor:
    return reduce(ordered(torch.maximum), data_0)


@onnx_op("Min")
def minimum(*data_0: Tensor) -> Tensor:
    return reduce(ordered(torch.minimum), data_0)


@onnx_op("Sum")
def total(*data_0: Tensor) -> Tensor:
    return reduce(torch.add, data_0)


@onnx_op("Mean")
def mean(*data_0: Tensor) -> Tensor:
    return reduce(torch.add, data_0) / len(data_0)


@onnx_op("Clip", since=11)
@ordered
def clip(input: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    if min is not None:
        input = torch.maximum(input, min)
    return input if max is None else torch.minimum(input, max)


@onnx_op("Clip")
def clip_to_numbers(input: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    return input if min is None and max is None else torch.clamp(input, min, max)


@onnx_op("BitShift")
def bit_shift(X: Tensor, Y: Tensor, direction: str) -> Tensor:
    bits = 8 * X.element_size()
    wide = X.view(torch.int64) if bits == 64 else X.to(torch.int64)
    count = Y.view(torch.int64) if bits == 64 else Y.to(torch.int64)
    # A shift by the whole width or more leaves nothing but the sign; torch leaves it open, as C does.
    beyond = (count >= bits) | (count < 0)
    count = torch.where(beyond, bits - 1, count)
    if direction == "LEFT":
        shifted = torch.where(beyond, 0, wide << count)
    elif X.dtype.is_signed:
        shifted = wide >> count
    else:
        mask = torch.where(count == 0, -1, (1 << (64 - count).clamp(0, 63)) - 1)
        shifted = torch.where(beyond, 0, (wide >> count) & mask)
    return shifted.view(X.dtype) if bits == 64 else shifted.to(X.dtype)


for _op_type, _function in {
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
}.items():
    onnx_op(_op_type)(_function)


@onnx_op("BitwiseNot")
@of_bits
def bitwise_not(X: Tensor) -> Tensor:
    return torch.bitwise_not(X)


@onnx_op("Where")
@of_strings
def where(condition: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    return torch.where(condition, X, Y)


@onnx_op("IsInf")
def is_inf(X: Tensor, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    X = X.float() if X.element_size() == 1 else X
    if detect_negative and detect_positive:
        return torch.isinf(X)
    if not detect_negative and not detect_positive:
        return torch.zeros_like(X, dtype=torch.bool)
    return torch.isposinf(X) if detect_positive else torch.isneginf(X)


# Activations


@onnx_op("Relu")
def relu(X: Tensor) -> Tensor:
    return functional.relu(X)


@onnx_op("LeakyRelu")
def leaky_relu(X: Tensor, alpha: float = 0.01) -> Tensor:
    return functional.leaky_relu(X, alpha)


@onnx_op("PRelu", since=7)
def prelu(X: Tensor, slope: Tensor) -> Tensor:
    return X if not X.dtype.is_signed else torch.where(X < 0, X * slope, X)


@onnx_op("PRelu")
def prelu_of_channels(X: Tensor, slope: Tensor) -> Tensor:
    return functional.prelu(X, slope.reshape(-1))


@onnx_op("Elu")
def elu(X: Tensor, alpha: float = 1.0) -> Tensor:
    return functional.elu(X, alpha)


@onnx_op("Celu")
def celu(X: Tensor, alpha: float = 1.0) -> Tensor:
    return functional.celu(X, alpha)


@onnx_op("Selu")
def selu(X: Tensor, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Tensor:
    return gamma * functional.elu(X, alpha)


@onnx_op("HardSigmoid")
def hard_sigmoid(X: Tensor, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return torch.clamp(alpha * X + beta, 0, 1)


@onnx_op("HardSwish")
def hard_swish(X: Tensor) -> Tensor:
    return functional.hardswish(X)


@onnx_op("Softplus")
def softplus(X: Tensor) -> Tensor:
    return functional.softplus(X, threshold=_threshold(X.dtype))


def _threshold(dtype: torch.dtype) -> float:
    """Return from where on softplus is the identity in a dtype; torch's default is right for float32 alone."""
    return 40.0 if dtype == torch.float64 else 20.0


@onnx_op("Softsign")
def softsign(input: Tensor) -> Tensor:
    return functional.softsign(input)


@onnx_op("ThresholdedRelu")
def thresholded_relu(X: Tensor, alpha: float = 1.0) -> Tensor:
    return torch.where(alpha < X, X, 0)


@onnx_op("Shrink")
def shrink(input: Tensor, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    shrunk = torch.where(input < -lambd, input + bias, torch.where(input > lambd, input - bias, 0))
    return shrunk.to(input.dtype)


@onnx_op("Gelu", since=20)
def gelu(X: Tensor, approximate: str = "none") -> Tensor:
    return functional.gelu(X, approximate=approximate)


@onnx_op("Mish")
def mish(X: Tensor) -> Tensor:
    return functional.mish(X)


@onnx_op("Swish")
def swish(X: Tensor, alpha: float = 1.0) -> Tensor:
    return functional.silu(X) if alpha == 1 else X * torch.sigmoid(alpha * X)
