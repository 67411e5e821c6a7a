"""Linear least squares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.lowerings.linalg_factorizations import DOUBLE, INT64, wide
from onnxops_decomp.lowerings.linalg_solvers import is_vector
from onnxops_decomp.lowerings.linalg_spectral import inverse_of, orthogonalized, significant
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.lowerings.slicing import take_slice

if TYPE_CHECKING:
    from onnxops_decomp.builder import OpBuilder

aten = torch.ops.aten


@lowering(aten.linalg_lstsq.default)
def linalg_lstsq(
    op: OpBuilder, self: ir.Value, b: ir.Value, rcond: float | None = None, *, driver: str | None = None
) -> tuple[ir.Value, ...]:
    """Multiply with the pseudoinverse, which gives the solution of least norm that all drivers look for.

    Returns:
        The solution, and of residuals, rank and singular values those that the driver computes; the others are empty.
    """
    dtype = op.dtype(self)
    matrix, vector = wide(op, self), is_vector(op, self, b)
    right = op.Unsqueeze(wide(op, b), [op.rank(b)]) if vector else wide(op, b)
    m, n = op.sizes(matrix)[-2:]
    eps = torch.finfo(torch.float64 if dtype == DOUBLE else torch.float32).eps
    rotated, v, lengths = orthogonalized(op, matrix)
    rtol = None if rcond is None else op.constant(float(rcond), DOUBLE)
    counts = significant(op, lengths, None, rtol, op.size_max(m, n), eps)
    solution = op.MatMul(inverse_of(op, rotated, v, lengths, counts), right)
    rank = op.ReduceSum(op.cast(counts, INT64), [op.rank(lengths) - 1], keepdims=0)
    values = take_slice(op, lengths, op.rank(lengths) - 1, 0, op.size_min(m, n))
    residuals = nothing = op.constant([], dtype)
    if driver == "gels":
        rank = op.constant([], INT64)
        if isinstance(m, int) and isinstance(n, int) and m > n:
            rest = op.Sub(op.MatMul(matrix, solution), right)
            residuals = op.cast(op.ReduceSumSquare(rest, [op.rank(rest) - 2], keepdims=0), dtype)
    found = op.cast(op.Squeeze(solution, [op.rank(solution) - 1]) if vector else solution, dtype)
    return found, residuals, rank, op.cast(values, dtype) if driver in ("gelsd", "gelss") else nothing
