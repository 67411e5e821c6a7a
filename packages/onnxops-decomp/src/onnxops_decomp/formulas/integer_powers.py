"""Powers of integers, which runtimes compute in floating point."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.formulas.loops import repeat

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["integer_power", "power_by_squaring"]

_INT64 = ir.DataType.INT64


def integer_power(op: OpBuilder, base: ir.Value, exponent: ir.Value) -> ir.Value:
    """Raise integers by repeated squaring; the product wraps, and a negative power is cut to an integer."""
    dtype = op.dtype(base)
    base, exponent = op.cast(base, _INT64), op.cast(exponent, _INT64)
    like = op.Mul(op.Add(base, exponent), 0)
    base, exponent = op.Add(base, like), op.Add(exponent, like)

    def step(body: OpBuilder, i: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        factor, rest, product = state
        odd = body.Equal(body.Mod(rest, 2), 1)
        product = body.Where(odd, body.Mul(product, factor), product)
        return [body.Mul(factor, factor), body.Div(rest, 2), product], []

    def is_over(body: OpBuilder, state: list[ir.Value]) -> ir.Value:
        left = body.cast(body.Greater(state[1], 0), _INT64)
        return body.Equal(body.ReduceSum(left, keepdims=0), 0)

    start = [base, op.Max(exponent, 0), op.Add(like, 1)]
    (_, _, product), _ = repeat(op, 63, start, step, unless=is_over)
    if dtype.name.startswith("U"):
        return op.cast(product, dtype)
    # Of negative powers, those of 1 and -1 alone are not cut to 0.
    of_one = op.Where(op.Equal(op.Mod(exponent, 2), 0), 1, base)
    cut = op.Where(op.Equal(op.Abs(base), 1), of_one, 0)
    return op.cast(op.Where(op.Less(exponent, 0), cut, product), dtype)


def power_by_squaring(op: OpBuilder, x: ir.Value, n: int) -> ir.Value:
    """Return x to the power n >= 1 by repeated squaring, which wraps like any product of integers."""
    result: ir.Value | None = None
    while n:
        if n & 1:
            result = x if result is None else op.Mul(result, x)
        n >>= 1
        if n:
            x = op.Mul(x, x)
    assert result is not None
    return result
