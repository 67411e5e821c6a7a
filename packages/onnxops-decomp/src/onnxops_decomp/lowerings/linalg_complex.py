"""Linear algebra of complex matrices.

What a matrix function gives of the real matrix ``[[X, -Y], [Y, X]]`` is that same form of what it gives of ``X + iY``.
Inverses, solutions, pseudoinverses and spectra therefore come from the real lowerings at twice the size; factorizations
and determinants do not, and are computed on both parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import mark_complex
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.lowerings.complex_numbers import joined, multiplied, parts, reciprocal
from onnxops_decomp.lowerings.complex_structure import prod_dim, transpose
from onnxops_decomp.lowerings.conversions import as_complex
from onnxops_decomp.lowerings.linalg import linalg_matrix_exp
from onnxops_decomp.lowerings.linalg_factorizations import (
    DOUBLE,
    INT32,
    INT64,
    Lu,
    first_true,
    identity_like,
    row_order,
    swapped_rows,
    wide,
)
from onnxops_decomp.lowerings.linalg_solvers import gauss_jordan, same_batch, sign_of_exchanges
from onnxops_decomp.lowerings.linalg_spectral import linalg_eig, orthogonalized, pseudoinverse, symmetric_eigen
from onnxops_decomp.lowerings.loops import repeat
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.lowerings.slicing import take_slice

if TYPE_CHECKING:
    from onnxops_decomp.builder import OpBuilder

aten = torch.ops.aten


def _wide(op: OpBuilder, z: ir.Value) -> ir.Value:
    return mark_complex(wide(op, as_complex(op, z)))


def _narrow(op: OpBuilder, z: ir.Value, like: ir.Value) -> ir.Value:
    return mark_complex(op.cast(z, op.dtype(like)))


def _matrix(op: OpBuilder, z: ir.Value) -> ir.Value:
    """Return ``[[X, -Y], [Y, X]]`` (\\*, 2 m, 2 n) for complex (\\*, m, n)."""
    x, y = parts(op, z)
    rank = op.rank(x)
    upper, lower = op.Concat(x, op.Neg(y), axis=rank - 1), op.Concat(y, x, axis=rank - 1)
    return op.Concat(upper, lower, axis=rank - 2)


def _column(op: OpBuilder, z: ir.Value) -> ir.Value:
    """Return ``[[X], [Y]]`` (\\*, 2 m, n)."""
    x, y = parts(op, z)
    return op.Concat(x, y, axis=op.rank(x) - 2)


def _of_column(op: OpBuilder, real: ir.Value) -> ir.Value:
    """Return the complex matrix whose parts stand above each other."""
    rank = op.rank(real)
    half = op.size_floordiv(op.size(real, -2), 2)
    return joined(op, take_slice(op, real, rank - 2, 0, half), take_slice(op, real, rank - 2, half, op.size(real, -2)))


def _of_matrix(op: OpBuilder, real: ir.Value) -> ir.Value:
    half = op.size_floordiv(op.size(real, -1), 2)
    return _of_column(op, take_slice(op, real, op.rank(real) - 1, 0, half))


def _adjoint(op: OpBuilder, z: ir.Value) -> ir.Value:
    return mark_complex(op.Mul(transpose(op, z, -2, -1), op.constant([1.0, -1.0], op.dtype(z))))


def _solve(op: OpBuilder, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Solve ``a @ x = b`` for complex DOUBLE matrices; see :func:`gauss_jordan`."""
    x, info = gauss_jordan(op, *same_batch(op, _matrix(op, a), _column(op, b)))
    return _of_column(op, x), info


# ---- LU


def lu_factor(op: OpBuilder, z: ir.Value) -> Lu:
    """Factorize complex DOUBLE matrices as getf2 does, which picks pivots by ``|x| + |y|``."""
    rank = op.rank(z) - 1
    row_axis, column_axis = rank - 2, rank - 1
    m, n = op.size(z, row_axis), op.size(z, column_axis)
    row_vector, columns = op.Range(0, m, 1), op.Unsqueeze(op.Range(0, n, 1), [1])
    rows = op.Unsqueeze(row_vector, [1, 2])

    def step(body: OpBuilder, j: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        a, order = state
        at = body.Unsqueeze(j, [0])
        size = body.ReduceSum(body.Abs(body.Gather(a, j, axis=column_axis)), [rank - 1], keepdims=0)
        pivot = body.ArgMax(body.Where(body.Less(row_vector, j), -1.0, size), axis=rank - 2, keepdims=1)
        swap = swapped_rows(body, row_vector, j, pivot)
        order = body.GatherElements(order, swap, axis=rank - 2)
        index = body.expand(body.Unsqueeze(swap, [rank - 1, rank]), body.sizes(a))
        a = body.GatherElements(a, index, axis=row_axis)
        row, column = body.Gather(a, at, axis=row_axis), body.Gather(a, at, axis=column_axis)
        diagonal = body.Gather(row, at, axis=column_axis)
        zero = body.Equal(body.ReduceSum(body.Abs(diagonal), [rank], keepdims=1), 0.0)
        divisor = body.Where(zero, body.constant([1.0, 0.0], DOUBLE), diagonal)
        factor = multiplied(body, column, reciprocal(body, mark_complex(divisor)))
        factor = body.Where(body.Greater(rows, j), factor, 0.0)
        rest = body.Sub(a, multiplied(body, factor, body.Where(body.Greater(columns, j), row, 0.0)))
        a = body.Where(body.And(body.Greater(rows, j), body.Equal(columns, j)), factor, rest)
        return [a, order], [body.Squeeze(pivot, [rank - 2]), body.Squeeze(diagonal, [row_axis, column_axis])]

    order = op.expand(row_vector, [*op.sizes(z)[:-3], m])
    (packed, order), (pivots, diagonal) = repeat(op, op.size_min(m, n), [z, order], step)
    axes = list(range(1, rank - 1))
    return Lu(
        mark_complex(packed),
        order,
        op.Transpose(pivots, perm=[*axes, 0]),
        mark_complex(op.Transpose(diagonal, perm=[*axes, 0, rank - 1])),
    )


def _is_zero(op: OpBuilder, z: ir.Value) -> ir.Value:
    return op.Equal(op.ReduceSum(op.Abs(z), [op.rank(z) - 1], keepdims=0), 0.0)


def _one_based(op: OpBuilder, pivots: ir.Value) -> ir.Value:
    return op.Add(op.cast(pivots, INT32), 1)


@lowering(aten.linalg_lu_factor_ex.default, complex=True)
def linalg_lu_factor_ex(
    op: OpBuilder, A: ir.Value, *, pivot: bool = True, check_errors: bool = False
) -> tuple[ir.Value, ...]:
    lu = lu_factor(op, _wide(op, A))
    return _narrow(op, lu.packed, A), _one_based(op, lu.pivots), first_true(op, _is_zero(op, lu.diagonal))


def _unpacked(op: OpBuilder, packed: ir.Value, order: ir.Value) -> tuple[ir.Value, ...]:
    """Return P, L and U with ``A = P @ L @ U``."""
    rank = op.rank(packed) - 1
    m, n = op.size(packed, -3), op.size(packed, -2)
    small = op.size_min(m, n)
    ones = op.cast(identity_like(op, [], m, small), op.dtype(packed))
    x, y = (take_slice(op, part, rank - 1, 0, small) for part in parts(op, packed))
    lower = joined(op, op.Add(op.Trilu(x, -1, upper=0), ones), op.Trilu(y, -1, upper=0))
    u, v = (op.Trilu(take_slice(op, part, rank - 2, 0, small), upper=1) for part in parts(op, packed))
    rows = op.Unsqueeze(op.Range(0, m, 1), [1])
    permutation = op.cast(op.Equal(rows, op.Unsqueeze(order, [rank - 2])), op.dtype(packed))
    return as_complex(op, permutation), lower, joined(op, u, v)


@lowering(aten.linalg_lu.default, complex=True)
def linalg_lu(op: OpBuilder, A: ir.Value, *, pivot: bool = True) -> tuple[ir.Value, ...]:
    lu = lu_factor(op, _wide(op, A))
    return tuple(_narrow(op, part, A) for part in _unpacked(op, lu.packed, lu.order))


@lowering(aten.lu_unpack.default, complex=True)
def lu_unpack(
    op: OpBuilder, LU_data: ir.Value, LU_pivots: ir.Value, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[ir.Value, ...]:
    pivots = op.Sub(op.cast(LU_pivots, INT64), 1)
    found = _unpacked(op, LU_data, row_order(op, pivots, op.size(LU_data, -3)))
    nothing = mark_complex(op.copy(op.Reshape(op.constant([], op.dtype(LU_data)), op.constant([0, 2]), allowzero=1)))
    wanted = (unpack_pivots, unpack_data, unpack_data)
    return tuple(part if keep else nothing for part, keep in zip(found, wanted, strict=True))


@lowering(aten.linalg_lu_solve.default, complex=True)
def linalg_lu_solve(
    op: OpBuilder, LU: ir.Value, pivots: ir.Value, B: ir.Value, *, left: bool = True, adjoint: bool = False
) -> ir.Value:
    """Multiply the factors and solve with the product."""
    order = row_order(op, op.Sub(op.cast(pivots, INT64), 1), op.size(LU, -3))
    permutation, lower, upper = _unpacked(op, _wide(op, LU), order)
    a = _product(op, _product(op, permutation, lower), upper)
    a = _adjoint(op, a) if adjoint else a
    return _narrow(op, _solved(op, a, _wide(op, B), left), LU)


def _product(op: OpBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return _of_column(op, op.MatMul(_matrix(op, a), _column(op, b)))


def _solved(op: OpBuilder, a: ir.Value, b: ir.Value, left: bool = True) -> ir.Value:
    """Solve ``a @ x = b``, or ``x @ a = b``."""
    if left:
        return _solve(op, a, b)[0]
    return transpose(op, _solve(op, transpose(op, a, -2, -1), transpose(op, b, -2, -1))[0], -2, -1)


# ---- determinants, inverses, solutions


@lowering(aten._linalg_det.default, complex=True)
def linalg_det(op: OpBuilder, A: ir.Value) -> tuple[ir.Value, ...]:
    lu = lu_factor(op, _wide(op, A))
    product = prod_dim(op, lu.diagonal, -1)
    sign = op.Unsqueeze(sign_of_exchanges(op, lu.pivots), [op.rank(lu.pivots) - 1])
    return _narrow(op, op.Mul(product, sign), A), _narrow(op, lu.packed, A), _one_based(op, lu.pivots)


@lowering(aten._linalg_slogdet.default, complex=True)
def linalg_slogdet(op: OpBuilder, A: ir.Value) -> tuple[ir.Value, ...]:
    lu = lu_factor(op, _wide(op, A))
    sizes = op.ReduceL2(lu.diagonal, [op.rank(lu.diagonal) - 1], keepdims=1)
    units = mark_complex(op.Div(lu.diagonal, op.Where(op.Equal(sizes, 0.0), 1.0, sizes)))
    sign = op.Unsqueeze(sign_of_exchanges(op, lu.pivots), [op.rank(lu.pivots) - 1])
    sign = op.Mul(prod_dim(op, units, -1), sign)
    rank = op.rank(sizes)
    size = op.ReduceSum(op.Log(op.Squeeze(sizes, [rank - 1])), [rank - 2], keepdims=0)
    packed = _narrow(op, lu.packed, A)
    return _narrow(op, sign, A), op.cast(size, op.dtype(A)), packed, _one_based(op, lu.pivots)


@lowering(aten.linalg_inv_ex.default, complex=True)
def linalg_inv_ex(op: OpBuilder, A: ir.Value, *, check_errors: bool = False) -> tuple[ir.Value, ir.Value]:
    z = _wide(op, A)
    batch, n = op.sizes(z)[:-3], op.size(z, -2)
    inverse, _ = _solve(op, z, as_complex(op, identity_like(op, batch, n, n)))
    return _narrow(op, inverse, A), first_true(op, _is_zero(op, lu_factor(op, z).diagonal))


@lowering(aten._linalg_solve_ex.default, complex=True)
def linalg_solve_ex(
    op: OpBuilder, A: ir.Value, B: ir.Value, *, left: bool = True, check_errors: bool = False
) -> tuple[ir.Value, ...]:
    a, b = _wide(op, A), _wide(op, B)
    rank_a, rank_b = op.rank(a) - 1, op.rank(b) - 1
    known = [op.dim(size) for size in op.sizes(b)[:-1]] == [op.dim(size) for size in op.sizes(a)[:-2]]
    vector = rank_b == 1 or (rank_a - 1 == rank_b and known)
    b = mark_complex(op.Unsqueeze(b, [rank_b])) if vector else b
    x = _solved(op, a, b, left)
    x = op.Squeeze(x, [op.rank(x) - 2]) if vector else x
    lu = lu_factor(op, a)
    info = first_true(op, _is_zero(op, lu.diagonal))
    return _narrow(op, x, A), _narrow(op, lu.packed, A), _one_based(op, lu.pivots), info


@lowering(aten.linalg_solve_triangular.default, complex=True)
def linalg_solve_triangular(
    op: OpBuilder, self: ir.Value, B: ir.Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> ir.Value:
    a = _triangle(op, _wide(op, self), upper, unitriangular)
    return _narrow(op, _solved(op, a, _wide(op, B), left), self)


def _triangle(op: OpBuilder, z: ir.Value, upper: bool, unit: bool = False) -> ir.Value:
    edge = (1 if upper else -1) if unit else 0
    x, y = (op.Trilu(part, edge, upper=int(upper)) for part in parts(op, z))
    n = op.size(z, -2)
    return joined(op, op.Add(x, identity_like(op, [], n, n)) if unit else x, y)


@lowering(aten.triangular_solve.default, complex=True)
def triangular_solve(
    op: OpBuilder,
    self: ir.Value,
    A: ir.Value,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[ir.Value, ir.Value]:
    a = _triangle(op, _wide(op, A), upper, unitriangular)
    b = _wide(op, self)
    if transpose:
        a = _swapped(op, a)
    batch = op.sizes(same_batch(op, _matrix(op, a), _column(op, b))[0])[:-2]
    coefficients = op.expand(A, [*batch, *op.sizes(A)[-3:]])
    return _narrow(op, _solved(op, a, b), self), mark_complex(coefficients)


def _swapped(op: OpBuilder, z: ir.Value) -> ir.Value:
    return transpose(op, z, -2, -1)


@lowering(aten.linalg_matrix_exp.default, complex=True)
def matrix_exp(op: OpBuilder, self: ir.Value) -> ir.Value:
    return _narrow(op, _of_matrix(op, linalg_matrix_exp(op, _matrix(op, _wide(op, self)))), self)


# ---- Cholesky


@lowering(aten.linalg_cholesky_ex.default, complex=True)
def linalg_cholesky_ex(
    op: OpBuilder, self: ir.Value, *, upper: bool = False, check_errors: bool = False
) -> tuple[ir.Value, ir.Value]:
    z = _wide(op, self)
    z = _adjoint(op, z) if upper else z
    rank = op.rank(z) - 1
    rows = op.Unsqueeze(op.Range(0, op.size(z, rank - 2), 1), [1, 2])

    def step(body: OpBuilder, j: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        at = body.Unsqueeze(j, [0])
        column = body.Gather(state[0], at, axis=rank - 1)
        diagonal = body.Gather(body.Gather(column, at, axis=rank - 2), body.constant([0]), axis=rank)
        column = body.Div(column, body.Sqrt(diagonal))
        # The diagonal of a Hermitian matrix is real.
        real = body.Where(body.Equal(rows, j), body.Mul(column, body.constant([1.0, 0.0], DOUBLE)), column)
        column = mark_complex(body.Where(body.Less(rows, j), 0.0, real))
        rest = body.Sub(state[0], multiplied(body, column, _adjoint(body, column)))
        flat = body.Squeeze(diagonal, [rank - 2, rank - 1, rank])
        return [rest], [body.Squeeze(column, [rank - 1]), flat]

    _, (columns, diagonal) = repeat(op, op.size(z, rank - 2), [z], step)
    axes = list(range(1, rank - 1))
    failed = op.Not(op.Greater(op.Transpose(diagonal, perm=[*axes, 0]), 0.0))
    factor = mark_complex(op.Transpose(columns, perm=[*axes, rank - 1, 0, rank]))
    return _narrow(op, _adjoint(op, factor) if upper else factor, self), first_true(op, failed)


@lowering("aten::cholesky", complex=True)  # by name, as in linalg_factorizations
def cholesky(op: OpBuilder, self: ir.Value, upper: bool = False) -> ir.Value:
    return linalg_cholesky_ex(op, self, upper=upper)[0]


def _whole(op: OpBuilder, factor: ir.Value, upper: bool) -> ir.Value:
    """Return the Hermitian matrix of a Cholesky factor."""
    factor = _triangle(op, _wide(op, factor), upper)
    return _product(op, *((_adjoint(op, factor), factor) if upper else (factor, _adjoint(op, factor))))


@lowering(aten.cholesky_solve.default, complex=True)
def cholesky_solve(op: OpBuilder, self: ir.Value, input2: ir.Value, upper: bool = False) -> ir.Value:
    return _narrow(op, _solved(op, _whole(op, input2, upper), _wide(op, self)), self)


@lowering(aten.cholesky_inverse.default, complex=True)
def cholesky_inverse(op: OpBuilder, self: ir.Value, upper: bool = False) -> ir.Value:
    return linalg_inv_ex(op, _narrow(op, _whole(op, self, upper), self))[0]


# ---- spectra


def _every_second(op: OpBuilder, values: ir.Value) -> ir.Value:
    """Drop the second of each pair: the real matrix has every eigenvalue and singular value twice."""
    return op.Slice(values, [0], [2**63 - 1], [op.rank(values) - 1], [2])


def _no_vectors(wanted: bool, name: str) -> None:
    if wanted:
        raise LoweringError(
            f"The {name} of a complex matrix are defined up to a phase, and have no lowering; its values alone have "
            "(torch.linalg.svdvals, torch.linalg.eigvalsh)."
        )


@lowering(aten._linalg_eigh.default, complex=True)
def linalg_eigh(op: OpBuilder, A: ir.Value, UPLO: str = "L", compute_v: bool = True) -> tuple[ir.Value, ...]:
    _no_vectors(compute_v, "eigenvectors")
    z = _wide(op, A)
    upper = UPLO.upper() == "U"
    x, y = parts(op, z)
    edge = 1 if upper else -1
    half, above, below = (
        op.Trilu(x, upper=int(upper)),
        op.Trilu(x, edge, upper=int(upper)),
        op.Trilu(y, edge, upper=int(upper)),
    )
    swapped = [op.Transpose(p, perm=[*range(op.rank(x) - 2), op.rank(x) - 1, op.rank(x) - 2]) for p in (above, below)]
    hermitian = joined(op, op.Add(half, swapped[0]), op.Sub(below, swapped[1]))
    values, _ = symmetric_eigen(op, _matrix(op, hermitian))
    return op.cast(_every_second(op, values), op.dtype(A)), _nothing(op, A)


def _nothing(op: OpBuilder, like: ir.Value) -> ir.Value:
    return mark_complex(op.copy(op.constant(torch.zeros(0, 2).numpy(), op.dtype(like))))


@lowering(aten._linalg_svd.default, complex=True)
def linalg_svd(
    op: OpBuilder, A: ir.Value, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[ir.Value, ...]:
    _no_vectors(compute_uv, "singular vectors")
    z = _wide(op, A)
    m, n = op.size(z, -3), op.size(z, -2)
    _, _, lengths = orthogonalized(op, _matrix(op, z))
    values = take_slice(op, _every_second(op, lengths), op.rank(lengths) - 1, 0, op.size_min(m, n))
    return _nothing(op, A), op.cast(values, op.dtype(A)), _nothing(op, A)


@lowering(aten.linalg_svdvals.default, complex=True)
def linalg_svdvals(op: OpBuilder, A: ir.Value, *, driver: str | None = None) -> ir.Value:
    return linalg_svd(op, A, compute_uv=False)[1]


@lowering(aten.linalg_eigvalsh.default, complex=True)
def linalg_eigvalsh(op: OpBuilder, self: ir.Value, UPLO: str = "L") -> ir.Value:
    return linalg_eigh(op, self, UPLO, compute_v=False)[0]


@lowering(aten.linalg_eig.default, aten._linalg_eigvals.default, aten.linalg_eigvals.default, complex=True)
def linalg_eig_of_complex(op: OpBuilder, self: ir.Value) -> ir.Value:
    return linalg_eig(op, self)


_UNLOWERED = (
    aten.geqrf.default,
    aten.linalg_householder_product.default,
    aten.linalg_ldl_factor_ex.default,
    aten.linalg_ldl_solve.default,
    aten.linalg_lstsq.default,
    aten.linalg_qr.default,
    aten.ormqr.default,
)


@lowering(*_UNLOWERED, complex=True)
def unlowered(op: OpBuilder, *args: object, **kwargs: object) -> ir.Value:
    raise LoweringError(
        "This factorization has no form for complex matrices, as inverses, solutions, pseudoinverses, LU and Cholesky "
        "have; torch.linalg.pinv(A) @ b solves a least-squares problem."
    )


@lowering(aten.linalg_pinv.atol_rtol_tensor, complex=True)
def linalg_pinv(
    op: OpBuilder,
    self: ir.Value,
    *,
    atol: ir.Value | None = None,
    rtol: ir.Value | None = None,
    hermitian: bool = False,
) -> ir.Value:
    z = _wide(op, self)
    if hermitian:
        lower = _triangle(op, z, upper=False)
        strict = _triangle(op, mark_complex(op.Sub(z, as_complex(op, _diagonal(op, z)))), upper=False)
        z = mark_complex(op.Add(lower, _adjoint(op, strict)))
    eps = torch.finfo(torch.float64 if self.dtype == DOUBLE else torch.float32).eps
    size = op.size_max(op.size(self, -2), op.size(self, -3))
    return _narrow(op, _of_matrix(op, pseudoinverse(op, _matrix(op, z), atol, rtol, size, eps)), self)


def _diagonal(op: OpBuilder, z: ir.Value) -> ir.Value:
    """Return the real parts on the diagonal of square matrices, zero elsewhere."""
    n = op.size(z, -2)
    return op.Mul(parts(op, z)[0], identity_like(op, [], n, n))
