"""Systems of linear equations, inverses and determinants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.formulas.loops import repeat
from onnxops_decomp.lowerings.layout.slicing import take_slice
from onnxops_decomp.lowerings.linalg.factorizations import exchange, first_zero, lu_factor, one_based, row_order
from onnxops_decomp.lowerings.linalg.matrices import (
    DOUBLE,
    INT64,
    Grid,
    Numbers,
    identity_like,
    same_batch,
    steps_last,
    wide,
)
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.spec.inference import dims_of, same_dim

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["gauss_jordan", "is_vector", "solve_triangular"]

aten = torch.ops.aten


def gauss_jordan(op: OpBuilder, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Solve ``a @ x = b`` for DOUBLE matrices of equal batch by elimination with partial pivoting.

    Returns:
        x and LAPACK's info. A singular matrix gives infinities or NaN, where torch raises an error.
    """
    n = Grid(op, a).n
    both = Numbers(a).marked(op.Concat(a, b, axis=Numbers(a).rank_of(op, a) - 1))
    grid = Grid(op, both)

    def step(body: OpBuilder, j: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        m, _, _ = exchange(body, grid, state[0], body.Gather(state[0], j, axis=grid.column_axis), j)
        at = body.Unsqueeze(j, [0])
        row, column = body.Gather(m, at, axis=grid.row_axis), body.Gather(m, at, axis=grid.column_axis)
        diagonal = body.Gather(row, at, axis=grid.column_axis)
        row = grid.div(body, row, diagonal)
        after = body.Where(body.Equal(grid.rows, j), row, body.Sub(m, grid.mul(body, column, row)))
        return [after], [body.Squeeze(diagonal, [grid.row_axis, grid.column_axis])]

    (solved,), (diagonal,) = repeat(op, n, [both], step, parts=[[*grid.batch, *grid.tail]])
    diagonal = grid.marked(steps_last(op, diagonal, grid.rank - 2))
    return grid.marked(take_slice(op, solved, grid.column_axis, n, None)), first_zero(op, diagonal)


@lowering(aten.linalg_inv_ex.default, complex=None)
def linalg_inv_ex(op: OpBuilder, A: ir.Value, *, check_errors: bool = False) -> tuple[ir.Value, ir.Value]:
    grid = Grid(op, A)
    inverse, info = gauss_jordan(op, wide(op, A), grid.of_real(op, identity_like(op, grid.batch, grid.m, grid.n)))
    return grid.narrow(op, inverse, A), info


def is_vector(op: OpBuilder, a: ir.Value, b: ir.Value) -> bool:
    """Tell whether ``b`` is a batch of vectors, by torch's rule."""
    rank_a, rank_b = Numbers(a).rank_of(op, a), Numbers(b).rank_of(op, b)
    if rank_b == 1:
        return True
    return rank_a - 1 == rank_b and (dims_of(b) or ())[:rank_b] == (dims_of(a) or ())[:rank_b]


@lowering(aten._linalg_solve_ex.default, complex=None)
def linalg_solve_ex(
    op: OpBuilder, A: ir.Value, B: ir.Value, *, left: bool = True, check_errors: bool = False
) -> tuple[ir.Value, ...]:
    grid, vector = Grid(op, A), is_vector(op, A, B)
    a, b = wide(op, A), wide(op, B)
    b = grid.marked(op.Unsqueeze(b, [grid.rank_of(op, b)])) if vector else b
    if not left:
        a, b = grid.transposed(op, a), grid.transposed(op, b)
    x, info = gauss_jordan(op, *same_batch(op, a, b))
    x = x if left else grid.transposed(op, x)
    x = op.Squeeze(x, [grid.rank_of(op, x) - 1]) if vector else x
    lu = lu_factor(op, wide(op, A))
    alone = len(dims_of(info) or ()) == len(grid.batch) and all(map(same_dim, dims_of(info) or (), dims_of(A) or ()))
    info = info if alone else first_zero(op, lu.diagonal)
    return grid.narrow(op, x, A), grid.narrow(op, lu.packed, A), one_based(op, lu.pivots), info


# ---- determinants


def _sign_of_exchanges(op: OpBuilder, pivots: ir.Value) -> ir.Value:
    """Return -1.0 where an odd number of rows was exchanged, else 1.0."""
    moved = op.Not(op.Equal(pivots, op.Range(0, op.size(pivots, -1), 1)))
    count = op.ReduceSum(op.cast(moved, INT64), [op.rank(pivots) - 1], keepdims=0)
    return op.Sub(1.0, op.Mul(op.cast(op.Mod(count, 2), DOUBLE), 2.0))


@lowering(aten._linalg_det.default, complex=None)
def linalg_det(op: OpBuilder, A: ir.Value) -> tuple[ir.Value, ...]:
    numbers, lu = Numbers(A), lu_factor(op, wide(op, A))
    result = numbers.scaled(op, numbers.prod(op, lu.diagonal), _sign_of_exchanges(op, lu.pivots))
    return numbers.narrow(op, result, A), numbers.narrow(op, lu.packed, A), one_based(op, lu.pivots)


@lowering(aten._linalg_slogdet.default, complex=None)
def linalg_slogdet(op: OpBuilder, A: ir.Value) -> tuple[ir.Value, ...]:
    grid, lu = Grid(op, A), lu_factor(op, wide(op, A))
    sign = grid.prod(op, grid.unit(op, lu.diagonal))
    sign = grid.scaled(op, sign, _sign_of_exchanges(op, lu.pivots))
    size = op.ReduceSum(op.Log(grid.length(op, lu.diagonal)), [grid.rank - 2], keepdims=0)
    packed = grid.narrow(op, lu.packed, A)
    return grid.narrow(op, sign, A), op.cast(size, op.dtype(A)), packed, one_based(op, lu.pivots)


# ---- triangular systems


def solve_triangular(op: OpBuilder, a: ir.Value, b: ir.Value, *, upper: bool, unit: bool = False) -> ir.Value:
    """Solve ``a @ x = b`` for DOUBLE matrices of equal batch, of which one triangle of ``a`` counts."""
    grid = Grid(op, b)
    a = grid.triangle(op, a, 0, upper=upper)
    last = op.size_sub(grid.m, 1)

    def step(body: OpBuilder, i: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        j = body.Sub(last, i) if upper else i
        at = body.Unsqueeze(j, [0])
        # Rows that are not solved yet are zero in x, so only the solved ones enter the product.
        row = body.Gather(a, at, axis=grid.row_axis)
        found = body.Sub(body.Gather(b, at, axis=grid.row_axis), grid.matmul(body, row, state[0]))
        if not unit:
            found = grid.div(body, found, body.Gather(row, at, axis=grid.column_axis))
        return [body.Where(body.Equal(grid.rows, j), found, state[0])], []

    start = op.expand(op.constant(0.0, DOUBLE), grid.sizes)
    return grid.marked(repeat(op, grid.m, [start], step)[0][0])


@lowering(aten.linalg_solve_triangular.default, complex=None)
def linalg_solve_triangular(
    op: OpBuilder, self: ir.Value, B: ir.Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> ir.Value:
    numbers, a, b = Numbers(self), wide(op, self), wide(op, B)
    if not left:
        a, b, upper = numbers.transposed(op, a), numbers.transposed(op, b), not upper
    x = solve_triangular(op, *same_batch(op, a, b), upper=upper, unit=unitriangular)
    return numbers.narrow(op, x if left else numbers.transposed(op, x), self)


@lowering(aten.triangular_solve.default, complex=None)
def triangular_solve(
    op: OpBuilder,
    self: ir.Value,
    A: ir.Value,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[ir.Value, ir.Value]:
    numbers = Numbers(A)
    a, b = same_batch(op, wide(op, A), wide(op, self))
    coefficients = numbers.narrow(op, a, A)
    a, upper = (numbers.transposed(op, a), not upper) if transpose else (a, upper)
    return numbers.narrow(op, solve_triangular(op, a, b, upper=upper, unit=unitriangular), self), coefficients


def _solve_by_cholesky(op: OpBuilder, b: ir.Value, factor: ir.Value, upper: bool) -> ir.Value:
    numbers = Numbers(factor)
    lower = numbers.adjoint(op, factor) if upper else factor
    half = solve_triangular(op, lower, b, upper=False)
    return solve_triangular(op, numbers.adjoint(op, lower), half, upper=True)


@lowering(aten.cholesky_solve.default, complex=None)
def cholesky_solve(op: OpBuilder, self: ir.Value, input2: ir.Value, upper: bool = False) -> ir.Value:
    factor, b = same_batch(op, wide(op, input2), wide(op, self))
    return Numbers(self).narrow(op, _solve_by_cholesky(op, b, factor, upper), self)


@lowering(aten.cholesky_inverse.default, complex=None)
def cholesky_inverse(op: OpBuilder, self: ir.Value, upper: bool = False) -> ir.Value:
    grid = Grid(op, self)
    ones = grid.of_real(op, identity_like(op, grid.batch, grid.m, grid.n))
    return grid.narrow(op, _solve_by_cholesky(op, ones, wide(op, self), upper), self)


@lowering(aten.linalg_lu_solve.default, complex=None)
def linalg_lu_solve(
    op: OpBuilder, LU: ir.Value, pivots: ir.Value, B: ir.Value, *, left: bool = True, adjoint: bool = False
) -> ir.Value:
    """Solve with ``P @ L @ U``, or with its adjoint: ``X A = B`` is ``A^T X^T = B^T``."""
    numbers = Numbers(LU)
    order = row_order(op, op.Sub(op.cast(pivots, INT64), 1), Grid(op, LU).m)
    transposed = adjoint if left else not adjoint
    b = wide(op, B) if left else numbers.transposed(op, wide(op, B))
    lu, b = same_batch(op, wide(op, LU), b)
    lu = numbers.conj(op, lu) if adjoint else lu
    order = op.expand(numbers.flagged(op, op.Unsqueeze(order, [op.rank(order)])), op.sizes(b))
    row_axis = numbers.rank_of(op, b) - 2
    if transposed:
        flipped = numbers.transposed(op, lu)
        half = solve_triangular(op, flipped, b, upper=False)
        x = solve_triangular(op, flipped, half, upper=True, unit=True)
        # The permutation is undone by writing each row to its place.
        x = op.ScatterElements(x, order, x, axis=row_axis)
    else:
        x = numbers.marked(op.GatherElements(b, order, axis=row_axis))
        x = solve_triangular(op, lu, x, upper=False, unit=True)
        x = solve_triangular(op, lu, x, upper=True)
    return numbers.narrow(op, x if left else numbers.transposed(op, x), LU)
