"""Eigenvalues of Hermitian matrices, singular values, and what follows from them, by Jacobi rotations.

Both algorithms rotate all disjoint pairs of columns of a round-robin schedule at once and stop when nothing is left to
rotate (Golub and Van Loan, Matrix Computations, 8.5 and 8.6.3). They compute in DOUBLE. Eigenvectors and singular
vectors are unique up to their sign only, complex ones up to a phase (in a repeated eigenvalue up to a rotation), in
torch as here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.errors import LoweringError
from onnxops_decomp.formulas.loops import repeat
from onnxops_decomp.formulas.products import zero_if_empty
from onnxops_decomp.lowerings.layout.slicing import take_slice
from onnxops_decomp.lowerings.linalg.factorizations import householder_qr, product_of_reflectors
from onnxops_decomp.lowerings.linalg.matrices import DOUBLE, Grid, Numbers, identity_like, wide
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

aten = torch.ops.aten

# Convergence is quadratic at the end; matrices of any practical size take about a dozen sweeps.
_SWEEPS = 40


class _Schedule:
    """A round-robin tournament of n columns: in each of its rounds every column meets at most one other."""

    def __init__(self, op: OpBuilder, n: Size) -> None:
        self.n = n
        self.columns = op.Range(0, n, 1)
        # One more than n if n is odd: who meets the last one, which does not exist, pauses.
        self.players = op.size_mul(op.size_floordiv(op.size_add(n, 1), 2), 2)
        self.rounds = op.size_max(op.size_sub(self.players, 1), 1)

    def opponents(self, op: OpBuilder, iteration: ir.Value) -> ir.Value:
        """Return for each column (n,) the one that it meets, or itself if it pauses."""
        last = op.vector([op.size_sub(self.players, 1)])
        turn = op.Mod(op.vector([iteration]), op.vector([self.rounds]))
        other = op.Mod(op.Sub(op.Add(turn, self.rounds), self.columns), op.vector([self.rounds]))
        # The one column that would meet itself meets the last one, and the last one it.
        halved = op.Mul(turn, op.vector([op.size_floordiv(self.players, 2)]))
        partner_of_last = op.Mod(halved, op.vector([self.rounds]))
        other = op.Where(op.Equal(other, self.columns), last, other)
        other = op.Where(op.Equal(self.columns, last), partner_of_last, other)
        return op.Where(op.Less(other, self.n), other, self.columns)

    def own(self, op: OpBuilder) -> ir.Value:
        """Return the flags (n, n) of the diagonal."""
        return op.Equal(op.Unsqueeze(self.columns, [1]), op.Unsqueeze(self.columns, [0]))


def _rotation(op: OpBuilder, numbers: Numbers, schedule: _Schedule, gram: ir.Value, iteration: ir.Value) -> ir.Value:
    """Return the unitary J for which ``J^H @ gram @ J`` has zeros at the pairs of this round."""
    last = numbers.rank_of(op, gram) - 1
    # Both columns of a pair have to see the same number, or the rotation is none where little but rounding is left.
    gram = op.Mul(op.Add(gram, numbers.adjoint(op, gram)), 0.5)
    columns = schedule.columns
    other = schedule.opponents(op, iteration)
    own = op.cast(schedule.own(op), DOUBLE)
    meets = op.cast(op.Equal(op.Unsqueeze(other, [1]), op.Unsqueeze(columns, [0])), DOUBLE)
    diagonal = op.ReduceSum(op.Mul(numbers.real(op, gram), own), [last], keepdims=0)
    cross = op.ReduceSum(numbers.scaled(op, gram, meets), [last], keepdims=0)
    length = numbers.length(op, cross)
    still = op.Or(op.Equal(length, 0.0), op.Equal(other, columns))
    difference = op.Sub(op.Gather(diagonal, other, axis=last - 1), diagonal)
    ratio = op.Div(difference, op.Where(still, 1.0, op.Mul(length, 2.0)))
    sign = op.Where(
        op.Equal(ratio, 0.0),
        op.Where(op.Less(columns, other), op.constant(1.0, DOUBLE), op.constant(-1.0, DOUBLE)),
        op.Sign(ratio),
    )
    tangent = op.Div(sign, op.Add(op.Abs(ratio), op.Sqrt(op.Add(op.Mul(ratio, ratio), 1.0))))
    tangent = op.Where(still, 0.0, tangent)
    cosine = op.Reciprocal(op.Sqrt(op.Add(op.Mul(tangent, tangent), 1.0)))
    # Without the phase of the number off the diagonal, the rotation is that of a real matrix.
    sine = numbers.scaled(op, numbers.unit(op, cross), op.Mul(tangent, cosine))
    kept = numbers.of_real(op, op.Mul(own, op.Unsqueeze(cosine, [last])))
    turned = op.Mul(numbers.flagged(op, meets), op.Unsqueeze(sine, [last]))
    return op.Add(kept, op.Where(numbers.flagged(op, op.Unsqueeze(still, [last])), 0.0, turned))


def _is_empty(sizes: Sequence[Size]) -> bool:
    return 0 in [size for size in sizes if isinstance(size, int)]


def _sorted_columns(op: OpBuilder, numbers: Numbers, matrix: ir.Value, order: ir.Value) -> ir.Value:
    """Put the columns of (..., m, n) in the order of (..., n)."""
    rank = numbers.rank_of(op, matrix)
    index = op.expand(numbers.flagged(op, op.Unsqueeze(order, [rank - 2])), op.sizes(matrix))
    return numbers.marked(op.GatherElements(matrix, index, axis=rank - 1))


# ---- eigenvalues of Hermitian matrices


def symmetric_eigen(op: OpBuilder, matrix: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the eigenvalues (..., n) in ascending order and the eigenvectors (..., n, n) of DOUBLE matrices."""
    grid = Grid(op, matrix)
    if _is_empty(grid.sizes):
        return op.expand(op.constant(0.0, DOUBLE), [*grid.batch, grid.n]), matrix
    schedule = _Schedule(op, grid.n)
    own = schedule.own(op)

    def step(body: OpBuilder, i: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        a, vectors = state
        rotation = _rotation(body, grid, schedule, a, i)
        turned = grid.matmul(body, grid.adjoint(body, rotation), grid.matmul(body, a, rotation))
        return [turned, grid.matmul(body, vectors, rotation)], []

    def is_diagonal(body: OpBuilder, state: list[ir.Value]) -> ir.Value:
        size = grid.length(body, state[0])
        rest = body.ReduceMax(body.Where(own, 0.0, size), keepdims=0)
        return body.LessOrEqual(rest, body.Mul(body.ReduceMax(size, keepdims=0), 1e-15))

    start = [matrix, grid.of_real(op, identity_like(op, grid.batch, grid.m, grid.n))]
    count = op.size_mul(schedule.rounds, _SWEEPS)
    (diagonal, vectors), _ = repeat(op, count, start, step, unless=is_diagonal)
    values = op.ReduceSum(op.Where(own, grid.real(op, diagonal), 0.0), [grid.column_axis], keepdims=0)
    ascending, order = op.emit_many("TopK", 2, values, op.vector([grid.n]), axis=grid.rank - 2, largest=0)
    return ascending, _sorted_columns(op, grid, vectors, order)


@lowering(aten._linalg_eigh.default, complex=None)
def linalg_eigh(op: OpBuilder, A: ir.Value, UPLO: str = "L", compute_v: bool = True) -> tuple[ir.Value, ir.Value]:
    numbers = Numbers(A)
    values, vectors = symmetric_eigen(op, numbers.hermitian(op, wide(op, A), upper=UPLO.upper() == "U"))
    kept = numbers.narrow(op, vectors, A) if compute_v else numbers.nothing(op, A)
    return op.cast(values, op.dtype(A)), kept


# ---- singular values


def orthogonalized(op: OpBuilder, matrix: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Rotate the columns of DOUBLE matrices (..., m, n) until they are orthogonal (one-sided Jacobi).

    Returns:
        The rotated matrix, the rotation V (..., n, n) and the lengths of the columns (..., n), in descending order.
    """
    grid = Grid(op, matrix)
    whole = grid.of_real(op, identity_like(op, grid.batch, grid.n, grid.n))
    if _is_empty(grid.sizes):
        return matrix, whole, op.expand(op.constant(0.0, DOUBLE), [*grid.batch, grid.n])
    schedule = _Schedule(op, grid.n)
    own = schedule.own(op)

    def step(body: OpBuilder, i: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        a, v, _ = state
        gram = zero_if_empty(body, grid.matmul(body, grid.adjoint(body, a), a), grid.m)
        rotation = _rotation(body, grid, schedule, gram, i)
        lengths = grid.length(body, gram)
        return [grid.matmul(body, a, rotation), grid.matmul(body, v, rotation), _coupling(body, lengths, own)], []

    def is_orthogonal(body: OpBuilder, state: list[ir.Value]) -> ir.Value:
        return body.LessOrEqual(state[2], 0.0)

    start = [matrix, whole, op.constant(1.0, DOUBLE)]
    count = op.size_mul(schedule.rounds, _SWEEPS)
    (rotated, v, _), _ = repeat(op, count, start, step, unless=is_orthogonal)
    lengths = op.ReduceL2(rotated, [grid.row_axis, grid.rank] if grid.complex else [grid.row_axis], keepdims=0)
    descending, order = op.emit_many("TopK", 2, lengths, op.vector([grid.n]), axis=grid.rank - 2)
    return _sorted_columns(op, grid, rotated, order), _sorted_columns(op, grid, v, order), descending


def _coupling(op: OpBuilder, gram: ir.Value, own: ir.Value) -> ir.Value:
    """Return a 0-d number that is positive as long as two columns are not orthogonal to working precision.

    Args:
        op: Builder.
        gram: Sizes of the products of all columns with each other (..., n, n).
        own: Flags of the diagonal.
    """
    rank = op.rank(gram)
    squares = op.ReduceSum(op.Where(own, gram, 0.0), [rank - 1], keepdims=0)
    pairs = op.Mul(op.Unsqueeze(squares, [rank - 1]), op.Unsqueeze(squares, [rank - 2]))
    # Columns that are zero but for rounding errors are never orthogonal to others: the second term lets them be.
    noise = op.Mul(op.ReduceMax(squares, keepdims=0), 1e-30)
    allowed = op.Add(op.Mul(op.Sqrt(pairs), 1e-15), noise)
    return op.ReduceMax(op.Where(own, 0.0, op.Sub(gram, allowed)), keepdims=0)


@lowering(aten._linalg_svd.default, complex=None)
def linalg_svd(
    op: OpBuilder, A: ir.Value, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[ir.Value, ...]:
    """Take the left vectors from the unitary factor of the rotated matrix, which also completes them on request."""
    grid = Grid(op, A)
    small = op.size_min(grid.m, grid.n)
    rotated, v, lengths = orthogonalized(op, wide(op, A))
    values = op.cast(take_slice(op, lengths, grid.rank - 2, 0, small), op.dtype(A))
    if not compute_uv:
        nothing = grid.nothing(op, A)
        return nothing, values, nothing
    packed, tau = householder_qr(op, grid.marked(take_slice(op, rotated, grid.column_axis, 0, small)))
    columns = grid.m if full_matrices else small
    u = product_of_reflectors(op, packed, tau, columns)
    u = grid.scaled(op, u, _signs(op, packed, columns))
    v = v if full_matrices else grid.marked(take_slice(op, v, grid.column_axis, 0, small))
    return grid.narrow(op, u, A), values, grid.narrow(op, grid.adjoint(op, v), A)


def _signs(op: OpBuilder, packed: ir.Value, columns: Size) -> ir.Value:
    """Return 1.0 or -1.0 for each column (..., 1, columns): the sign of R's diagonal, which a length does not have."""
    grid = Grid(op, packed)
    own = op.Equal(op.Unsqueeze(grid.row_vector, [1]), op.Range(0, grid.n, 1))
    diagonal = op.ReduceSum(op.Where(own, grid.real(op, packed), 0.0), [grid.row_axis], keepdims=1)
    signs = op.Where(op.Less(diagonal, 0.0), op.constant(-1.0, DOUBLE), op.constant(1.0, DOUBLE))
    pads = [0] * grid.rank
    return op.Pad(signs, op.vector([*pads, *pads[:-1], op.size_sub(columns, grid.n)]), op.constant(1.0, DOUBLE))


@lowering(aten.linalg_pinv.atol_rtol_tensor, complex=None)
def linalg_pinv(
    op: OpBuilder,
    self: ir.Value,
    *,
    atol: ir.Value | None = None,
    rtol: ir.Value | None = None,
    hermitian: bool = False,
) -> ir.Value:
    grid, matrix = Grid(op, self), wide(op, self)
    eps = torch.finfo(torch.float64 if self.dtype == DOUBLE else torch.float32).eps
    matrix = grid.hermitian(op, matrix, upper=False) if hermitian else matrix
    rotated, v, lengths = orthogonalized(op, matrix)
    counts = significant(op, lengths, atol, rtol, op.size_max(grid.n, grid.m), eps)
    return grid.narrow(op, inverse_of(op, rotated, v, lengths, counts), self)


def significant(
    op: OpBuilder, lengths: ir.Value, atol: ir.Value | None, rtol: ir.Value | None, size: Size, eps: float
) -> ir.Value:
    """Tell which singular values (..., k) lie above the tolerance.

    Args:
        op: Builder.
        lengths: The singular values.
        atol: Absolute tolerance, or None.
        rtol: Relative tolerance, or None for ``size * eps``, or 0 where an absolute one is given.
        size: Larger size of the matrix.
        eps: Precision of its numbers.
    """
    default = op.Mul(op.cast(op.vector([size]), DOUBLE), eps)
    return op.Greater(lengths, _least_singular_value(op, lengths, atol, rtol, default))


def inverse_of(op: OpBuilder, rotated: ir.Value, v: ir.Value, lengths: ir.Value, counts: ir.Value) -> ir.Value:
    """Return the pseudoinverse ``V diag(1 / s^2) (A V)^H``, as ``A V = U diag(s)``.

    Args:
        op: Builder.
        rotated: ``A V`` of :func:`orthogonalized`.
        v: V.
        lengths: The singular values.
        counts: Which of them count.
    """
    numbers = Numbers(v)
    weights = op.Where(counts, op.Reciprocal(op.Where(counts, op.Mul(lengths, lengths), 1.0)), 0.0)
    weighted = numbers.scaled(op, v, op.Unsqueeze(weights, [op.rank(weights) - 1]))
    return numbers.matmul(op, weighted, numbers.adjoint(op, rotated))


def _least_singular_value(
    op: OpBuilder, lengths: ir.Value, atol: ir.Value | None, rtol: ir.Value | None, default: ir.Value
) -> ir.Value:
    """Return ``max(atol, rtol * largest)`` (..., 1); rtol is ``default`` where no atol above 0 is given."""
    axis = op.rank(lengths) - 1
    largest = op.ReduceMax(lengths, [axis], keepdims=1)
    absolute = op.constant([0.0], DOUBLE) if atol is None else op.Unsqueeze(wide(op, atol), [op.rank(atol)])
    if rtol is not None:
        relative = op.Unsqueeze(wide(op, rtol), [op.rank(rtol)])
    else:
        relative = op.Where(op.Greater(absolute, 0.0), 0.0, default)
    return op.Max(absolute, op.Mul(relative, largest))


# ---- what has no form


@lowering(aten.linalg_eig.default, aten._linalg_eigvals.default, aten.linalg_eigvals.default, complex=None)
def linalg_eig(op: OpBuilder, self: ir.Value) -> ir.Value:
    raise LoweringError(
        "Eigenvalues of a general matrix need an iteration with shifts and deflation (QR algorithm) that ONNX cannot "
        "express with a fixed shape. If the matrix is symmetric, use torch.linalg.eigh or eigvalsh, which do lower."
    )
