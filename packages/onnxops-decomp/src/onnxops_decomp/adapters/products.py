"""Matrix products: integer ones, and Einsum before it was an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.builder.forms import adapter
from onnxops_decomp.formulas.loops import repeat_one
from onnxops_decomp.formulas.operands import rank_of
from onnxops_decomp.formulas.products import einsum

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

_T = ir.DataType


@adapter("MatMul", below=9)
def matmul_of_integers(op: OpBuilder, a: ir.Value, b: ir.Value, *, older: OpBuilder) -> ir.Value:
    if op.dtype(a).is_floating_point():
        return older.MatMul(a, b)
    ranks = rank_of(op, a, "MatMul", 9), rank_of(op, b, "MatMul", 9)
    left = op.Unsqueeze(a, [0]) if ranks[0] == 1 else a
    right = op.Unsqueeze(b, [1]) if ranks[1] == 1 else b

    columns, rows = max(ranks[0], 2) - 1, max(ranks[1], 2) - 2

    def step(body: OpBuilder, state: ir.Value, index: ir.Value) -> ir.Value:
        column, row = body.Gather(left, index, axis=columns), body.Gather(right, index, axis=rows)
        return body.Add(state, body.Mul(column, row))

    # Term after term, because runtimes add up integers as doubles. There may be none.
    nothing = op.Mul(op.Mul(op.ReduceSum(left, [columns]), op.ReduceSum(right, [rows])), 0)
    total = repeat_one(op, nothing, op.size(left, columns), step)
    gone = [axis for axis, rank in ((-2, ranks[0]), (-1, ranks[1])) if rank == 1]
    return op.Squeeze(total, gone) if gone else total


@adapter("MatMulInteger", below=10)
def matmul_integer(
    op: OpBuilder,
    a: ir.Value,
    b: ir.Value,
    a_zero_point: ir.Value | None = None,
    b_zero_point: ir.Value | None = None,
) -> ir.Value:
    left, right = op.cast(a, _T.INT32), op.cast(b, _T.INT32)
    if a_zero_point is not None:
        zero = op.cast(a_zero_point, _T.INT32)
        # One zero point for each row.
        left = op.Sub(left, op.Unsqueeze(zero, [-1]) if op.rank(zero) == 1 else zero)
    if b_zero_point is not None:
        right = op.Sub(right, op.cast(b_zero_point, _T.INT32))
    return op.MatMul(left, right)


adapter("Einsum", below=12)(einsum)
