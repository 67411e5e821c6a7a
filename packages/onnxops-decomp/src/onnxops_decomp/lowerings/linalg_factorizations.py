"""LU, Cholesky and QR factorizations, each a loop over the columns for the whole batch at once.

The loops compute in DOUBLE: ONNX has no compensation against rounding errors that add up, and the pivots then agree
with those of LAPACK wherever they are not a tie. The algorithms are the unblocked ones of LAPACK (getf2, potf2,
geqr2, org2r), whose conventions for signs and pivots torch documents as its own.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.lowerings.loops import repeat
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.lowerings.shapes import swap_axes
from onnxops_decomp.lowerings.slicing import take_slice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnxops_decomp.builder import OpBuilder
    from onnxops_decomp.sizes import Size

__all__ = [
    "Grid",
    "Lu",
    "cholesky_factor",
    "first_true",
    "householder_qr",
    "identity_like",
    "lu_factor",
    "row_order",
    "steps_last",
    "swapped_rows",
    "wide",
]

aten = torch.ops.aten

DOUBLE, INT32, INT64 = ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64


def wide(op: OpBuilder, value: ir.Value) -> ir.Value:
    """Return ``value`` in the precision that the loops compute in."""
    return op.cast(value, DOUBLE)


class Grid:
    """Positions in the matrices of a batch of shape (\\*, m, n), as ranges that broadcast against it."""

    def __init__(self, op: OpBuilder, matrix: ir.Value) -> None:
        self.rank = op.rank(matrix)
        self.sizes: list[Size] = op.sizes(matrix)
        self.batch: list[Size] = self.sizes[:-2]
        self.m, self.n = self.sizes[-2], self.sizes[-1]
        self.row_vector = op.Range(0, self.m, 1)
        self.rows = op.Unsqueeze(self.row_vector, [1])
        self.columns = op.Range(0, self.n, 1)
        self.row_axis, self.column_axis = self.rank - 2, self.rank - 1


def identity_like(op: OpBuilder, batch: Sequence[Size], m: Size, n: Size) -> ir.Value:
    """Return a batch of (m, n) DOUBLE matrices with ones on the diagonal."""
    rows, columns = op.Unsqueeze(op.Range(0, m, 1), [1]), op.Unsqueeze(op.Range(0, n, 1), [0])
    return op.expand(op.cast(op.Equal(rows, columns), DOUBLE), [*batch, m, n])


# ---- LU


@dataclasses.dataclass(frozen=True)
class Lu:
    """An LU factorization with partial pivoting of matrices of shape (\\*, m, n), k = min(m, n).

    Attributes:
        packed: U on and above the diagonal, L without its ones below, shape (\\*, m, n).
        order: Rows of the matrix in the order of the rows of L, INT64 (\\*, m).
        pivots: Row that each step exchanged its own with, 0-based INT64 (\\*, k).
        diagonal: Diagonal of U, (\\*, k).
    """

    packed: ir.Value
    order: ir.Value
    pivots: ir.Value
    diagonal: ir.Value


def exchange(op: OpBuilder, grid: Grid, matrix: ir.Value, column: ir.Value, j: ir.Value) -> tuple[ir.Value, ...]:
    """Swap row ``j`` with the row from ``j`` on where ``column`` (\\*, m) is largest.

    Returns:
        The new matrix, the order of its rows (\\*, m) and the row that was chosen (\\*, 1).
    """
    magnitude = op.Where(op.Less(grid.row_vector, j), -1.0, op.Abs(column))
    pivot = op.ArgMax(magnitude, axis=grid.rank - 2, keepdims=1)
    swap = swapped_rows(op, grid.row_vector, j, pivot)
    index = op.expand(op.Unsqueeze(swap, [grid.rank - 1]), op.sizes(matrix))
    return op.GatherElements(matrix, index, axis=grid.row_axis), swap, pivot


def swapped_rows(op: OpBuilder, rows: ir.Value, j: ir.Value, pivot: ir.Value) -> ir.Value:
    """Return the row numbers with ``j`` and ``pivot`` (\\*, 1) exchanged."""
    return op.Where(op.Equal(rows, j), pivot, op.Where(op.Equal(rows, pivot), j, rows))


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
        factor = body.Div(column, body.Where(body.Equal(diagonal, 0.0), 1.0, diagonal))
        factor = body.Where(below, factor, 0.0)
        rest = body.Sub(a, body.Mul(factor, body.Where(body.Greater(grid.columns, j), row, 0.0)))
        a = body.Where(body.And(below, body.Equal(grid.columns, j)), factor, rest)
        flat = body.Squeeze(diagonal, [grid.row_axis, grid.column_axis])
        return [a, order], [body.Squeeze(pivot, [grid.rank - 2]), flat]

    order = op.expand(grid.row_vector, [*grid.batch, grid.m])
    (packed, order), (pivots, diagonal) = repeat(op, steps, [matrix, order], step)
    return Lu(packed, order, steps_last(op, pivots), steps_last(op, diagonal))


def steps_last(op: OpBuilder, stacked: ir.Value) -> ir.Value:
    """Move the axis of the iterations to the end."""
    return op.Transpose(stacked, perm=[*range(1, op.rank(stacked)), 0])


def row_order(op: OpBuilder, pivots: ir.Value, rows: Size) -> ir.Value:
    """Turn 0-based pivots (\\*, k) into the order of the rows (\\*, m)."""
    rank = op.rank(pivots)
    row_vector = op.Range(0, rows, 1)

    def step(body: OpBuilder, j: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        pivot = body.Gather(pivots, body.Unsqueeze(j, [0]), axis=rank - 1)
        return [body.GatherElements(state[0], swapped_rows(body, row_vector, j, pivot), axis=rank - 1)], []

    start = op.expand(row_vector, [*op.sizes(pivots)[:-1], rows])
    return repeat(op, op.size(pivots, -1), [start], step)[0][0]


def first_zero(op: OpBuilder, diagonal: ir.Value) -> ir.Value:
    """Return LAPACK's info: the 1-based position of the first zero of ``diagonal`` (\\*, k), 0 if there is none."""
    return first_true(op, op.Equal(diagonal, 0.0))


def first_true(op: OpBuilder, flags: ir.Value) -> ir.Value:
    axis = op.rank(flags) - 1
    if op.size(flags, axis) == 0:
        return op.expand(op.constant(0, INT32), op.sizes(flags)[:-1])
    found = op.cast(flags, INT32)
    position = op.Add(op.cast(op.ArgMax(found, axis=axis, keepdims=0), INT32), 1)
    return op.Mul(position, op.ReduceMax(found, [axis], keepdims=0))


@lowering(aten.linalg_lu_factor_ex.default)
def linalg_lu_factor_ex(
    op: OpBuilder, A: ir.Value, *, pivot: bool = True, check_errors: bool = False
) -> tuple[ir.Value, ...]:
    lu = lu_factor(op, wide(op, A))
    pivots = op.Add(op.cast(lu.pivots, INT32), 1)
    return op.cast(lu.packed, op.dtype(A)), pivots, first_zero(op, lu.diagonal)


@lowering(aten.linalg_lu.default)
def linalg_lu(op: OpBuilder, A: ir.Value, *, pivot: bool = True) -> tuple[ir.Value, ...]:
    lu = lu_factor(op, wide(op, A))
    return tuple(op.cast(part, op.dtype(A)) for part in _unpacked(op, lu.packed, lu.order))


def _unpacked(op: OpBuilder, packed: ir.Value, order: ir.Value) -> tuple[ir.Value, ...]:
    """Return P, L and U with ``A = P @ L @ U``."""
    rank = op.rank(packed)
    m, n = op.size(packed, -2), op.size(packed, -1)
    small = op.size_min(m, n)
    ones = identity_like(op, [], m, small)
    lower = op.Add(op.Trilu(take_slice(op, packed, rank - 1, 0, small), -1, upper=0), op.cast(ones, op.dtype(packed)))
    upper = op.Trilu(take_slice(op, packed, rank - 2, 0, small), upper=1)
    rows = op.Unsqueeze(op.Range(0, m, 1), [1])
    permutation = op.Equal(rows, op.Unsqueeze(order, [rank - 2]))
    return op.cast(permutation, op.dtype(packed)), lower, upper


@lowering(aten.lu_unpack.default)
def lu_unpack(
    op: OpBuilder, LU_data: ir.Value, LU_pivots: ir.Value, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[ir.Value, ...]:
    pivots = op.Sub(op.cast(LU_pivots, INT64), 1)
    parts = _unpacked(op, LU_data, row_order(op, pivots, op.size(LU_data, -2)))
    nothing = op.constant([], op.dtype(LU_data))
    wanted = (unpack_pivots, unpack_data, unpack_data)
    return tuple(part if keep else nothing for part, keep in zip(parts, wanted, strict=True))


# ---- Cholesky


def cholesky_factor(op: OpBuilder, matrix: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Factorize symmetric DOUBLE matrices of which the lower triangle counts.

    Returns:
        L with ``L @ L.mT`` equal to the matrix, and LAPACK's info.
    """
    grid = Grid(op, matrix)

    def step(body: OpBuilder, j: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        at = body.Unsqueeze(j, [0])
        column = body.Gather(state[0], at, axis=grid.column_axis)
        diagonal = body.Gather(column, at, axis=grid.row_axis)
        column = body.Where(body.Less(grid.rows, j), 0.0, body.Div(column, body.Sqrt(diagonal)))
        rest = body.Sub(state[0], body.MatMul(column, swap_axes(body, column, -2, -1)))
        flat = body.Squeeze(column, [grid.column_axis])
        return [rest], [flat, body.Squeeze(diagonal, [grid.row_axis, grid.column_axis])]

    _, (columns, diagonal) = repeat(op, grid.n, [matrix], step)
    failed = op.Not(op.Greater(steps_last(op, diagonal), 0.0))
    return steps_last(op, columns), first_true(op, failed)


@lowering(aten.linalg_cholesky_ex.default)
def linalg_cholesky_ex(
    op: OpBuilder, self: ir.Value, *, upper: bool = False, check_errors: bool = False
) -> tuple[ir.Value, ir.Value]:
    matrix = wide(op, self)
    factor, info = cholesky_factor(op, swap_axes(op, matrix, -2, -1) if upper else matrix)
    return op.cast(swap_axes(op, factor, -2, -1) if upper else factor, op.dtype(self)), info


@lowering("aten::cholesky")  # by name: torch 2.14 no longer has it, exported programs may
def cholesky(op: OpBuilder, self: ir.Value, upper: bool = False) -> ir.Value:
    return linalg_cholesky_ex(op, self, upper=upper)[0]


# ---- QR


def _reflection(
    op: OpBuilder, grid: Grid, matrix: ir.Value, j: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
    """Compute the reflector of column ``j`` as LAPACK's larfg does.

    Returns:
        v (\\*, m, 1) with v[j] = 1 and zeros above, tau (\\*, 1, 1), what the diagonal element becomes, and the column.
    """
    at = op.Unsqueeze(j, [0])
    column = op.Gather(matrix, at, axis=grid.column_axis)
    alpha = op.Gather(column, at, axis=grid.row_axis)
    below = op.Where(op.Greater(grid.rows, j), column, 0.0)
    rest = op.ReduceSumSquare(below, [grid.row_axis], keepdims=1)
    norm = op.Sqrt(op.Add(op.Mul(alpha, alpha), rest))
    trivial = op.Equal(rest, 0.0)
    beta = op.Where(trivial, alpha, op.Where(op.Less(alpha, 0.0), norm, op.Neg(norm)))
    tau = op.Where(trivial, 0.0, op.Div(op.Sub(beta, alpha), op.Where(trivial, 1.0, beta)))
    scaled = op.Div(below, op.Where(trivial, 1.0, op.Sub(alpha, beta)))
    return op.Where(op.Equal(grid.rows, j), 1.0, scaled), tau, beta, column


def _reflected(op: OpBuilder, v: ir.Value, tau: ir.Value, matrix: ir.Value) -> ir.Value:
    """Return ``(I - tau v v^T) @ matrix``."""
    return op.Sub(matrix, op.Mul(tau, op.MatMul(v, op.MatMul(swap_axes(op, v, -2, -1), matrix))))


def householder_qr(op: OpBuilder, matrix: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return R with the reflectors packed below it (\\*, m, n), and tau (\\*, k)."""
    grid = Grid(op, matrix)

    def step(body: OpBuilder, j: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        v, tau, beta, column = _reflection(body, grid, state[0], j)
        reflected = _reflected(body, v, tau, state[0])
        packed = body.Where(body.Greater(grid.rows, j), v, body.Where(body.Equal(grid.rows, j), beta, column))
        after = body.Where(body.Greater(grid.columns, j), reflected, state[0])
        after = body.Where(body.Equal(grid.columns, j), packed, after)
        return [after], [body.Squeeze(tau, [grid.row_axis, grid.column_axis])]

    (packed,), (tau,) = repeat(op, op.size_min(grid.m, grid.n), [matrix], step)
    return packed, steps_last(op, tau)


def product_of_reflectors(op: OpBuilder, packed: ir.Value, tau: ir.Value, columns: Size) -> ir.Value:
    """Return the first ``columns`` columns of ``H_1 H_2 ... H_k`` (org2r), from reflectors below the diagonal."""
    grid = Grid(op, packed)
    count = op.size(tau, -1)
    last = op.size_sub(count, 1)
    factors = op.Unsqueeze(tau, [op.rank(tau)])

    def step(body: OpBuilder, i: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        j = body.Sub(last, i)
        at = body.Unsqueeze(j, [0])
        column = body.Where(body.Greater(grid.rows, j), body.Gather(packed, at, axis=grid.column_axis), 0.0)
        v = body.Where(body.Equal(grid.rows, j), 1.0, column)
        return [_reflected(body, v, body.Gather(factors, at, axis=grid.rank - 2), state[0])], []

    return repeat(op, count, [identity_like(op, grid.batch, grid.m, columns)], step)[0][0]


@lowering(aten.geqrf.default)
def geqrf(op: OpBuilder, self: ir.Value) -> tuple[ir.Value, ...]:
    return tuple(op.cast(part, op.dtype(self)) for part in householder_qr(op, wide(op, self)))


@lowering(aten.linalg_qr.default)
def linalg_qr(op: OpBuilder, A: ir.Value, mode: str = "reduced") -> tuple[ir.Value, ...]:
    matrix = wide(op, A)
    m, n = op.sizes(matrix)[-2:]
    packed, tau = householder_qr(op, matrix)
    kept = m if mode == "complete" else op.size_min(m, n)
    upper = op.Trilu(take_slice(op, packed, op.rank(packed) - 2, 0, kept), upper=1)
    if mode == "r":
        return op.constant([], op.dtype(A)), op.cast(upper, op.dtype(A))
    return op.cast(product_of_reflectors(op, packed, tau, kept), op.dtype(A)), op.cast(upper, op.dtype(A))


@lowering(aten.linalg_householder_product.default)
def linalg_householder_product(op: OpBuilder, input: ir.Value, tau: ir.Value) -> ir.Value:
    product = product_of_reflectors(op, wide(op, input), wide(op, tau), op.size(input, -1))
    return op.cast(product, op.dtype(input))


@lowering(aten.ormqr.default)
def ormqr(
    op: OpBuilder, self: ir.Value, input2: ir.Value, input3: ir.Value, left: bool = True, transpose: bool = False
) -> ir.Value:
    """Multiply ``input3`` by the whole orthogonal matrix that the reflectors ``self`` and ``input2`` stand for."""
    q = product_of_reflectors(op, wide(op, self), wide(op, input2), op.size(self, -2))
    q = swap_axes(op, q, -2, -1) if transpose else q
    other = wide(op, input3)
    return op.cast(op.MatMul(q, other) if left else op.MatMul(other, q), op.dtype(self))
