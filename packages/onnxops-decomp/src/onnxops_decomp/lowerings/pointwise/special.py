"""The error function and its relatives, the gamma function and its derivatives, the zeta function."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import torch

from onnxops_decomp.formulas.tabulated import in_double, polynomial, tabulated
from onnxops_decomp.lowerings.pointwise.elementary import log1p
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.spec.inference import dims_of

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

aten = torch.ops.aten

BOOL, DOUBLE, INT64 = ir.DataType.BOOL, ir.DataType.DOUBLE, ir.DataType.INT64


# ---- error function


def _erfcx_decay(u: torch.Tensor) -> Any:
    """``erfcx(x) / u`` for ``u = 1 / (1 + x)``, which tends to 1 / sqrt(pi) for large ``x``."""
    return torch.special.erfcx(1 / u - 1) / u


def _erfcx_of_positive(op: OpBuilder, x: ir.Value) -> ir.Value:
    u = op.Reciprocal(op.Add(x, 1))
    return op.Mul(u, tabulated(op, u, _erfcx_decay, 0, 1))


@lowering(aten.special_erfcx.default)
@in_double()
def erfcx(op: OpBuilder, self: ir.Value) -> ir.Value:
    right = _erfcx_of_positive(op, op.Abs(self))
    left = op.Sub(op.Mul(op.Exp(op.Mul(self, self)), 2), right)
    return op.Where(op.Less(self, 0), left, right)


@lowering(aten.erfc.default)
@in_double()
def erfc(op: OpBuilder, self: ir.Value) -> ir.Value:
    return _erfc(op, self)


def _erfc(op: OpBuilder, x: ir.Value) -> ir.Value:
    # 1 - erf(x) would be 0 where erfc is small but not 0.
    tail = op.Mul(op.Exp(op.Neg(op.Mul(x, x))), _erfcx_of_positive(op, op.Abs(x)))
    return op.Where(op.Less(x, 0), op.Sub(2, tail), tail)


@lowering(aten.special_log_ndtr.default)
@in_double()
def log_ndtr(op: OpBuilder, self: ir.Value) -> ir.Value:
    x = op.Mul(self, math.sqrt(0.5))
    tail = op.Sub(op.Log(op.Mul(_erfcx_of_positive(op, op.Abs(x)), 0.5)), op.Mul(x, x))
    bulk = log1p(op, op.Mul(_erfc(op, x), -0.5))
    return op.Where(op.Less(self, -1), tail, bulk)


def _ndtri_center(z: torch.Tensor) -> Any:
    """``ndtri(1 / 2 + d) / d`` as a function of ``d * d``."""
    d = z.sqrt()
    return torch.special.ndtri(0.5 + d) / d


def _ndtri_tail(w: torch.Tensor) -> Any:
    """``-ndtri(p)`` as a function of ``sqrt(-2 log(p))``."""
    return -torch.special.ndtri(torch.exp(-w * w / 2))


def _normal_quantile(op: OpBuilder, distance: ir.Value, tail: ir.Value) -> ir.Value:
    """Return how far from 0 the normal quantile of a probability lies.

    Args:
        op: Builder.
        distance: The probability's distance from 1/2, from 0 to 1/2.
        tail: 1/2 - distance, which says more in the tail.
    """
    center = op.Mul(distance, tabulated(op, op.Mul(distance, distance), _ndtri_center, 0, 0.0625))
    w = op.Sqrt(op.Mul(op.Log(tail), -2))
    far = op.Where(op.Equal(tail, 0), math.inf, tabulated(op, w, _ndtri_tail, 1.6, 38.5))
    return op.Where(op.Less(distance, 0.25), center, op.Where(op.Less(tail, 0), math.nan, far))


@lowering(aten.special_ndtri.default)
@in_double()
def ndtri(op: OpBuilder, self: ir.Value) -> ir.Value:
    size = _normal_quantile(op, op.Abs(op.Sub(self, 0.5)), op.Min(self, op.Sub(1, self)))
    return op.Where(op.Less(self, 0.5), op.Neg(size), size)


@lowering(aten.erfinv.default)
@in_double()
def erfinv(op: OpBuilder, self: ir.Value) -> ir.Value:
    absolute = op.Abs(self)
    size = _normal_quantile(op, op.Mul(absolute, 0.5), op.Mul(op.Sub(1, absolute), 0.5))
    size = op.Mul(size, math.sqrt(0.5))
    return op.Where(op.Less(self, 0), op.Neg(size), size)


# ---- gamma function

# B(2k) / (2k (2k - 1)) and B(2k) / (2k) of the Bernoulli numbers, for the asymptotic series (DLMF 5.11.1, 5.11.2).
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
_LGAMMA_SERIES = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI, 1)]
_DIGAMMA_SERIES = [b / (2 * k) for k, b in enumerate(_BERNOULLI, 1)]
_SHIFT = 8


def _sin_pi(op: OpBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return sin and cos of ``pi * d`` for the distance ``d`` to the nearest integer, and where ``d`` is 0."""
    offset = op.Sub(x, op.Round(x))
    angle = op.Mul(offset, math.pi)
    return op.Sin(angle), op.Cos(angle), op.Equal(offset, 0)


@lowering(aten.lgamma.default)
@in_double()
def lgamma(op: OpBuilder, self: ir.Value) -> ir.Value:
    return log_gamma(op, self)


def log_gamma(op: OpBuilder, x: ir.Value) -> ir.Value:
    """Return the logarithm of the absolute value of the gamma function of a DOUBLE tensor."""
    left = op.Less(x, 0.5)
    positive = op.Where(left, op.Sub(1, x), x)
    small = op.Less(positive, _SHIFT)
    z = op.Where(small, op.Add(positive, _SHIFT), positive)
    r = op.Reciprocal(z)
    series = op.Mul(r, polynomial(op, op.Mul(r, r), _LGAMMA_SERIES))
    # (z - 1/2) log(z) - z, written so that infinity minus infinity does not arise.
    leading = op.Mul(op.Sub(z, 0.5), op.Sub(op.Log(z), 1))
    stirling = op.Add(op.Add(leading, 0.5 * math.log(2 * math.pi) - 0.5), series)
    product = op.Min(positive, _SHIFT)
    steps = [op.Add(product, step) if step else product for step in range(_SHIFT)]
    for factor in steps[1:]:
        product = op.Mul(product, factor)
    result = op.Where(small, op.Sub(stirling, op.Log(product)), stirling)
    sine, _, whole = _sin_pi(op, x)
    reflected = op.Sub(op.Sub(math.log(math.pi), op.Log(op.Abs(sine))), result)
    result = op.Where(left, op.Where(whole, math.inf, reflected), result)
    return op.Where(op.IsInf(x), math.inf, result)


@lowering(aten.digamma.default)
@in_double()
def digamma(op: OpBuilder, self: ir.Value) -> ir.Value:
    left = op.Less(self, 0.5)
    positive = op.Where(left, op.Sub(1, self), self)
    z = op.Add(positive, _SHIFT)
    r = op.Reciprocal(z)
    squared = op.Mul(r, r)
    series = op.Mul(squared, polynomial(op, squared, _DIGAMMA_SERIES))
    result = op.Sub(op.Sub(op.Log(z), op.Mul(r, 0.5)), series)
    for step in range(_SHIFT):
        result = op.Sub(result, op.Reciprocal(op.Add(positive, step) if step else positive))
    sine, cosine, whole = _sin_pi(op, self)
    reflected = op.Sub(result, op.Mul(op.Div(cosine, sine), math.pi))
    # At 0 the pole has the sign of the zero, at negative integers it has none.
    pole = op.Where(op.Equal(self, 0), op.Neg(op.Reciprocal(self)), math.nan)
    return op.Where(left, op.Where(op.Or(whole, op.IsInf(self)), pole, reflected), result)


def _zeta_of_positive(op: OpBuilder, s: ir.Value, q: ir.Value, terms: Size) -> ir.Value:
    """Return the Hurwitz zeta function by the Euler-Maclaurin formula after ``terms`` terms (DLMF 25.11.28)."""
    last = max(op.rank(q), op.rank(s))
    steps = op.Range(0, terms, 1) if isinstance(terms, ir.Value) else op.constant(np.arange(terms))
    bases = op.Add(op.Unsqueeze(q, [op.rank(q)]), op.cast(steps, DOUBLE))
    exponents = op.Unsqueeze(op.Neg(s), [op.rank(s)])
    result = op.ReduceSum(op.Pow(bases, exponents), [last], keepdims=0)
    end = op.Add(q, op.cast(terms, DOUBLE) if isinstance(terms, ir.Value) else float(terms))
    power = op.Pow(end, op.Neg(s))
    result = op.Add(result, op.Mul(power, op.Add(op.Div(end, op.Sub(s, 1)), 0.5)))
    factor = op.Mul(s, op.Div(power, end))
    for k, bernoulli in enumerate(_BERNOULLI, 1):
        result = op.Add(result, op.Mul(factor, bernoulli / math.factorial(2 * k)))
        if k < len(_BERNOULLI):
            rising = op.Mul(op.Add(s, 2 * k - 1), op.Add(s, 2 * k))
            factor = op.Div(op.Mul(factor, rising), op.Mul(end, end))
    return result


# A sum over more terms than this is left to NaN; torch itself would take that many steps for each element.
_MOST_TERMS = 100_000


@lowering(aten.special_zeta.default, aten.special_zeta.other_scalar, aten.special_zeta.self_scalar)
@in_double(2)
def zeta(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    # Below 0 every term up to the positive ones has to be summed, so the lowest q says how many.
    lowest = op.Where(op.IsNaN(other), 0, op.Min(other, 0))
    below = op.Min(op.Neg(op.ReduceMin(op.Floor(lowest), keepdims=0)), _MOST_TERMS)
    value = _zeta_of_positive(op, self, other, op.Add(op.cast(below, INT64), 10))
    on_pole = op.And(op.LessOrEqual(other, 0), op.Equal(other, op.Floor(other)))
    complex_power = op.And(op.LessOrEqual(other, 0), op.Not(op.Equal(self, op.Floor(self))))
    value = op.Where(op.Or(complex_power, op.Less(other, -_MOST_TERMS)), math.nan, value)
    value = op.Where(op.Or(on_pole, op.Equal(self, 1)), math.inf, value)
    # Of a sum of infinite powers torch gives the first term, and no number where that is 0.
    first = op.Where(op.Less(other, 1), math.inf, op.Where(op.Equal(other, 1), op.constant(1.0, DOUBLE), math.nan))
    value = op.Where(op.Equal(self, math.inf), first, value)
    return op.Where(op.And(op.Less(self, 1), op.Equal(self, self)), math.nan, value)


def _cotangent_derivative(order: int) -> list[float]:
    """Return the coefficients of the polynomial in ``cot(pi x)`` that is ``pi`` times its derivative by ``x``."""
    polynomial = np.polynomial.Polynomial([0, math.pi])
    for _ in range(order):
        polynomial = polynomial.deriv() * np.polynomial.Polynomial([-math.pi, 0, -math.pi])
    return [float(coefficient) for coefficient in polynomial.coef]


@lowering(aten.polygamma.default)
@in_double(first=1)
def polygamma(op: OpBuilder, n: int, self: ir.Value) -> ir.Value:
    if n == 0:
        return digamma(op, self)
    left = op.Less(self, 0.5)
    positive = op.Where(left, op.Sub(1, self), self)
    order = op.constant(float(n + 1), DOUBLE)
    value = op.Mul(_zeta_of_positive(op, order, positive, 10), (-1.0) ** (n + 1) * math.factorial(n))
    # The reflection formula (DLMF 5.15.6).
    sine, cosine, whole = _sin_pi(op, self)
    slope = polynomial(op, op.Div(cosine, sine), _cotangent_derivative(n))
    reflected = op.Sub(op.Mul(value, (-1.0) ** n), slope)
    value = op.Where(left, op.Where(whole, (-1.0) ** (n + 1) * math.inf, reflected), value)
    above, below = (0.0, math.nan) if n == 1 else (math.nan, (-1.0) ** (n + 1) * math.inf)
    return op.Where(op.IsInf(self), op.Where(left, op.constant(below, DOUBLE), above), value)


# ---- incomplete gamma function


def _incomplete_gamma_terms(op: OpBuilder, a: ir.Value, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the sum of the power series (DLMF 8.7.1) and the continued fraction (DLMF 8.9.2), by one loop.

    Both converge in a number of steps of the order of sqrt(a) on their side of ``x = a + 1``.
    """
    largest = op.ReduceMax(op.Where(op.Or(op.IsNaN(a), op.IsInf(a)), 0, a), keepdims=0)
    steps = op.Add(op.cast(op.Mul(op.Sqrt(op.Max(largest, 0)), 8), INT64), 80)
    zero = op.Mul(op.Add(a, x), 0)
    body = op.subgraph()
    index, going = body.input("index", INT64, ()), body.input("going", BOOL, ())
    total, term, fraction = (body.input(name, DOUBLE, dims_of(zero)) for name in ("total", "term", "fraction"))
    k = body.cast(index, DOUBLE)
    next_term = body.Div(body.Mul(term, x), body.Add(body.Add(a, k), 1))
    # The fraction is evaluated from its end.
    back = body.Sub(body.cast(steps, DOUBLE), k)
    upper = body.Mul(back, body.Sub(a, back))
    lower = body.Add(body.Sub(body.Add(x, body.Add(body.Mul(back, 2), 1)), a), fraction)
    graph = body.graph([going, body.Add(total, next_term), next_term, body.Div(upper, lower)], name="incomplete_gamma")
    one = op.Add(zero, 1)
    total_sum, _, rest = op.emit_many("Loop", 3, steps, op.constant(True), one, one, zero, body=graph)
    for value in (total_sum, rest):
        value.type, value.shape = ir.TensorType(DOUBLE), zero.shape
    return total_sum, op.Reciprocal(op.Add(op.Sub(op.Add(x, 1), a), rest))


def _incomplete_gamma(op: OpBuilder, a: ir.Value, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the regularized lower and upper incomplete gamma functions."""
    series, fraction = _incomplete_gamma_terms(op, a, x)
    scale = op.Exp(op.Sub(op.Sub(op.Mul(a, op.Log(x)), x), log_gamma(op, a)))
    lower, upper = op.Div(op.Mul(scale, series), a), op.Mul(scale, fraction)
    below = op.Less(x, op.Add(a, 1))
    lower, upper = op.Where(below, lower, op.Sub(1, upper)), op.Where(below, op.Sub(1, lower), upper)
    nothing = op.And(op.Equal(x, 0), op.Greater(a, 0))
    everything = op.Or(op.And(op.Equal(a, 0), op.Greater(x, 0)), op.IsInf(x))
    undefined = op.Or(op.Or(op.Less(a, 0), op.Less(x, 0)), op.And(op.Equal(a, 0), op.Equal(x, 0)))
    undefined = op.Or(undefined, op.And(op.IsInf(a), op.IsInf(x)))
    nothing = op.Or(nothing, op.IsInf(a))
    lower = op.Where(nothing, 0, op.Where(everything, 1, lower))
    upper = op.Where(nothing, 1, op.Where(everything, 0, upper))
    return op.Where(undefined, math.nan, lower), op.Where(undefined, math.nan, upper)


@lowering(aten.igamma.default)
@in_double(2)
def igamma(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    return _incomplete_gamma(op, self, other)[0]


@lowering(aten.igammac.default)
@in_double(2)
def igammac(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    return _incomplete_gamma(op, self, other)[1]
