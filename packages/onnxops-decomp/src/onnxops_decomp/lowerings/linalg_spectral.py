"""Eigenvalues of symmetric matrices, singular values, and what follows from them, by Jacobi rotations.

Both algorithms rotate all disjoint pairs of columns of a round-robin schedule at once and stop when nothing is left to
rotate (Golub and Van Loan, Matrix Computations, 8.5 and 8.6.3). They compute in DOUBLE. Eigenvectors and singular
vectors are unique up to their sign only (in a repeated eigenvalue up to a rotation), in torch as here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.errors import LoweringError
from onnxops_decomp.lowerings.linalg_factorizations import (
    DOUBLE,
    householder_qr,
    identity_like,
    product_of_reflectors,
    wide,
)
from onnxops_decomp.lowerings.loops import repeat
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.lowerings.shapes import swap_axes
from onnxops_decomp.lowerings.slicing import take_slice

if TYPE_CHECKING:
    from onnxops_decomp.builder import OpBuilder
    from onnxops_decomp.sizes import Size

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


def _rotation(op: OpBuilder, schedule: _Schedule, gram: ir.Value, iteration: ir.Value) -> ir.Value:
    """Return the orthogonal J for which ``J^T @ gram @ J`` has zeros at the pairs of this round."""
    rank = op.rank(gram)
    # Both columns of a pair have to see the same number, or the rotation is none where little but rounding is left.
    gram = op.Mul(op.Add(gram, swap_axes(op, gram, -2, -1)), 0.5)
    columns = schedule.columns
    other = schedule.opponents(op, iteration)
    down = op.Unsqueeze(columns, [1])
    own = op.cast(op.Equal(down, op.Unsqueeze(columns, [0])), DOUBLE)
    meets = op.cast(op.Equal(op.Unsqueeze(other, [1]), op.Unsqueeze(columns, [0])), DOUBLE)
    diagonal = op.ReduceSum(op.Mul(gram, own), [rank - 1], keepdims=0)
    cross = op.ReduceSum(op.Mul(gram, meets), [rank - 1], keepdims=0)
    still = op.Or(op.Equal(cross, 0.0), op.Equal(other, columns))
    difference = op.Sub(op.Gather(diagonal, other, axis=rank - 2), diagonal)
    ratio = op.Div(difference, op.Where(still, 1.0, op.Mul(cross, 2.0)))
    sign = op.Where(
        op.Equal(ratio, 0.0),
        op.Where(op.Less(columns, other), op.constant(1.0, DOUBLE), op.constant(-1.0, DOUBLE)),
        op.Sign(ratio),
    )
    tangent = op.Div(sign, op.Add(op.Abs(ratio), op.Sqrt(op.Add(op.Mul(ratio, ratio), 1.0))))
    tangent = op.Where(still, 0.0, tangent)
    cosine = op.Reciprocal(op.Sqrt(op.Add(op.Mul(tangent, tangent), 1.0)))
    sine = op.Mul(tangent, cosine)
    return op.Add(
        op.Mul(own, op.Unsqueeze(cosine, [rank - 1])),
        op.Where(op.Unsqueeze(still, [rank - 1]), 0.0, op.Mul(meets, op.Unsqueeze(sine, [rank - 1]))),
    )


def _own(op: OpBuilder, schedule: _Schedule) -> ir.Value:
    return op.Equal(op.Unsqueeze(schedule.columns, [1]), op.Unsqueeze(schedule.columns, [0]))


def _is_empty(sizes: Sequence[Size]) -> bool:
    return 0 in [size for size in sizes if isinstance(size, int)]


def _sorted_columns(op: OpBuilder, matrix: ir.Value, order: ir.Value) -> ir.Value:
    """Put the columns of (\\*, m, n) in the order of (\\*, n)."""
    rank = op.rank(matrix)
    index = op.expand(op.Unsqueeze(order, [rank - 2]), op.sizes(matrix))
    return op.GatherElements(matrix, index, axis=rank - 1)


# ---- symmetric eigenvalues


def symmetric_eigen(op: OpBuilder, matrix: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the eigenvalues (\\*, n) in ascending order and the eigenvectors (\\*, n, n) of DOUBLE matrices."""
    rank = op.rank(matrix)
    sizes = op.sizes(matrix)
    if _is_empty(sizes):
        return op.expand(op.constant(0.0, DOUBLE), sizes[:-1]), matrix
    schedule = _Schedule(op, sizes[-1])
    own = _own(op, schedule)

    def step(body: OpBuilder, i: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        a, vectors = state
        rotation = _rotation(body, schedule, a, i)
        turned = body.MatMul(swap_axes(body, rotation, -2, -1), body.MatMul(a, rotation))
        return [turned, body.MatMul(vectors, rotation)], []

    def is_diagonal(body: OpBuilder, state: list[ir.Value]) -> ir.Value:
        size = body.Abs(state[0])
        rest = body.ReduceMax(body.Where(own, 0.0, size), keepdims=0)
        return body.LessOrEqual(rest, body.Mul(body.ReduceMax(size, keepdims=0), 1e-15))

    start = [matrix, identity_like(op, sizes[:-2], sizes[-2], sizes[-1])]
    (diagonal, vectors), _ = repeat(op, op.size_mul(schedule.rounds, _SWEEPS), start, step, unless=is_diagonal)
    values = op.ReduceSum(op.Where(own, diagonal, 0.0), [rank - 1], keepdims=0)
    ascending, order = op.emit_many("TopK", 2, values, op.vector([sizes[-1]]), axis=rank - 2, largest=0)
    return ascending, _sorted_columns(op, vectors, order)


def _symmetric(op: OpBuilder, matrix: ir.Value, uplo: str = "L") -> ir.Value:
    """Fill the other triangle from the one that counts."""
    upper = uplo.upper() == "U"
    half = op.Trilu(matrix, upper=int(upper))
    rest = op.Trilu(matrix, 1 if upper else -1, upper=int(upper))
    return op.Add(half, swap_axes(op, rest, -2, -1))


@lowering(aten._linalg_eigh.default)
def linalg_eigh(op: OpBuilder, A: ir.Value, UPLO: str = "L", compute_v: bool = True) -> tuple[ir.Value, ir.Value]:
    values, vectors = symmetric_eigen(op, _symmetric(op, wide(op, A), UPLO))
    kept = op.cast(vectors, op.dtype(A)) if compute_v else op.constant([], op.dtype(A))
    return op.cast(values, op.dtype(A)), kept


# ---- singular values


def orthogonalized(op: OpBuilder, matrix: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Rotate the columns of DOUBLE matrices (\\*, m, n) until they are orthogonal (one-sided Jacobi).

    Returns:
        The rotated matrix, the rotation V (\\*, n, n) and the lengths of the columns (\\*, n), in descending order.
    """
    rank = op.rank(matrix)
    sizes = op.sizes(matrix)
    whole = identity_like(op, sizes[:-2], sizes[-1], sizes[-1])
    if _is_empty(sizes):
        return matrix, whole, op.expand(op.constant(0.0, DOUBLE), [*sizes[:-2], sizes[-1]])
    schedule = _Schedule(op, sizes[-1])
    own = _own(op, schedule)

    def step(body: OpBuilder, i: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        a, v, _ = state
        gram = body.MatMul(swap_axes(body, a, -2, -1), a)
        rotation = _rotation(body, schedule, gram, i)
        return [body.MatMul(a, rotation), body.MatMul(v, rotation), _coupling(body, gram, own)], []

    def is_orthogonal(body: OpBuilder, state: list[ir.Value]) -> ir.Value:
        return body.LessOrEqual(state[2], 0.0)

    start = [matrix, whole, op.constant(1.0, DOUBLE)]
    count = op.size_mul(schedule.rounds, _SWEEPS)
    (rotated, v, _), _ = repeat(op, count, start, step, unless=is_orthogonal)
    lengths = op.ReduceL2(rotated, [rank - 2], keepdims=0)
    descending, order = op.emit_many("TopK", 2, lengths, op.vector([sizes[-1]]), axis=rank - 2)
    return _sorted_columns(op, rotated, order), _sorted_columns(op, v, order), descending


def _coupling(op: OpBuilder, gram: ir.Value, own: ir.Value) -> ir.Value:
    """Return a 0-d number that is positive as long as two columns are not orthogonal to working precision."""
    rank = op.rank(gram)
    squares = op.ReduceSum(op.Where(own, gram, 0.0), [rank - 1], keepdims=0)
    pairs = op.Mul(op.Unsqueeze(squares, [rank - 1]), op.Unsqueeze(squares, [rank - 2]))
    # Columns that are zero but for rounding errors are never orthogonal to others: the second term lets them be.
    noise = op.Mul(op.ReduceMax(squares, keepdims=0), 1e-30)
    allowed = op.Add(op.Mul(op.Sqrt(pairs), 1e-15), noise)
    return op.ReduceMax(op.Where(own, 0.0, op.Sub(op.Abs(gram), allowed)), keepdims=0)


@lowering(aten._linalg_svd.default)
def linalg_svd(
    op: OpBuilder, A: ir.Value, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[ir.Value, ...]:
    """The left vectors are the orthogonal factor of the rotated matrix, which also completes them where asked for."""
    rank = op.rank(A)
    m, n = op.sizes(A)[-2:]
    small = op.size_min(m, n)
    rotated, v, lengths = orthogonalized(op, wide(op, A))
    values = op.cast(take_slice(op, lengths, rank - 2, 0, small), op.dtype(A))
    if not compute_uv:
        nothing = op.constant([], op.dtype(A))
        return nothing, values, nothing
    packed, tau = householder_qr(op, take_slice(op, rotated, rank - 1, 0, small))
    u = product_of_reflectors(op, packed, tau, m if full_matrices else small)
    u = op.Mul(u, _signs(op, packed, op.size(u, -1)))
    v = v if full_matrices else take_slice(op, v, rank - 1, 0, small)
    return op.cast(u, op.dtype(A)), values, op.cast(swap_axes(op, v, -2, -1), op.dtype(A))


def _signs(op: OpBuilder, packed: ir.Value, columns: Size) -> ir.Value:
    """Return 1.0 or -1.0 for each column (\\*, 1, columns): the sign of R's diagonal, which a length does not have."""
    rank = op.rank(packed)
    k = op.size(packed, -1)
    rows, over = op.Unsqueeze(op.Range(0, op.size(packed, -2), 1), [1]), op.Unsqueeze(op.Range(0, k, 1), [0])
    diagonal = op.ReduceSum(op.Where(op.Equal(rows, over), packed, 0.0), [rank - 2], keepdims=1)
    signs = op.Where(op.Less(diagonal, 0.0), op.constant(-1.0, DOUBLE), op.constant(1.0, DOUBLE))
    pads = [0] * rank
    return op.Pad(signs, op.vector([*pads, *pads[:-1], op.size_sub(columns, k)]), op.constant(1.0, DOUBLE))


@lowering(aten.linalg_pinv.atol_rtol_tensor)
def linalg_pinv(
    op: OpBuilder,
    self: ir.Value,
    *,
    atol: ir.Value | None = None,
    rtol: ir.Value | None = None,
    hermitian: bool = False,
) -> ir.Value:
    matrix = wide(op, self)
    eps = torch.finfo(torch.float64 if self.dtype == DOUBLE else torch.float32).eps
    size = op.size_max(op.size(self, -1), op.size(self, -2))
    inverse = pseudoinverse(op, _symmetric(op, matrix) if hermitian else matrix, atol, rtol, size, eps)
    return op.cast(inverse, op.dtype(self))


def pseudoinverse(
    op: OpBuilder, matrix: ir.Value, atol: ir.Value | None, rtol: ir.Value | None, size: Size, eps: float
) -> ir.Value:
    """Return ``V diag(1 / s^2) (A V)^T`` over the singular values above the tolerance, as ``A V = U diag(s)``.

    Args:
        op: Builder.
        matrix: A, DOUBLE (\\*, m, n).
        atol: Absolute tolerance, or None.
        rtol: Relative tolerance, or None for ``size * eps``, or 0 where an absolute one is given.
        size: Larger size of the matrix.
        eps: Precision of its numbers.
    """
    rotated, v, lengths = orthogonalized(op, matrix)
    return inverse_of(op, rotated, v, lengths, significant(op, lengths, atol, rtol, size, eps))


def significant(
    op: OpBuilder, lengths: ir.Value, atol: ir.Value | None, rtol: ir.Value | None, size: Size, eps: float
) -> ir.Value:
    """Tell which singular values (\\*, k) lie above the tolerance; see :func:`pseudoinverse`."""
    default = op.Mul(op.cast(op.vector([size]), DOUBLE), eps)
    return op.Greater(lengths, _least_singular_value(op, lengths, atol, rtol, default))


def inverse_of(op: OpBuilder, rotated: ir.Value, v: ir.Value, lengths: ir.Value, counts: ir.Value) -> ir.Value:
    """Return the pseudoinverse from what :func:`orthogonalized` gives and the singular values that count."""
    weights = op.Where(counts, op.Reciprocal(op.Where(counts, op.Mul(lengths, lengths), 1.0)), 0.0)
    weighted = op.Mul(v, op.Unsqueeze(weights, [op.rank(v) - 2]))
    return op.MatMul(weighted, swap_axes(op, rotated, -2, -1))


def _least_singular_value(
    op: OpBuilder, lengths: ir.Value, atol: ir.Value | None, rtol: ir.Value | None, default: ir.Value
) -> ir.Value:
    """Return ``max(atol, rtol * largest)`` (\\*, 1); rtol is ``default`` where no atol above 0 is given."""
    axis = op.rank(lengths) - 1
    largest = op.ReduceMax(lengths, [axis], keepdims=1)
    absolute = op.constant([0.0], DOUBLE) if atol is None else op.Unsqueeze(wide(op, atol), [op.rank(atol)])
    if rtol is not None:
        relative = op.Unsqueeze(wide(op, rtol), [op.rank(rtol)])
    else:
        relative = op.Where(op.Greater(absolute, 0.0), 0.0, default)
    return op.Max(absolute, op.Mul(relative, largest))


# ---- what has no form


@lowering(aten.linalg_eig.default, aten._linalg_eigvals.default, aten.linalg_eigvals.default)
def linalg_eig(op: OpBuilder, self: ir.Value) -> ir.Value:
    raise LoweringError(
        "Eigenvalues of a general matrix need an iteration with shifts and deflation (QR algorithm) that ONNX cannot "
        "express with a fixed shape. If the matrix is symmetric, use torch.linalg.eigh or eigvalsh, which do lower."
    )
