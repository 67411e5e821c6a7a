"""Bessel functions of order 0 and 1 and the Airy function.

Near 0 each function, freed of its singular part, is tabulated as it is; far from 0 what is tabulated is the slowly
varying factor that its asymptotic expansion has besides exponentials or waves (DLMF 10.17, 10.40).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from onnxops_decomp.formulas.operands import odd
from onnxops_decomp.formulas.tabulated import Function, in_double, polynomial, tabulated
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

aten = torch.ops.aten

# torch.special is not typed.
special: Any = torch.special

_FAR = 8.0


# ---- modified functions of the first kind


def _i0e_far(u: torch.Tensor) -> Any:
    x = _FAR / u
    return x.sqrt() * special.i0e(x)


def _i1e_far(u: torch.Tensor) -> Any:
    x = _FAR / u
    return x.sqrt() * special.i1e(x)


def _scaled_i(op: OpBuilder, x: ir.Value, near: Function, far: Function) -> ir.Value:
    """Return ``exp(-x) I(x)`` for ``x >= 0``."""
    u = op.Div(_FAR, op.Max(x, _FAR))
    wide = op.Div(tabulated(op, u, far, 0, 1), op.Sqrt(x))
    return op.Where(op.LessOrEqual(x, _FAR), tabulated(op, x, near, 0, _FAR), wide)


@lowering(aten.special_i0e.default)
@in_double()
def i0e(op: OpBuilder, self: ir.Value) -> ir.Value:
    return _scaled_i(op, op.Abs(self), special.i0e, _i0e_far)


@lowering(aten.special_i1e.default)
@in_double()
def i1e(op: OpBuilder, self: ir.Value) -> ir.Value:
    return odd(op, self, _scaled_i(op, op.Abs(self), special.i1e, _i1e_far))


@lowering(aten.i0.default, aten.special_modified_bessel_i0.default)
@in_double()
def i0(op: OpBuilder, self: ir.Value) -> ir.Value:
    x = op.Abs(self)
    return op.Mul(op.Exp(x), _scaled_i(op, x, special.i0e, _i0e_far))


@lowering(aten.special_i1.default, aten.special_modified_bessel_i1.default)
@in_double()
def i1(op: OpBuilder, self: ir.Value) -> ir.Value:
    x = op.Abs(self)
    return odd(op, self, op.Mul(op.Exp(x), _scaled_i(op, x, special.i1e, _i1e_far)))


# ---- modified functions of the second kind


def _k0_regular(x: torch.Tensor) -> Any:
    return (x / 2).log() * special.i0(x) + special.modified_bessel_k0(x)


def _k1_regular(x: torch.Tensor) -> Any:
    return x * (special.modified_bessel_k1(x) - (x / 2).log() * special.i1(x))


def _k0_far(u: torch.Tensor) -> Any:
    x = 2 / u
    return x.sqrt() * special.scaled_modified_bessel_k0(x)


def _k1_far(u: torch.Tensor) -> Any:
    x = 2 / u
    return x.sqrt() * special.scaled_modified_bessel_k1(x)


def _bessel_k(op: OpBuilder, x: ir.Value, order: int, scaled: bool) -> ir.Value:
    log = op.Log(op.Mul(x, 0.5))
    if order == 0:
        near = op.Sub(tabulated(op, x, _k0_regular, 0, 2), op.Mul(log, tabulated(op, x, special.i0, 0, 2)))
    else:
        regular = op.Div(tabulated(op, x, _k1_regular, 0, 2), x)
        near = op.Add(regular, op.Mul(log, tabulated(op, x, special.i1, 0, 2)))
    u = op.Div(2, op.Max(x, 2))
    far = op.Div(tabulated(op, u, _k1_far if order else _k0_far, 0, 1), op.Sqrt(x))
    if scaled:
        near = op.Mul(near, op.Exp(x))
    else:
        far = op.Mul(far, op.Exp(op.Neg(x)))
    value = op.Where(op.LessOrEqual(x, 2), near, far)
    return op.Where(op.Equal(x, 0), math.inf, op.Where(op.Less(x, 0), math.nan, value))


@lowering(aten.special_modified_bessel_k0.default)
@in_double()
def modified_bessel_k0(op: OpBuilder, self: ir.Value) -> ir.Value:
    return _bessel_k(op, self, 0, scaled=False)


@lowering(aten.special_modified_bessel_k1.default)
@in_double()
def modified_bessel_k1(op: OpBuilder, self: ir.Value) -> ir.Value:
    return _bessel_k(op, self, 1, scaled=False)


@lowering(aten.special_scaled_modified_bessel_k0.default)
@in_double()
def scaled_modified_bessel_k0(op: OpBuilder, x: ir.Value) -> ir.Value:
    return _bessel_k(op, x, 0, scaled=True)


@lowering(aten.special_scaled_modified_bessel_k1.default)
@in_double()
def scaled_modified_bessel_k1(op: OpBuilder, x: ir.Value) -> ir.Value:
    return _bessel_k(op, x, 1, scaled=True)


# ---- functions of the first and second kind


def _phase(x: torch.Tensor, order: int) -> torch.Tensor:
    return x - (math.pi / 4 + order * math.pi / 2)


def _p0(u: torch.Tensor) -> Any:
    x = _FAR / u
    return x.sqrt() * (_phase(x, 0).cos() * special.bessel_j0(x) + _phase(x, 0).sin() * special.bessel_y0(x))


def _q0(u: torch.Tensor) -> Any:
    x = _FAR / u
    return x.sqrt() * (_phase(x, 0).cos() * special.bessel_y0(x) - _phase(x, 0).sin() * special.bessel_j0(x))


def _p1(u: torch.Tensor) -> Any:
    x = _FAR / u
    return x.sqrt() * (_phase(x, 1).cos() * special.bessel_j1(x) + _phase(x, 1).sin() * special.bessel_y1(x))


def _q1(u: torch.Tensor) -> Any:
    x = _FAR / u
    return x.sqrt() * (_phase(x, 1).cos() * special.bessel_y1(x) - _phase(x, 1).sin() * special.bessel_j1(x))


def _y0_regular(x: torch.Tensor) -> Any:
    return x * 0 + special.bessel_y0(x) - 2 / math.pi * x.log() * special.bessel_j0(x)


def _y1_regular(x: torch.Tensor) -> Any:
    return x * 0 + special.bessel_y1(x) - 2 / math.pi * (x.log() * special.bessel_j1(x) - 1 / x)


def _wave(op: OpBuilder, x: ir.Value, order: int, second_kind: bool) -> ir.Value:
    """Return a function of the first or second kind for ``x`` beyond the table."""
    u = op.Div(_FAR, op.Max(x, _FAR))
    p = tabulated(op, u, _p1 if order else _p0, 0, 1)
    q = tabulated(op, u, _q1 if order else _q0, 0, 1)
    angle = op.Sub(x, math.pi / 4 + order * math.pi / 2)
    sine, cosine = op.Sin(angle), op.Cos(angle)
    first, second = (sine, cosine) if second_kind else (cosine, op.Neg(sine))
    return op.Div(op.Add(op.Mul(p, first), op.Mul(q, second)), op.Sqrt(x))


@lowering(aten.special_bessel_j0.default)
@in_double()
def bessel_j0(op: OpBuilder, self: ir.Value) -> ir.Value:
    x = op.Abs(self)
    near = tabulated(op, x, special.bessel_j0, 0, _FAR)
    return op.Where(op.LessOrEqual(x, _FAR), near, _wave(op, x, 0, second_kind=False))


@lowering(aten.special_bessel_j1.default)
@in_double()
def bessel_j1(op: OpBuilder, self: ir.Value) -> ir.Value:
    x = op.Abs(self)
    near = tabulated(op, x, special.bessel_j1, 0, _FAR)
    return odd(op, self, op.Where(op.LessOrEqual(x, _FAR), near, _wave(op, x, 1, second_kind=False)))


def _second_kind(op: OpBuilder, x: ir.Value, near: ir.Value, order: int) -> ir.Value:
    value = op.Where(op.LessOrEqual(x, _FAR), near, _wave(op, x, order, second_kind=True))
    return op.Where(op.Equal(x, 0), -math.inf, op.Where(op.Less(x, 0), math.nan, value))


@lowering(aten.special_bessel_y0.default)
@in_double()
def bessel_y0(op: OpBuilder, self: ir.Value) -> ir.Value:
    singular = op.Mul(op.Mul(op.Log(self), 2 / math.pi), tabulated(op, self, special.bessel_j0, 0, _FAR))
    return _second_kind(op, self, op.Add(tabulated(op, self, _y0_regular, 0, _FAR), singular), 0)


@lowering(aten.special_bessel_y1.default)
@in_double()
def bessel_y1(op: OpBuilder, self: ir.Value) -> ir.Value:
    product = op.Mul(op.Log(self), tabulated(op, self, special.bessel_j1, 0, _FAR))
    singular = op.Mul(op.Sub(product, op.Reciprocal(self)), 2 / math.pi)
    return _second_kind(op, self, op.Add(tabulated(op, self, _y1_regular, 0, _FAR), singular), 1)


@lowering(aten.special_spherical_bessel_j0.default)
@in_double()
def spherical_bessel_j0(op: OpBuilder, x: ir.Value) -> ir.Value:
    value = op.Where(op.Equal(x, 0), 1, op.Div(op.Sin(x), x))
    return op.Where(op.IsInf(x), 0, value)


# ---- Airy function

# torch changes its method at -2.09, with a step of some 1e-7.
_AIRY_ENDS = (-9.0, -2.09, 2.0)


def _airy_decay(u: torch.Tensor) -> Any:
    x = 2 / u
    return x**0.25 * torch.exp(2 / 3 * x * x.sqrt()) * special.airy_ai(x)


def _airy_series(count: int) -> tuple[list[float], list[float]]:
    """Return the coefficients of cosine and sine in the expansion far on the negative side (DLMF 9.7.9)."""
    u = [1.0]
    for k in range(1, count):
        u.append(u[-1] * (6 * k - 5) * (6 * k - 3) * (6 * k - 1) / ((2 * k - 1) * 216 * k))
    even = [(-1) ** k * value for k, value in enumerate(u[::2])]
    odd = [(-1) ** k * value for k, value in enumerate(u[1::2])]
    return even, odd


def _airy_wave(op: OpBuilder, x: ir.Value) -> ir.Value:
    """Return Ai(-x) for large positive ``x``."""
    angle = op.Mul(op.Mul(x, op.Sqrt(x)), 2 / 3)
    r = op.Reciprocal(angle)
    even, odd = (polynomial(op, op.Mul(r, r), coefficients) for coefficients in _airy_series(14))
    shifted = op.Sub(angle, math.pi / 4)
    wave = op.Add(op.Mul(op.Cos(shifted), even), op.Mul(op.Mul(op.Sin(shifted), odd), r))
    return op.Div(wave, op.Mul(op.Sqrt(op.Sqrt(x)), math.sqrt(math.pi)))


@lowering(aten.special_airy_ai.default)
@in_double()
def airy_ai(op: OpBuilder, x: ir.Value) -> ir.Value:
    low, middle, high = _AIRY_ENDS
    right = op.Max(x, high)
    factor = op.Exp(op.Mul(op.Mul(right, op.Sqrt(right)), -2 / 3))
    decay = op.Div(tabulated(op, op.Div(2, right), _airy_decay, 0.02, 1), op.Sqrt(op.Sqrt(right)))
    left = tabulated(op, x, special.airy_ai, low, middle)
    near = op.Where(op.Less(x, middle), left, tabulated(op, x, special.airy_ai, middle, high))
    value = op.Where(op.Less(x, high), near, op.Mul(decay, factor))
    value = op.Where(op.Less(x, low), _airy_wave(op, op.Neg(op.Min(x, low))), value)
    # Torch gives no number at either infinity.
    return op.Where(op.IsInf(x), math.nan, value)
