"""Batches of real or complex matrices in the precision that the loops of linear algebra compute in.

A complex matrix has a trailing dimension of 2 behind its shape (..., m, n), so that axes counted from the front, and
positions shaped as :class:`Grid` shapes them, are those of the matrix in both cases. What else differs is in
:class:`Numbers`; the algorithms are written once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.dtypes import is_complex, mark_complex
from onnxops_decomp.lowerings.complex.numbers import joined, multiplied, parts, reciprocal
from onnxops_decomp.lowerings.complex.structure import prod_dim
from onnxops_decomp.lowerings.layout.joining import torch_broadcast_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

__all__ = [
    "DOUBLE",
    "INT32",
    "INT64",
    "Grid",
    "Numbers",
    "first_true",
    "identity_like",
    "same_batch",
    "steps_last",
    "swapped_rows",
    "wide",
]

DOUBLE, INT32, INT64 = ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64


def wide(op: OpBuilder, value: ir.Value) -> ir.Value:
    """Return ``value`` in the precision that the loops compute in."""
    result = op.cast(value, DOUBLE)
    return mark_complex(result) if is_complex(value) else result


class Numbers:
    """Arithmetic of real or complex tensors; shapes and axes are those of the numbers, without the trailing 2.

    Attributes:
        complex: Whether the numbers are complex.
        tail: Sizes behind the shape: none, or 2 for complex numbers.
    """

    def __init__(self, like: ir.Value) -> None:
        self.complex = is_complex(like)
        self.tail: list[Size] = [2] if self.complex else []

    def marked(self, value: ir.Value) -> ir.Value:
        """Return a value that is noted to be complex where the numbers are."""
        return mark_complex(value) if self.complex else value

    def rank_of(self, op: OpBuilder, value: ir.Value) -> int:
        """Return how many dimensions the numbers have."""
        return op.rank(value) - len(self.tail)

    def narrow(self, op: OpBuilder, value: ir.Value, like: ir.Value) -> ir.Value:
        """Return numbers in the precision of ``like``."""
        return self.marked(op.cast(value, op.dtype(like)))

    def flagged(self, op: OpBuilder, real: ir.Value) -> ir.Value:
        """Return real numbers or flags in the shape in which they broadcast against the numbers of this kind."""
        return op.Unsqueeze(real, [op.rank(real)]) if self.complex else real

    def of_real(self, op: OpBuilder, real: ir.Value) -> ir.Value:
        """Return real numbers as numbers of this kind."""
        if not self.complex:
            return real
        return mark_complex(op.Mul(self.flagged(op, real), op.constant([1.0, 0.0], op.dtype(real))))

    def one(self, op: OpBuilder) -> ir.Value:
        """Return the number 1."""
        return op.constant([1.0, 0.0] if self.complex else 1.0, DOUBLE)

    def nothing(self, op: OpBuilder, like: ir.Value) -> ir.Value:
        """Return an empty vector in the dtype of ``like``."""
        return self.marked(op.filled_with_zeros([0, *self.tail], op.dtype(like)))

    def real(self, op: OpBuilder, z: ir.Value) -> ir.Value:
        """Return the real parts."""
        return parts(op, z)[0] if self.complex else z

    def length(self, op: OpBuilder, z: ir.Value) -> ir.Value:
        """Return the absolute values."""
        return op.ReduceL2(z, [op.rank(z) - 1], keepdims=0) if self.complex else op.Abs(z)

    def magnitude(self, op: OpBuilder, z: ir.Value) -> ir.Value:
        """Return what LAPACK chooses pivots by: ``|x|``, and ``|x| + |y|`` for complex numbers."""
        return op.ReduceSum(op.Abs(z), [op.rank(z) - 1], keepdims=0) if self.complex else op.Abs(z)

    def is_zero(self, op: OpBuilder, z: ir.Value) -> ir.Value:
        """Tell which numbers are 0."""
        return op.Equal(self.magnitude(op, z), 0.0)

    def unit(self, op: OpBuilder, z: ir.Value) -> ir.Value:
        """Return ``z / |z|``, 0 for 0."""
        if not self.complex:
            return op.Sign(z)
        length = op.ReduceL2(z, [op.rank(z) - 1], keepdims=1)
        return mark_complex(op.Div(z, op.Where(op.Equal(length, 0.0), 1.0, length)))

    def conj(self, op: OpBuilder, z: ir.Value) -> ir.Value:
        """Return the conjugates."""
        return mark_complex(op.Mul(z, op.constant([1.0, -1.0], op.dtype(z)))) if self.complex else z

    def mul(self, op: OpBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
        """Return the products, element by element."""
        return multiplied(op, a, b) if self.complex else op.Mul(a, b)

    def scaled(self, op: OpBuilder, z: ir.Value, factor: ir.Value) -> ir.Value:
        """Return the product with real numbers."""
        return self.marked(op.Mul(z, self.flagged(op, factor)))

    def div(self, op: OpBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
        """Return the quotients, element by element."""
        return multiplied(op, a, reciprocal(op, b)) if self.complex else op.Div(a, b)

    def matmul(self, op: OpBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
        """Return the matrix products ``(..., m, k) x (..., k, n)``."""
        if not self.complex:
            return op.MatMul(a, b)
        (x, y), (u, v) = parts(op, a), parts(op, b)
        real, imag = op.Sub(op.MatMul(x, u), op.MatMul(y, v)), op.Add(op.MatMul(x, v), op.MatMul(y, u))
        return joined(op, real, imag)

    def prod(self, op: OpBuilder, z: ir.Value) -> ir.Value:
        """Multiply along the last axis."""
        if self.complex:
            return prod_dim(op, self.marked(z), -1)
        return op.ReduceProd(z, [op.rank(z) - 1], keepdims=0)

    def transposed(self, op: OpBuilder, z: ir.Value) -> ir.Value:
        """Return matrices with their last two axes exchanged."""
        rank = self.rank_of(op, z)
        axes = [*range(rank - 2), rank - 1, rank - 2]
        return self.marked(op.Transpose(z, perm=[*axes, rank] if self.complex else axes))

    def adjoint(self, op: OpBuilder, z: ir.Value) -> ir.Value:
        """Return the conjugate transposed matrices."""
        return self.transposed(op, self.conj(op, z))

    def triangle(self, op: OpBuilder, z: ir.Value, edge: int, *, upper: bool) -> ir.Value:
        """Zero what lies below diagonal number ``edge``, or above it if not ``upper``."""
        if not self.complex:
            return op.Trilu(z, edge, upper=int(upper)) if edge else op.Trilu(z, upper=int(upper))
        return joined(op, *(op.Trilu(part, edge, upper=int(upper)) for part in parts(op, z)))

    def hermitian(self, op: OpBuilder, z: ir.Value, *, upper: bool) -> ir.Value:
        """Fill the other triangle from the one that counts; the diagonal is real."""
        strict = self.triangle(op, z, 1 if upper else -1, upper=upper)
        half = op.Trilu(self.real(op, z), upper=int(upper))
        if self.complex:
            half = joined(op, half, parts(op, strict)[1])
        return self.marked(op.Add(half, self.adjoint(op, strict)))


class Grid(Numbers):
    """Positions in the matrices of a batch of shape (..., m, n), as ranges that broadcast against it.

    Attributes:
        rank: Rank of the batch.
        sizes: All sizes of the tensor that holds it.
        batch: Sizes before m and n.
    """

    def __init__(self, op: OpBuilder, matrix: ir.Value) -> None:
        super().__init__(matrix)
        self.rank = self.rank_of(op, matrix)
        self.sizes: list[Size] = op.sizes(matrix)
        self.batch: list[Size] = self.sizes[: self.rank - 2]
        self.row_axis, self.column_axis = self.rank - 2, self.rank - 1
        self.m, self.n = self.sizes[self.row_axis], self.sizes[self.column_axis]
        self.row_vector = op.Range(0, self.m, 1)
        self.rows = self.flagged(op, op.Unsqueeze(self.row_vector, [1]))
        self.columns = self.flagged(op, op.Range(0, self.n, 1))


def identity_like(op: OpBuilder, batch: Sequence[Size], m: Size, n: Size) -> ir.Value:
    """Return a batch of real (m, n) DOUBLE matrices with ones on the diagonal."""
    rows, columns = op.Unsqueeze(op.Range(0, m, 1), [1]), op.Unsqueeze(op.Range(0, n, 1), [0])
    return op.expand(op.cast(op.Equal(rows, columns), DOUBLE), [*batch, m, n])


def swapped_rows(op: OpBuilder, rows: ir.Value, j: ir.Value, pivot: ir.Value) -> ir.Value:
    """Return the row numbers with ``j`` and ``pivot`` (..., 1) exchanged."""
    return op.Where(op.Equal(rows, j), pivot, op.Where(op.Equal(rows, pivot), j, rows))


def steps_last(op: OpBuilder, stacked: ir.Value, rank: int | None = None) -> ir.Value:
    """Move the axis of the iterations behind the first ``rank`` axes of what each collected, by default all."""
    count = op.rank(stacked)
    rank = count - 1 if rank is None else rank
    return op.Transpose(stacked, perm=[*range(1, rank + 1), 0, *range(rank + 1, count)])


def first_true(op: OpBuilder, flags: ir.Value) -> ir.Value:
    """Return LAPACK's info: the 1-based position of the first true one of ``flags`` (..., k), 0 if there is none."""
    axis = op.rank(flags) - 1
    if op.size(flags, axis) == 0:
        return op.expand(op.constant(0, INT32), op.sizes(flags)[:-1])
    found = op.cast(flags, INT32)
    if not isinstance(op.size(flags, axis), int):
        # Of no flags there is no first one.
        found = op.Pad(found, [0] * (2 * axis + 1) + [1])
    position = op.Add(op.cast(op.ArgMax(found, axis=axis, keepdims=0), INT32), 1)
    return op.Mul(position, op.ReduceMax(found, [axis], keepdims=0))


def same_batch(op: OpBuilder, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Broadcast two stacks of matrices to each other's batch sizes."""
    grids = [Grid(op, a), Grid(op, b)]
    stacks = [(grid, value) for grid, value in zip(grids, (a, b), strict=True) if grid.batch]
    batch = stacks[0][0].batch if stacks else []
    if len(stacks) > 1:
        batch = torch_broadcast_sizes(op, [_batch_only(op, grid, value) for grid, value in stacks])
    first, second = (
        grid.marked(op.expand(value, [*batch, *grid.sizes[grid.rank - 2 :]]))
        for grid, value in zip(grids, (a, b), strict=True)
    )
    return first, second


def _batch_only(op: OpBuilder, grid: Grid, value: ir.Value) -> ir.Value:
    for axis in reversed(range(grid.row_axis, op.rank(value))):
        value = op.Gather(value, 0, axis=axis)
    return value
