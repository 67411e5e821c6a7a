"""Orthogonal polynomials, by the recurrence that defines each family (DLMF 18.9)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.formulas.tabulated import in_double
from onnxops_decomp.lowerings.registry import Function, lowering
from onnxops_decomp.spec.inference import dims_of

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

aten = torch.ops.aten

BOOL, DOUBLE, INT64 = ir.DataType.BOOL, ir.DataType.DOUBLE, ir.DataType.INT64

# (x, k, p(k), p(k - 1)) -> p(k + 1)
Recurrence = Callable[["OpBuilder", ir.Value, ir.Value, ir.Value, ir.Value], ir.Value]


def _chebyshev(op: OpBuilder, x: ir.Value, k: ir.Value, p: ir.Value, q: ir.Value) -> ir.Value:
    return op.Sub(op.Mul(op.Mul(x, 2), p), q)


def _hermite_h(op: OpBuilder, x: ir.Value, k: ir.Value, p: ir.Value, q: ir.Value) -> ir.Value:
    return op.Mul(op.Sub(op.Mul(x, p), op.Mul(k, q)), 2)


def _hermite_he(op: OpBuilder, x: ir.Value, k: ir.Value, p: ir.Value, q: ir.Value) -> ir.Value:
    return op.Sub(op.Mul(x, p), op.Mul(k, q))


def _laguerre(op: OpBuilder, x: ir.Value, k: ir.Value, p: ir.Value, q: ir.Value) -> ir.Value:
    middle = op.Mul(op.Sub(op.Add(op.Mul(k, 2), 1), x), p)
    return op.Div(op.Sub(middle, op.Mul(k, q)), op.Add(k, 1))


def _legendre(op: OpBuilder, x: ir.Value, k: ir.Value, p: ir.Value, q: ir.Value) -> ir.Value:
    middle = op.Mul(op.Mul(op.Add(op.Mul(k, 2), 1), x), p)
    return op.Div(op.Sub(middle, op.Mul(k, q)), op.Add(k, 1))


# For each family the recurrence, and p(1) as (a, b) of a + b x.
_FAMILIES: dict[str, tuple[Recurrence, float, float]] = {
    "chebyshev_polynomial_t": (_chebyshev, 0, 1),
    "chebyshev_polynomial_u": (_chebyshev, 0, 2),
    "chebyshev_polynomial_v": (_chebyshev, -1, 2),
    "chebyshev_polynomial_w": (_chebyshev, 1, 2),
    "hermite_polynomial_h": (_hermite_h, 0, 2),
    "hermite_polynomial_he": (_hermite_he, 0, 1),
    "laguerre_polynomial_l": (_laguerre, 1, -1),
    "legendre_polynomial_p": (_legendre, 0, 1),
}


def _evaluated(op: OpBuilder, x: ir.Value, degree: ir.Value, recurrence: Recurrence, a: float, b: float) -> ir.Value:
    """Return the polynomial of each element's own degree; 0 for a negative one."""
    zero = op.Mul(op.Mul(x, 0), op.Mul(degree, 0))
    zero = op.Where(op.IsNaN(zero), 0, zero)
    argument, wanted = op.Add(x, zero), op.Add(degree, zero)
    first = op.Add(op.Mul(argument, b), a)
    largest = op.ReduceMax(op.Where(op.IsNaN(wanted), 0, wanted), keepdims=0)
    # Of no elements the maximum is -inf, which is not a number of steps.
    steps = op.cast(op.Max(op.Sub(largest, 1), 0), INT64)
    body = op.subgraph()
    index, going = body.input("index", INT64, ()), body.input("going", BOOL, ())
    p, q, found = (body.input(name, DOUBLE, dims_of(zero)) for name in ("p", "q", "found"))
    k = body.Add(body.cast(index, DOUBLE), 1)
    following = recurrence(body, argument, k, p, q)
    kept = body.Where(body.Greater(wanted, k), following, found)
    graph = body.graph([going, following, p, kept], name="recurrence")
    one = op.Add(zero, 1)
    start = op.Where(op.GreaterOrEqual(wanted, 1), first, op.Where(op.GreaterOrEqual(wanted, 0), one, 0))
    outputs = op.emit_many("Loop", 3, steps, op.constant(True), first, one, start, body=graph)
    outputs[2].type, outputs[2].shape = ir.TensorType(DOUBLE), zero.shape
    return outputs[2]


def _static(op: OpBuilder, x: ir.Value, degree: int, recurrence: Recurrence, a: float, b: float) -> ir.Value:
    before, value = op.Add(op.Mul(x, 0), 1), op.Add(op.Mul(x, b), a)
    if degree <= 0:
        return before if degree == 0 else op.Mul(x, 0)
    for k in range(1, degree):
        before, value = value, recurrence(op, x, op.constant(float(k), DOUBLE), value, before)
    return value


_UNROLLED = 32


def _family(name: str, shifted: bool) -> Function:
    recurrence, a, b = _FAMILIES[name]

    @in_double(2)
    def polynomial(op: OpBuilder, x: ir.Value, n: ir.Value) -> ir.Value:
        if shifted:
            x = op.Sub(op.Mul(x, 2), 1)
        static = op.static(n)
        if static is not None and static.ndim == 0 and math.isfinite(static) and static <= _UNROLLED:
            return _static(op, x, int(static), recurrence, a, b)
        return _evaluated(op, x, op.cast(op.cast(n, INT64), DOUBLE), recurrence, a, b)

    return polynomial


for _name in _FAMILIES:
    for _overload in ("", ".x_scalar", ".n_scalar"):
        lowering(f"aten::special_{_name}{_overload}")(_family(_name, shifted=False))
        if _name.startswith("chebyshev"):
            lowering(f"aten::special_shifted_{_name}{_overload}")(_family(_name, shifted=True))
