"""Activations that became operators, and the softmax family whose axis changed its meaning."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.builder.forms import Adapter, adapter
from onnxops_decomp.errors import UnsupportedOpsetError
from onnxops_decomp.formulas.operands import odd
from onnxops_decomp.formulas.tabulated import polynomial
from onnxops_decomp.spec.inference import dims_of

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder


@adapter("Gelu", below=20)
def gelu(op: OpBuilder, x: ir.Value, *, approximate: str = "none") -> ir.Value:
    # The order of the products is the one that runtimes fuse.
    if approximate == "tanh":
        cubic = op.Mul(op.Mul(x, math.sqrt(2 / math.pi)), op.Add(op.Mul(op.Mul(x, 0.044715), x), 1.0))
        return op.Mul(op.Mul(x, 0.5), op.Add(op.Tanh(cubic), 1.0))
    return op.Mul(op.Mul(x, op.Add(op.Erf(op.Div(x, math.sqrt(2))), 1.0)), 0.5)


@adapter("HardSwish", below=14)
def hard_swish(op: OpBuilder, x: ir.Value) -> ir.Value:
    return op.Mul(x, op.HardSigmoid(x, alpha=1 / 6, beta=0.5))


@adapter("Mish", below=18)
def mish(op: OpBuilder, x: ir.Value) -> ir.Value:
    return op.Mul(x, op.Tanh(op.Softplus(x)))


@adapter("Swish", below=24)
def swish(op: OpBuilder, x: ir.Value, *, alpha: float = 1.0) -> ir.Value:
    return op.Mul(x, op.Sigmoid(x if alpha == 1.0 else op.Mul(x, alpha)))


@adapter("SwiGLU", below=28)
def swiglu(op: OpBuilder, gate: ir.Value, linear: ir.Value, *, alpha: float = 1.0) -> ir.Value:
    return op.Mul(op.Swish(gate, alpha=alpha), linear)


@adapter("Celu", below=28)
def celu(op: OpBuilder, x: ir.Value, *, alpha: float = 1.0) -> ir.Value:
    if alpha == 1.0:
        return op.Elu(x)
    positive, negative = op.Relu(x), op.Neg(op.Relu(op.Neg(x)))
    return op.Add(positive, op.Mul(op.Elu(op.Div(negative, alpha)), alpha))


@adapter("ThresholdedRelu", below=10)
def thresholded_relu(op: OpBuilder, x: ir.Value, *, alpha: float = 1.0) -> ir.Value:
    return op.Where(op.Greater(x, alpha), x, 0)


@adapter("Shrink", below=9)
def shrink(op: OpBuilder, x: ir.Value, *, bias: float = 0.0, lambd: float = 0.5) -> ir.Value:
    inner = op.Where(op.Greater(x, lambd), op.Sub(x, bias), 0)
    return op.Where(op.Less(x, -lambd), op.Add(x, bias), inner)


# erf(x) = x P(x * x) / Q(x * x) up to where it rounds to 1 in FLOAT: a least-squares fit of relative error 2e-8.
_ERF_LIMIT = 3.9192059040069580
_ERF_P = (
    1.1283791464203976,
    0.19037047231204776,
    0.05274462342317594,
    0.003764242111501081,
    0.0002848819357352428,
    2.0507718257144817e-06,
)
_ERF_Q = (
    1.0,
    0.5020441831850782,
    0.11409483113510704,
    0.014966454400930024,
    0.0011622571760367731,
    3.8098731684094586e-05,
)


@adapter("Erf", below=9)
def erf(op: OpBuilder, x: ir.Value) -> ir.Value:
    dtype = op.dtype(x)
    if dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        raise UnsupportedOpsetError("Erf", op.opset, lowest=9, reason=f"{dtype.name} to its full precision")
    # In doubles the rounding of the polynomials does not show.
    bounded = op.cast(op.Clip(op.cast(x, ir.DataType.FLOAT), -_ERF_LIMIT, _ERF_LIMIT), ir.DataType.DOUBLE)
    square = op.Mul(bounded, bounded)
    ratio = op.Div(polynomial(op, square, _ERF_P), polynomial(op, square, _ERF_Q))
    return op.cast(op.Mul(bounded, ratio), dtype)


def _of_last_axis(op_type: str) -> Adapter:
    """Below opset 13 the operator normalises over ``axis`` and all axes behind it, so that must be the last one."""

    def normalise(op: OpBuilder, x: ir.Value, *, older: OpBuilder, axis: int = -1) -> ir.Value:
        dims = dims_of(x)
        if dims is None:
            if axis == -1 and op.opset >= 11:
                return older.emit(op_type, x, axis=-1)
            raise UnsupportedOpsetError(op_type, op.opset, lowest=13, reason="the rank is not known")
        rank = len(dims)
        if rank == 0:
            return op.Reshape(older.emit(op_type, op.Reshape(x, [1]), axis=0), [])
        axis %= rank
        if axis == rank - 1:
            return older.emit(op_type, x, axis=axis)
        swap = list(range(rank))
        swap[axis], swap[-1] = swap[-1], swap[axis]
        return op.Transpose(older.emit(op_type, op.Transpose(x, perm=swap), axis=rank - 1), perm=swap)

    return normalise


for _name in ("Hardmax", "LogSoftmax", "Softmax"):
    # The axes that are normalised over.
    adapter(_name, below=13, keeps_meaning=False)(_of_last_axis(_name))


def _function(form: Callable[[OpBuilder, ir.Value], ir.Value]) -> Adapter:
    def emit(op: OpBuilder, x: ir.Value) -> ir.Value:
        return form(op, x)

    return emit


def _cosh(op: OpBuilder, x: ir.Value) -> ir.Value:
    # The square of exp(x / 2) overflows only where cosh itself does.
    up, down = op.Exp(op.Mul(x, 0.5)), op.Exp(op.Mul(x, -0.5))
    return op.Add(op.Mul(op.Mul(up, 0.5), up), op.Mul(op.Mul(down, 0.5), down))


def _sinh(op: OpBuilder, x: ir.Value) -> ir.Value:
    # The difference of exponentials would lose all digits near zero.
    return op.Mul(op.Tanh(x), _cosh(op, x))


def log1p(op: OpBuilder, x: ir.Value) -> ir.Value:
    """Return log(1 + x), accurate near zero: the rounding of 1 + x cancels between logarithm and divisor."""
    total = op.Add(x, 1)
    rest = op.Sub(total, 1)
    zero = op.cast(op.Not(op.cast(rest, ir.DataType.BOOL)), op.dtype(x))
    # Where 1 + x rounds to 1 the quotient is 0 / 0; adding 1 to both leaves x. An infinite x stays infinite.
    ratio = op.Div(op.Add(op.Log(total), zero), op.Add(rest, zero))
    return op.Where(op.Greater(x, 1), op.Log(total), op.Mul(x, ratio))


def _asinh(op: OpBuilder, x: ir.Value) -> ir.Value:
    a = op.Abs(x)
    # a / max(a, 1) and 1 / max(a, 1): their squares do not overflow.
    b, c = op.Min(a, 1), op.Reciprocal(op.Max(a, 1))
    root = op.Sqrt(op.Add(op.Mul(b, b), op.Mul(c, c)))
    return odd(op, x, log1p(op, op.Add(a, op.Mul(a, op.Div(b, op.Add(root, c))))))


def _acosh(op: OpBuilder, x: ir.Value) -> ir.Value:
    above = op.Sub(x, 1)
    return log1p(op, op.Add(above, op.Mul(op.Sqrt(above), op.Sqrt(op.Add(x, 1)))))


def _atanh(op: OpBuilder, x: ir.Value) -> ir.Value:
    a = op.Abs(x)
    half = op.Mul(log1p(op, op.Div(op.Mul(a, 2), op.Sub(1, a))), 0.5)
    return odd(op, x, half)


HYPERBOLIC = {"Acosh": _acosh, "Asinh": _asinh, "Atanh": _atanh, "Cosh": _cosh, "Sinh": _sinh}
for _name, _form in HYPERBOLIC.items():
    adapter(_name, below=9)(_function(_form))
