"""Systems of linear equations, inverses and determinants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.inference import dims_of
from onnxops_decomp.lowerings.joining import broadcast_sizes
from onnxops_decomp.lowerings.linalg_factorizations import (
    DOUBLE,
    INT32,
    INT64,
    Grid,
    exchange,
    first_zero,
    identity_like,
    lu_factor,
    row_order,
    wide,
)
from onnxops_decomp.lowerings.loops import repeat
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.lowerings.shapes import matrix_transpose
from onnxops_decomp.lowerings.slicing import take_slice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnxops_decomp.builder import OpBuilder
    from onnxops_decomp.sizes import Size

__all__ = ["gauss_jordan", "is_vector", "same_batch", "sign_of_exchanges", "solve_triangular"]

aten = torch.ops.aten


def _batch_of(op: OpBuilder, a: ir.Value, b: ir.Value) -> list[Size]:
    """Return the batch sizes that two stacks of matrices broadcast to."""
    matrices = [value for value in (a, b) if op.rank(value) > 2]
    if not matrices:
        return []
    sizes = [op.sizes(value)[:-2] for value in matrices]
    if len(sizes) == 1:
        return sizes[0]
    flat = [op.Gather(op.Gather(value, 0, axis=op.rank(value) - 1), 0, axis=op.rank(value) - 2) for value in matrices]
    return broadcast_sizes(op, flat)


def same_batch(op: OpBuilder, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    batch = _batch_of(op, a, b)
    return op.expand(a, [*batch, *op.sizes(a)[-2:]]), op.expand(b, [*batch, *op.sizes(b)[-2:]])


def gauss_jordan(op: OpBuilder, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Solve ``a @ x = b`` for DOUBLE matrices of equal batch by elimination with partial pivoting.

    Returns:
        x and LAPACK's info. A singular matrix gives infinities or NaN, where torch raises an error.
    """
    rank = op.rank(a)
    n = op.size(a, -1)
    both = op.Concat(a, b, axis=rank - 1)
    grid = Grid(op, both)

    def step(body: OpBuilder, j: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        m, _, _ = exchange(body, grid, state[0], body.Gather(state[0], j, axis=grid.column_axis), j)
        at = body.Unsqueeze(j, [0])
        row, column = body.Gather(m, at, axis=grid.row_axis), body.Gather(m, at, axis=grid.column_axis)
        diagonal = body.Gather(row, at, axis=grid.column_axis)
        row = body.Div(row, diagonal)
        after = body.Where(body.Equal(grid.rows, j), row, body.Sub(m, body.Mul(column, row)))
        return [after], [body.Squeeze(diagonal, [grid.row_axis, grid.column_axis])]

    (solved,), (diagonal,) = repeat(op, n, [both], step)
    last = op.Transpose(diagonal, perm=[*range(1, op.rank(diagonal)), 0])
    return take_slice(op, solved, rank - 1, n, None), first_zero(op, last)


@lowering(aten.linalg_inv_ex.default)
def linalg_inv_ex(op: OpBuilder, A: ir.Value, *, check_errors: bool = False) -> tuple[ir.Value, ir.Value]:
    sizes = op.sizes(A)
    inverse, info = gauss_jordan(op, wide(op, A), identity_like(op, sizes[:-2], sizes[-2], sizes[-1]))
    return op.cast(inverse, op.dtype(A)), info


def is_vector(op: OpBuilder, a: ir.Value, b: ir.Value) -> bool:
    """Tell whether ``b`` is a batch of vectors, by torch's rule."""
    if op.rank(b) == 1:
        return True
    return op.rank(a) - 1 == op.rank(b) and dims_of(b) == (dims_of(a) or ())[:-1]


@lowering(aten._linalg_solve_ex.default)
def linalg_solve_ex(
    op: OpBuilder, A: ir.Value, B: ir.Value, *, left: bool = True, check_errors: bool = False
) -> tuple[ir.Value, ...]:
    vector = is_vector(op, A, B)
    a, b = wide(op, A), wide(op, B)
    b = op.Unsqueeze(b, [op.rank(b)]) if vector else b
    if not left:
        a, b = matrix_transpose(op, a), matrix_transpose(op, b)
    x, info = gauss_jordan(op, *same_batch(op, a, b))
    x = x if left else matrix_transpose(op, x)
    x = op.Squeeze(x, [op.rank(x) - 1]) if vector else x
    lu = lu_factor(op, wide(op, A))
    packed, pivots = op.cast(lu.packed, op.dtype(A)), op.Add(op.cast(lu.pivots, INT32), 1)
    info = first_zero(op, lu.diagonal) if op.rank(info) != op.rank(A) - 2 else info
    return op.cast(x, op.dtype(A)), packed, pivots, info


# ---- determinants


def sign_of_exchanges(op: OpBuilder, pivots: ir.Value) -> ir.Value:
    """Return -1.0 where an odd number of rows was exchanged, else 1.0."""
    moved = op.Not(op.Equal(pivots, op.Range(0, op.size(pivots, -1), 1)))
    count = op.ReduceSum(op.cast(moved, INT64), [op.rank(pivots) - 1], keepdims=0)
    return op.Sub(1.0, op.Mul(op.cast(op.Mod(count, 2), DOUBLE), 2.0))


@lowering(aten._linalg_det.default)
def linalg_det(op: OpBuilder, A: ir.Value) -> tuple[ir.Value, ...]:
    lu = lu_factor(op, wide(op, A))
    axis = op.rank(A) - 2
    result = op.Mul(op.ReduceProd(lu.diagonal, [axis], keepdims=0), sign_of_exchanges(op, lu.pivots))
    return op.cast(result, op.dtype(A)), op.cast(lu.packed, op.dtype(A)), op.Add(op.cast(lu.pivots, INT32), 1)


@lowering(aten._linalg_slogdet.default)
def linalg_slogdet(op: OpBuilder, A: ir.Value) -> tuple[ir.Value, ...]:
    lu = lu_factor(op, wide(op, A))
    axis = op.rank(A) - 2
    sign = op.Mul(op.ReduceProd(op.Sign(lu.diagonal), [axis], keepdims=0), sign_of_exchanges(op, lu.pivots))
    size = op.ReduceSum(op.Log(op.Abs(lu.diagonal)), [axis], keepdims=0)
    parts = (op.cast(part, op.dtype(A)) for part in (sign, size, lu.packed))
    return *parts, op.Add(op.cast(lu.pivots, INT32), 1)


# ---- triangular systems


def solve_triangular(op: OpBuilder, a: ir.Value, b: ir.Value, *, upper: bool, unit: bool = False) -> ir.Value:
    """Solve ``a @ x = b`` for DOUBLE matrices of equal batch, of which one triangle of ``a`` counts."""
    grid = Grid(op, b)
    a = op.Trilu(a, upper=1 if upper else 0)
    last = op.size_sub(grid.m, 1)

    def step(body: OpBuilder, i: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        j = body.Sub(last, i) if upper else i
        at = body.Unsqueeze(j, [0])
        # Rows that are not solved yet are zero in x, so only the solved ones enter the product.
        row = body.Gather(a, at, axis=grid.row_axis)
        found = body.Sub(body.Gather(b, at, axis=grid.row_axis), body.MatMul(row, state[0]))
        if not unit:
            found = body.Div(found, body.Gather(row, at, axis=grid.column_axis))
        return [body.Where(body.Equal(grid.rows, j), found, state[0])], []

    start = op.expand(op.constant(0.0, DOUBLE), grid.sizes)
    return repeat(op, grid.m, [start], step)[0][0]


@lowering(aten.linalg_solve_triangular.default)
def linalg_solve_triangular(
    op: OpBuilder, self: ir.Value, B: ir.Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> ir.Value:
    a, b = wide(op, self), wide(op, B)
    if not left:
        a, b, upper = matrix_transpose(op, a), matrix_transpose(op, b), not upper
    x = solve_triangular(op, *same_batch(op, a, b), upper=upper, unit=unitriangular)
    return op.cast(x if left else matrix_transpose(op, x), op.dtype(self))


@lowering(aten.triangular_solve.default)
def triangular_solve(
    op: OpBuilder,
    self: ir.Value,
    A: ir.Value,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[ir.Value, ir.Value]:
    a, b = same_batch(op, wide(op, A), wide(op, self))
    coefficients = op.cast(a, op.dtype(A))
    a, upper = (matrix_transpose(op, a), not upper) if transpose else (a, upper)
    return op.cast(solve_triangular(op, a, b, upper=upper, unit=unitriangular), op.dtype(self)), coefficients


def _solve_by_cholesky(op: OpBuilder, b: ir.Value, factor: ir.Value, upper: bool) -> ir.Value:
    lower = matrix_transpose(op, factor) if upper else factor
    half = solve_triangular(op, lower, b, upper=False)
    return solve_triangular(op, matrix_transpose(op, lower), half, upper=True)


@lowering(aten.cholesky_solve.default)
def cholesky_solve(op: OpBuilder, self: ir.Value, input2: ir.Value, upper: bool = False) -> ir.Value:
    factor, b = same_batch(op, wide(op, input2), wide(op, self))
    return op.cast(_solve_by_cholesky(op, b, factor, upper), op.dtype(self))


@lowering(aten.cholesky_inverse.default)
def cholesky_inverse(op: OpBuilder, self: ir.Value, upper: bool = False) -> ir.Value:
    sizes = op.sizes(self)
    ones = identity_like(op, sizes[:-2], sizes[-2], sizes[-1])
    return op.cast(_solve_by_cholesky(op, ones, wide(op, self), upper), op.dtype(self))


@lowering(aten.linalg_lu_solve.default)
def linalg_lu_solve(
    op: OpBuilder, LU: ir.Value, pivots: ir.Value, B: ir.Value, *, left: bool = True, adjoint: bool = False
) -> ir.Value:
    """Solve with ``P @ L @ U``, or with its transpose: ``X A = B`` is ``A^T X^T = B^T``."""
    order = row_order(op, op.Sub(op.cast(pivots, INT64), 1), op.size(LU, -2))
    transposed = adjoint if left else not adjoint
    b = wide(op, B) if left else matrix_transpose(op, wide(op, B))
    lu, b = same_batch(op, wide(op, LU), b)
    order = _spread_order(op, order, op.sizes(b))
    if transposed:
        upper, lower = matrix_transpose(op, lu), matrix_transpose(op, lu)
        half = solve_triangular(op, upper, b, upper=False)
        x = solve_triangular(op, lower, half, upper=True, unit=True)
        # The permutation is undone by writing each row to its place.
        x = op.ScatterElements(x, order, x, axis=op.rank(x) - 2)
    else:
        x = op.GatherElements(b, order, axis=op.rank(b) - 2)
        x = solve_triangular(op, lu, x, upper=False, unit=True)
        x = solve_triangular(op, lu, x, upper=True)
    return op.cast(x if left else matrix_transpose(op, x), op.dtype(LU))


def _spread_order(op: OpBuilder, order: ir.Value, sizes: Sequence[Size]) -> ir.Value:
    return op.expand(op.Unsqueeze(order, [op.rank(order)]), sizes)
