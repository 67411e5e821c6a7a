"""Linear least squares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.formulas.products import zero_if_empty
from onnxops_decomp.lowerings.layout.slicing import take_slice
from onnxops_decomp.lowerings.linalg.matrices import DOUBLE, INT64, Grid, wide
from onnxops_decomp.lowerings.linalg.solvers import is_vector
from onnxops_decomp.lowerings.linalg.spectral import inverse_of, orthogonalized, significant
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

aten = torch.ops.aten


@lowering(aten.linalg_lstsq.default, complex=None)
def linalg_lstsq(
    op: OpBuilder, self: ir.Value, b: ir.Value, rcond: float | None = None, *, driver: str | None = None
) -> tuple[ir.Value | None, ...]:
    """Multiply with the pseudoinverse, which gives the solution of least norm that all drivers look for.

    Returns:
        The solution, and of residuals, rank and singular values those that the driver computes; the others are empty.
        Residuals are None where sizes or data decide whether they have dimensions of a batch.
    """
    dtype = op.dtype(self)
    grid, matrix, vector = Grid(op, self), wide(op, self), is_vector(op, self, b)
    right = wide(op, b)
    right = grid.marked(op.Unsqueeze(right, [grid.rank_of(op, b)])) if vector else right
    m, n = grid.m, grid.n
    eps = torch.finfo(torch.float64 if dtype == DOUBLE else torch.float32).eps
    rotated, v, lengths = orthogonalized(op, matrix)
    rtol = None if rcond is None else op.constant(float(rcond), DOUBLE)
    counts = significant(op, lengths, None, rtol, op.size_max(m, n), eps)
    solution = grid.matmul(op, inverse_of(op, rotated, v, lengths, counts), right)
    solution = grid.marked(zero_if_empty(op, solution, m))
    rank = op.ReduceSum(op.cast(counts, INT64), [op.rank(lengths) - 1], keepdims=0)
    values = take_slice(op, lengths, op.rank(lengths) - 1, 0, op.size_min(m, n))
    nothing = op.constant([], dtype)
    residuals: ir.Value | None = nothing
    if driver in ("gels", "gelsd", "gelss") and not (isinstance(m, int) and isinstance(n, int) and m <= n):
        rest = grid.length(op, op.Sub(grid.matmul(op, matrix, solution), right))
        squares = op.cast(op.ReduceSumSquare(rest, [op.rank(rest) - 2], keepdims=0), dtype)
        residuals = _where_of_full_rank(op, squares, m, n, None if driver == "gels" else rank)
    if driver == "gels":
        rank = op.constant([], INT64)
    found = op.Squeeze(solution, [grid.rank_of(op, solution) - 1]) if vector else solution
    return (
        grid.narrow(op, found, self),
        residuals,
        rank,
        op.cast(values, dtype) if driver in ("gelsd", "gelss") else nothing,
    )


def _where_of_full_rank(op: OpBuilder, residuals: ir.Value, m: Size, n: Size, rank: ir.Value | None) -> ir.Value | None:
    """Return residuals, or none of them where there are not more rows than columns or a rank that is given is not full.

    None if that decides how many dimensions they have.
    """
    if rank is None and isinstance(m, int) and isinstance(n, int):
        return residuals
    if op.rank(residuals) != 1:
        return None
    full = op.Greater(op.vector([m]), op.vector([n]))
    if rank is not None:
        full = op.And(full, op.Equal(op.Reshape(rank, [1]), op.vector([n])))
    return op.Slice(residuals, [0], op.Mul(op.cast(full, INT64), op.Shape(residuals)), [0])
