"""LU, Cholesky and QR factorizations, each a loop over the columns for the whole batch at once.

The loops compute in DOUBLE: ONNX has no compensation against rounding errors that add up, and the pivots then agree
with those of LAPACK wherever they are not a tie. The algorithms are the unblocked ones of LAPACK (getf2, potf2,
geqr2, org2r), whose conventions for signs and pivots torch documents as its own. Complex matrices take the same way.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.formulas.loops import repeat
from onnxops_decomp.lowerings.layout.slicing import take_slice
from onnxops_decomp.lowerings.linalg.matrices import (
    INT32,
    INT64,
    Grid,
    Numbers,
    first_true,
    identity_like,
    steps_last,
    swapped_rows,
    wide,
)
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

__all__ = [
    "Lu",
    "cholesky_factor",
    "exchange",
    "first_zero",
    "householder_qr",
    "lu_factor",
    "one_based",
    "product_of_reflectors",
    "row_order",
]

aten = torch.ops.aten


# ---- LU


@dataclasses.dataclass(frozen=True)
class Lu:
    """An LU factorization with partial pivoting of matrices of shape (..., m, n), k = min(m, n).

    Attributes:
        packed: U on and above the diagonal, L without its ones below, shape (..., m, n).
        order: Rows of the matrix in the order of the rows of L, INT64 (..., m).
        pivots: Row that each step exchanged its own with, 0-based INT64 (..., k).
        diagonal: Diagonal of U, (..., k).
    """

    packed: ir.Value
    order: ir.Value
    pivots: ir.Value
    diagonal: ir.Value


def exchange(op: OpBuilder, grid: Grid, matrix: ir.Value, column: ir.Value, j: ir.Value) -> tuple[ir.Value, ...]:
    """Swap row ``j`` with the row from ``j`` on where ``column`` (..., m) is largest.

    Returns:
        The new matrix, the order of its rows (..., m) and the row that was chosen (..., 1).
    """
    magnitude = op.Where(op.Less(grid.row_vector, j), -1.0, grid.magnitude(op, column))
    pivot = op.ArgMax(magnitude, axis=grid.rank - 2, keepdims=1)
    swap = swapped_rows(op, grid.row_vector, j, pivot)
    index = op.expand(grid.flagged(op, op.Unsqueeze(swap, [grid.rank - 1])), op.sizes(matrix))
    return op.GatherElements(matrix, index, axis=grid.row_axis), swap, pivot


def lu_factor(op: OpBuilder, matrix: ir.Value) -> Lu:
    """Factorize DOUBLE matrices."""
    grid = Grid(op, matrix)
    steps = op.size_min(grid.m, grid.n)

    def step(body: OpBuilder, j: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        a, order = state
        a, swap, pivot = exchange(body, grid, a, body.Gather(a, j, axis=grid.column_axis), j)
        order = body.GatherElements(order, swap, axis=grid.rank - 2)
        at = body.Unsqueeze(j, [0])
        row, column = body.Gather(a, at, axis=grid.row_axis), body.Gather(a, at, axis=grid.column_axis)
        diagonal = body.Gather(row, at, axis=grid.column_axis)
        below = body.Greater(grid.rows, j)
        # Below a pivot of zero the column is zero, too, and stays so.
        zero = grid.flagged(body, grid.is_zero(body, diagonal))
        factor = grid.div(body, column, body.Where(zero, grid.one(body), diagonal))
        factor = body.Where(below, factor, 0.0)
        rest = body.Sub(a, grid.mul(body, factor, body.Where(body.Greater(grid.columns, j), row, 0.0)))
        a = body.Where(body.And(below, body.Equal(grid.columns, j)), factor, rest)
        flat = body.Squeeze(diagonal, [grid.row_axis, grid.column_axis])
        return [a, order], [body.Squeeze(pivot, [grid.rank - 2]), flat]

    order = op.expand(grid.row_vector, [*grid.batch, grid.m])
    parts = [grid.batch, [*grid.batch, *grid.tail]]
    (packed, order), (pivots, diagonal) = repeat(op, steps, [matrix, order], step, parts=parts)
    diagonal = grid.marked(steps_last(op, diagonal, grid.rank - 2))
    return Lu(grid.marked(packed), order, steps_last(op, pivots), diagonal)


def row_order(op: OpBuilder, pivots: ir.Value, rows: Size) -> ir.Value:
    """Turn 0-based pivots (..., k) into the order of the rows (..., m)."""
    rank = op.rank(pivots)
    row_vector = op.Range(0, rows, 1)

    def step(body: OpBuilder, j: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        pivot = body.Gather(pivots, body.Unsqueeze(j, [0]), axis=rank - 1)
        return [body.GatherElements(state[0], swapped_rows(body, row_vector, j, pivot), axis=rank - 1)], []

    start = op.expand(row_vector, [*op.sizes(pivots)[:-1], rows])
    return repeat(op, op.size(pivots, -1), [start], step)[0][0]


def first_zero(op: OpBuilder, diagonal: ir.Value) -> ir.Value:
    """Return LAPACK's info: the 1-based position of the first zero of ``diagonal`` (..., k), 0 if there is none."""
    return first_true(op, Numbers(diagonal).is_zero(op, diagonal))


def one_based(op: OpBuilder, pivots: ir.Value) -> ir.Value:
    """Return pivots as LAPACK counts them."""
    return op.Add(op.cast(pivots, INT32), 1)


@lowering(aten.linalg_lu_factor_ex.default, complex=None)
def linalg_lu_factor_ex(
    op: OpBuilder, A: ir.Value, *, pivot: bool = True, check_errors: bool = False
) -> tuple[ir.Value, ...]:
    lu = lu_factor(op, wide(op, A))
    return Numbers(A).narrow(op, lu.packed, A), one_based(op, lu.pivots), first_zero(op, lu.diagonal)


@lowering(aten.linalg_lu.default, complex=None)
def linalg_lu(op: OpBuilder, A: ir.Value, *, pivot: bool = True) -> tuple[ir.Value, ...]:
    lu = lu_factor(op, wide(op, A))
    return tuple(Numbers(A).narrow(op, part, A) for part in _unpacked(op, lu.packed, lu.order))


def _unpacked(op: OpBuilder, packed: ir.Value, order: ir.Value) -> tuple[ir.Value, ...]:
    """Return P, L and U with ``A = P @ L @ U``."""
    grid = Grid(op, packed)
    small = op.size_min(grid.m, grid.n)
    ones = grid.of_real(op, op.cast(identity_like(op, [], grid.m, small), op.dtype(packed)))
    left = grid.marked(take_slice(op, packed, grid.column_axis, 0, small))
    lower = grid.marked(op.Add(grid.triangle(op, left, -1, upper=False), ones))
    upper = grid.triangle(op, grid.marked(take_slice(op, packed, grid.row_axis, 0, small)), 0, upper=True)
    rows = op.Unsqueeze(grid.row_vector, [1])
    permutation = op.Equal(rows, op.Unsqueeze(order, [grid.rank - 2]))
    return grid.of_real(op, op.cast(permutation, op.dtype(packed))), lower, upper


@lowering(aten.lu_unpack.default, complex=None)
def lu_unpack(
    op: OpBuilder, LU_data: ir.Value, LU_pivots: ir.Value, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[ir.Value, ...]:
    grid = Grid(op, LU_data)
    pivots = op.Sub(op.cast(LU_pivots, INT64), 1)
    found = _unpacked(op, LU_data, row_order(op, pivots, grid.m))
    nothing = grid.nothing(op, LU_data)
    wanted = (unpack_pivots, unpack_data, unpack_data)
    return tuple(part if keep else nothing for part, keep in zip(found, wanted, strict=True))


# ---- Cholesky


def cholesky_factor(op: OpBuilder, matrix: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Factorize Hermitian DOUBLE matrices of which the lower triangle counts.

    Returns:
        L with ``L @ L.mH`` equal to the matrix, and LAPACK's info.
    """
    grid = Grid(op, matrix)

    def step(body: OpBuilder, j: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        at = body.Unsqueeze(j, [0])
        column = body.Gather(state[0], at, axis=grid.column_axis)
        diagonal = grid.real(body, body.Gather(column, at, axis=grid.row_axis))
        root = grid.flagged(body, body.Sqrt(diagonal))
        column = body.Where(body.Less(grid.rows, j), 0.0, body.Div(column, root))
        rest = body.Sub(state[0], grid.matmul(body, column, grid.adjoint(body, column)))
        flat = body.Squeeze(column, [grid.column_axis])
        return [rest], [flat, body.Squeeze(diagonal, [grid.row_axis, grid.column_axis])]

    parts = [[*grid.batch, grid.n, *grid.tail], grid.batch]
    _, (columns, diagonal) = repeat(op, grid.n, [matrix], step, parts=parts)
    failed = op.Not(op.Greater(steps_last(op, diagonal), 0.0))
    return grid.marked(steps_last(op, columns, grid.rank - 1)), first_true(op, failed)


@lowering(aten.linalg_cholesky_ex.default, complex=None)
def linalg_cholesky_ex(
    op: OpBuilder, self: ir.Value, *, upper: bool = False, check_errors: bool = False
) -> tuple[ir.Value, ir.Value]:
    numbers = Numbers(self)
    factor, info = cholesky_factor(op, numbers.hermitian(op, wide(op, self), upper=upper))
    return numbers.narrow(op, numbers.adjoint(op, factor) if upper else factor, self), info


@lowering("aten::cholesky", complex=None)  # by name: torch 2.14 no longer has it, exported programs may
def cholesky(op: OpBuilder, self: ir.Value, upper: bool = False) -> ir.Value:
    return linalg_cholesky_ex(op, self, upper=upper)[0]


# ---- QR


def _reflection(
    op: OpBuilder, grid: Grid, matrix: ir.Value, j: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
    """Compute the reflector of column ``j`` as LAPACK's larfg does.

    Returns:
        v (..., m, 1) with v[j] = 1 and zeros above, tau (..., 1, 1), what the diagonal element becomes, which is
        real, and the column.
    """
    at = op.Unsqueeze(j, [0])
    column = op.Gather(matrix, at, axis=grid.column_axis)
    alpha = op.Gather(column, at, axis=grid.row_axis)
    real = grid.real(op, alpha)
    below = op.Where(op.Greater(grid.rows, j), column, 0.0)
    rest = op.ReduceSumSquare(below, [grid.row_axis, grid.rank][: 1 + len(grid.tail)], keepdims=1)
    rest = op.Squeeze(rest, [grid.rank]) if grid.complex else rest
    norm = op.Sqrt(op.Add(op.Mul(grid.length(op, alpha), grid.length(op, alpha)), rest))
    trivial = op.Equal(rest, 0.0)
    if grid.complex:
        trivial = op.And(trivial, op.Equal(op.Gather(alpha, 1, axis=grid.rank), 0.0))
    beta = op.Where(trivial, real, op.Where(op.Less(real, 0.0), norm, op.Neg(norm)))
    trivial, divisor = grid.flagged(op, trivial), grid.flagged(op, op.Where(trivial, 1.0, beta))
    beta = grid.of_real(op, beta)
    tau = op.Where(trivial, 0.0, op.Div(op.Sub(beta, alpha), divisor))
    scaled = grid.div(op, below, op.Where(trivial, grid.one(op), op.Sub(alpha, beta)))
    return op.Where(op.Equal(grid.rows, j), grid.one(op), scaled), tau, beta, column


def _reflected(op: OpBuilder, numbers: Numbers, v: ir.Value, tau: ir.Value, matrix: ir.Value) -> ir.Value:
    """Return ``(I - tau v v^H) @ matrix``."""
    explained = numbers.matmul(op, v, numbers.matmul(op, numbers.adjoint(op, v), matrix))
    return op.Sub(matrix, numbers.mul(op, tau, explained))


def householder_qr(op: OpBuilder, matrix: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return R with the reflectors packed below it (..., m, n), and tau (..., k)."""
    grid = Grid(op, matrix)

    def step(body: OpBuilder, j: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        v, tau, beta, column = _reflection(body, grid, state[0], j)
        reflected = _reflected(body, grid, v, grid.conj(body, tau), state[0])
        packed = body.Where(body.Greater(grid.rows, j), v, body.Where(body.Equal(grid.rows, j), beta, column))
        after = body.Where(body.Greater(grid.columns, j), reflected, state[0])
        after = body.Where(body.Equal(grid.columns, j), packed, after)
        return [after], [body.Squeeze(tau, [grid.row_axis, grid.column_axis])]

    parts = [[*grid.batch, *grid.tail]]
    (packed,), (tau,) = repeat(op, op.size_min(grid.m, grid.n), [matrix], step, parts=parts)
    return grid.marked(packed), grid.marked(steps_last(op, tau, grid.rank - 2))


def product_of_reflectors(op: OpBuilder, packed: ir.Value, tau: ir.Value, columns: Size) -> ir.Value:
    """Return the first ``columns`` columns of ``H_1 H_2 ... H_k`` (org2r), from reflectors below the diagonal."""
    grid = Grid(op, packed)
    count = op.size(tau, grid.rank - 2)
    last = op.size_sub(count, 1)
    factors = op.Unsqueeze(tau, [grid.rank - 1])

    def step(body: OpBuilder, i: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        j = body.Sub(last, i)
        at = body.Unsqueeze(j, [0])
        column = body.Where(body.Greater(grid.rows, j), body.Gather(packed, at, axis=grid.column_axis), 0.0)
        v = body.Where(body.Equal(grid.rows, j), grid.one(body), column)
        return [_reflected(body, grid, v, body.Gather(factors, at, axis=grid.rank - 2), state[0])], []

    start = grid.of_real(op, identity_like(op, grid.batch, grid.m, columns))
    return grid.marked(repeat(op, count, [start], step)[0][0])


@lowering(aten.geqrf.default, complex=None)
def geqrf(op: OpBuilder, self: ir.Value) -> tuple[ir.Value, ...]:
    return tuple(Numbers(self).narrow(op, part, self) for part in householder_qr(op, wide(op, self)))


@lowering(aten.linalg_qr.default, complex=None)
def linalg_qr(op: OpBuilder, A: ir.Value, mode: str = "reduced") -> tuple[ir.Value, ...]:
    grid = Grid(op, wide(op, A))
    packed, tau = householder_qr(op, wide(op, A))
    kept = grid.m if mode == "complete" else op.size_min(grid.m, grid.n)
    upper = grid.triangle(op, grid.marked(take_slice(op, packed, grid.row_axis, 0, kept)), 0, upper=True)
    if mode == "r":
        return grid.nothing(op, A), grid.narrow(op, upper, A)
    return grid.narrow(op, product_of_reflectors(op, packed, tau, kept), A), grid.narrow(op, upper, A)


@lowering(aten.linalg_householder_product.default, complex=None)
def linalg_householder_product(op: OpBuilder, input: ir.Value, tau: ir.Value) -> ir.Value:
    grid = Grid(op, input)
    return grid.narrow(op, product_of_reflectors(op, wide(op, input), wide(op, tau), grid.n), input)


@lowering(aten.ormqr.default, complex=None)
def ormqr(
    op: OpBuilder, self: ir.Value, input2: ir.Value, input3: ir.Value, left: bool = True, transpose: bool = False
) -> ir.Value:
    """Multiply ``input3`` by the whole unitary matrix that the reflectors ``self`` and ``input2`` stand for."""
    grid = Grid(op, self)
    q = product_of_reflectors(op, wide(op, self), wide(op, input2), grid.m)
    q = grid.adjoint(op, q) if transpose else q
    other = wide(op, input3)
    return grid.narrow(op, grid.matmul(op, q, other) if left else grid.matmul(op, other, q), self)
