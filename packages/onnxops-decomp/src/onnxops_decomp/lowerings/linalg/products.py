"""Products and functions of vectors and matrices that need no factorization."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.formulas.loops import repeat
from onnxops_decomp.lowerings.layout.joining import torch_broadcast_sizes
from onnxops_decomp.lowerings.layout.shapes import axis_in
from onnxops_decomp.lowerings.linalg.matrices import DOUBLE, INT64, Grid, identity_like, wide
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

aten = torch.ops.aten

# With the norm scaled to at most 1/2, the terms beyond this degree vanish beside 1 in DOUBLE: 0.5**16 / 16! < 1e-18.
_TAYLOR_DEGREE = 15


@lowering(aten.linalg_cross.default)
def linalg_cross(op: OpBuilder, self: ir.Value, other: ir.Value, *, dim: int = -1) -> ir.Value:
    sizes = torch_broadcast_sizes(op, [self, other])
    axis = axis_in(len(sizes), dim)
    a, b = op.expand(self, sizes), op.expand(other, sizes)
    # Component i is a[i+1] * b[i+2] - a[i+2] * b[i+1].
    first, second = op.constant([1, 2, 0]), op.constant([2, 0, 1])
    forward = op.Mul(op.Gather(a, first, axis=axis), op.Gather(b, second, axis=axis))
    return op.Sub(forward, op.Mul(op.Gather(a, second, axis=axis), op.Gather(b, first, axis=axis)))


@lowering(aten.linalg_matrix_exp.default, complex=None)
def linalg_matrix_exp(op: OpBuilder, self: ir.Value) -> ir.Value:
    """Scale the matrices down, sum the Taylor series by Horner's rule, and square the result back up.

    Source: Moler and Van Loan, Nineteen Dubious Ways to Compute the Exponential of a Matrix (2003), method 3.
    """
    matrix = wide(op, self)
    grid = Grid(op, matrix)
    if 0 in [size for size in grid.sizes if isinstance(size, int)]:
        return self
    norm = op.ReduceMax(op.ReduceSum(grid.magnitude(op, matrix), [grid.column_axis], keepdims=0), keepdims=0)
    doublings = op.Ceil(op.Div(op.Log(op.Max(norm, op.constant(0.5, DOUBLE))), op.Log(op.constant(2.0, DOUBLE))))
    squarings = op.cast(op.Add(doublings, 1.0), INT64)
    scaled = op.Div(matrix, op.Pow(op.constant(2.0, DOUBLE), op.cast(squarings, DOUBLE)))
    one = grid.of_real(op, identity_like(op, grid.batch, grid.m, grid.n))

    def term(body: OpBuilder, i: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        divisor = body.cast(body.Sub(_TAYLOR_DEGREE, i), DOUBLE)
        return [body.Add(one, body.Div(grid.matmul(body, scaled, state[0]), divisor))], []

    def square(body: OpBuilder, i: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        return [grid.matmul(body, state[0], state[0])], []

    (series,), _ = repeat(op, _TAYLOR_DEGREE, [one], term)
    (result,), _ = repeat(op, squarings, [series], square)
    return grid.narrow(op, result, self)
