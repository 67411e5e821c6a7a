"""LDL factorization of symmetric matrices that need not be definite, and the solution of systems with it.

The pivots are blocks of one or two columns, chosen by the rule of Bunch and Kaufman as LAPACK's sytf2 does.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.errors import LoweringError
from onnxops_decomp.formulas.loops import repeat
from onnxops_decomp.lowerings.layout.shapes import swap_axes
from onnxops_decomp.lowerings.linalg.matrices import (
    DOUBLE,
    INT32,
    INT64,
    Grid,
    first_true,
    same_batch,
    steps_last,
    swapped_rows,
    wide,
)
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

aten = torch.ops.aten

BOOL = ir.DataType.BOOL

# A pivot of one column may let the rest of the matrix grow by 1 + 1 / alpha, one of two columns by its square.
_ALPHA = (1 + math.sqrt(17)) / 8


@dataclasses.dataclass(frozen=True)
class _Pivot:
    """What column ``j`` is eliminated with; each part has one element for each matrix, (..., 1, 1).

    Attributes:
        row: Row and column that change places with ``target``.
        target: ``j``, or the column after it where the block has two.
        is_block: Whether the block has two columns.
        is_zero: Whether the column is zero from the diagonal on.
    """

    row: ir.Value
    target: ir.Value
    is_block: ir.Value
    is_zero: ir.Value


def _element(op: OpBuilder, grid: Grid, matrix: ir.Value, row: ir.Value, column: ir.Value) -> ir.Value:
    """Return the element at a place that is the same in all matrices, (..., 1, 1)."""
    return op.Gather(op.Gather(matrix, row, axis=grid.row_axis), column, axis=grid.column_axis)


def _chosen(op: OpBuilder, grid: Grid, matrix: ir.Value, j: ir.Value, second: ir.Value) -> _Pivot:
    """Choose the block for column ``j``; the second column of a block before it stays as it is."""
    at = op.Unsqueeze(j, [0])
    column = op.Abs(op.Gather(matrix, at, axis=grid.column_axis))
    diagonal = op.Gather(column, at, axis=grid.row_axis)
    below = op.Where(op.Greater(grid.rows, j), column, 0.0)
    largest = op.ReduceMax(below, [grid.row_axis])
    row = op.ArgMax(below, axis=grid.row_axis, keepdims=1)
    is_row = op.Equal(grid.rows, row)
    candidate = op.Abs(op.ReduceSum(op.Where(is_row, matrix, 0.0), [grid.row_axis]))
    off_diagonal = op.And(op.GreaterOrEqual(grid.columns, j), op.Not(op.Equal(grid.columns, row)))
    across = op.ReduceMax(op.Where(off_diagonal, candidate, 0.0), [grid.column_axis])
    own = op.ReduceSum(op.Where(op.Equal(grid.columns, row), candidate, 0.0), [grid.column_axis])
    is_zero = op.And(op.Equal(op.Max(diagonal, largest), 0.0), op.Not(second))
    growth = op.Mul(op.Mul(largest, _ALPHA), op.Div(largest, op.Where(op.Greater(across, 0.0), across, 1.0)))
    stays = op.Or(op.GreaterOrEqual(diagonal, op.Mul(largest, _ALPHA)), op.GreaterOrEqual(diagonal, growth))
    stays = op.Or(stays, second)
    is_block = op.Not(op.Or(stays, op.GreaterOrEqual(own, op.Mul(across, _ALPHA))))
    target = op.Add(j, op.cast(is_block, INT64))
    return _Pivot(op.Where(stays, target, row), target, is_block, is_zero)


def _exchanged(op: OpBuilder, grid: Grid, matrix: ir.Value, j: ir.Value, pivot: _Pivot) -> ir.Value:
    """Exchange rows and columns of the part that is left; what is factorized already keeps its order."""
    order = op.expand(swapped_rows(op, grid.rows, pivot.target, pivot.row), grid.sizes)
    moved = op.GatherElements(matrix, order, axis=grid.row_axis)
    moved = op.GatherElements(moved, swap_axes(op, order, -2, -1), axis=grid.column_axis)
    left = op.And(op.GreaterOrEqual(grid.rows, j), op.GreaterOrEqual(grid.columns, j))
    return op.Where(left, moved, matrix)


def _eliminated(op: OpBuilder, grid: Grid, matrix: ir.Value, j: ir.Value, pivot: _Pivot) -> ir.Value:
    """Subtract what column ``j`` explains of the rest, alone or with the one after it, and leave L in its place."""
    at = op.Unsqueeze(j, [0])
    after = op.Min(op.Add(at, 1), op.size_sub(grid.n, 1))
    a, b, c = (_element(op, grid, matrix, *place) for place in ((at, at), (after, at), (after, after)))
    rest = op.Greater(grid.rows, op.Add(j, op.cast(pivot.is_block, INT64)))
    first, second = (op.Where(rest, op.Gather(matrix, place, axis=grid.column_axis), 0.0) for place in (at, after))
    alone = op.Div(first, op.Where(pivot.is_zero, 1.0, a))
    # The inverse of the block, scaled by its element off the diagonal so that nothing overflows.
    b = op.Where(pivot.is_block, b, 1.0)
    upper, lower = op.Div(a, b), op.Div(c, b)
    factor = op.Div(op.Div(1.0, op.Where(pivot.is_block, op.Sub(op.Mul(upper, lower), 1.0), 1.0)), b)
    left = op.Mul(op.Sub(op.Mul(first, lower), second), factor)
    right = op.Mul(op.Sub(op.Mul(second, upper), first), factor)
    left, right = op.Where(pivot.is_block, left, alone), op.Where(pivot.is_block, right, 0.0)
    outer = op.Add(op.MatMul(left, swap_axes(op, first, -2, -1)), op.MatMul(right, swap_axes(op, second, -2, -1)))
    result = op.Sub(matrix, outer)
    result = op.Where(op.And(rest, op.Equal(grid.columns, j)), left, result)
    own = op.And(op.And(rest, pivot.is_block), op.Equal(grid.columns, op.Add(j, 1)))
    return op.Where(own, right, result)


@lowering(aten.linalg_ldl_factor_ex.default)
def linalg_ldl_factor_ex(
    op: OpBuilder, self: ir.Value, *, hermitian: bool = False, check_errors: bool = False
) -> tuple[ir.Value, ...]:
    lower = op.Trilu(wide(op, self), upper=0)
    symmetric = op.Add(lower, swap_axes(op, op.Trilu(lower, -1, upper=0), -2, -1))
    grid = Grid(op, symmetric)

    def step(body: OpBuilder, j: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        matrix, second, last = state
        pivot = _chosen(body, grid, matrix, j, second)
        after = _eliminated(body, grid, _exchanged(body, grid, matrix, j, pivot), j, pivot)
        after = body.Where(second, matrix, after)
        number = body.Add(pivot.row, 1)
        number = body.Where(second, last, body.Where(pivot.is_block, body.Neg(number), number))
        flat = [body.Squeeze(part, [grid.row_axis, grid.column_axis]) for part in (number, pivot.is_zero)]
        return [after, pivot.is_block, number], flat

    start = [symmetric, *(op.expand(op.constant(0, dtype), [*grid.batch, 1, 1]) for dtype in (BOOL, INT64))]
    (packed, _, _), (pivots, zeros) = repeat(op, grid.n, start, step, parts=[grid.batch, grid.batch])
    result = op.cast(op.Trilu(packed, upper=0), op.dtype(self))
    return result, op.cast(steps_last(op, pivots), INT32), first_true(op, steps_last(op, zeros))


@lowering(aten.linalg_ldl_solve.default)
def linalg_ldl_solve(
    op: OpBuilder, LD: ir.Value, pivots: ir.Value, B: ir.Value, *, hermitian: bool = False
) -> ir.Value:
    numbers = op.Unsqueeze(op.cast(pivots, INT64), [op.rank(pivots)])
    packed, b = same_batch(op, wide(op, LD), wide(op, B))
    numbers = op.expand(numbers, [*op.sizes(packed)[:-1], 1])
    grid = Grid(op, b)
    first, second = _blocks(op, grid, numbers)
    columns = op.Range(0, grid.m, 1)
    diagonal = op.cast(op.Equal(grid.rows, columns), DOUBLE)
    below = op.cast(op.Equal(grid.rows, op.Add(columns, 1)), DOUBLE)
    # The block diagonal is stored where L is zero.
    inside = op.Mul(below, op.cast(swap_axes(op, first, -2, -1), DOUBLE))
    factor = op.Mul(op.Trilu(packed, -1, upper=0), op.Sub(1.0, inside))
    # Which row each column exchanged with which: its own, or for the first of two columns the one after it.
    target = op.Add(grid.rows, op.cast(first, INT64))
    source = op.Where(second, target, op.Sub(op.Abs(numbers), 1))
    half = _substituted(op, grid, factor, (target, source), b)
    own = op.ReduceSum(op.Mul(packed, diagonal), [grid.column_axis])
    off = op.ReduceSum(op.Mul(packed, inside), [grid.column_axis])
    half = _divided(op, grid, half, own, off, first, second)
    x = _substituted(op, grid, factor, (target, source), half, transposed=True)
    return op.cast(x, op.dtype(B))


def _substituted(
    op: OpBuilder,
    grid: Grid,
    factor: ir.Value,
    exchanged: tuple[ir.Value, ir.Value],
    b: ir.Value,
    *,
    transposed: bool = False,
) -> ir.Value:
    """Undo the exchanges and the unit triangle ``factor`` column by column; transposed in the opposite order."""

    def swap(body: OpBuilder, at: ir.Value, x: ir.Value) -> ir.Value:
        order = swapped_rows(body, grid.rows, *(body.Gather(part, at, axis=grid.row_axis) for part in exchanged))
        return body.GatherElements(x, body.expand(order, grid.sizes), axis=grid.row_axis)

    def step(body: OpBuilder, i: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        j = body.Sub(op.size_sub(grid.m, 1), i) if transposed else i
        at = body.Unsqueeze(j, [0])
        column = body.Gather(factor, at, axis=grid.column_axis)
        if not transposed:
            x = swap(body, at, state[0])
            return [body.Sub(x, body.Mul(column, body.Gather(x, at, axis=grid.row_axis)))], []
        explained = body.MatMul(swap_axes(body, column, -2, -1), state[0])
        x = body.Sub(state[0], body.Where(body.Equal(grid.rows, j), explained, 0.0))
        return [swap(body, at, x)], []

    return repeat(op, grid.m, [b], step)[0][0]


def _blocks(op: OpBuilder, grid: Grid, numbers: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Tell which columns are the first and the second of a block of two, each (..., m, 1)."""
    negative = op.Less(numbers, 0)

    def step(body: OpBuilder, j: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        is_part = body.Gather(negative, j, axis=grid.row_axis)
        return [body.And(is_part, body.Not(state[0]))], [state[0]]

    start = op.expand(op.constant(0, BOOL), [*grid.batch, 1])
    _, (second,) = repeat(op, grid.m, [start], step, parts=[[*grid.batch, 1]])
    second = op.Transpose(second, perm=[*range(1, grid.rank - 1), 0, grid.rank - 1])
    return op.And(negative, op.Not(second)), second


def _divided(
    op: OpBuilder, grid: Grid, b: ir.Value, own: ir.Value, off: ir.Value, first: ir.Value, second: ir.Value
) -> ir.Value:
    """Divide by the block diagonal, given by its elements on the diagonal and, in second rows, those beside it."""
    step = op.Sub(op.cast(first, INT64), op.cast(second, INT64))
    partner = op.Add(grid.rows, step)
    off = op.Where(first, op.GatherElements(off, partner, axis=grid.row_axis), off)
    is_block = op.Or(first, second)
    off = op.Where(is_block, off, 1.0)
    other = op.GatherElements(own, partner, axis=grid.row_axis)
    beside = op.GatherElements(b, op.expand(partner, grid.sizes), axis=grid.row_axis)
    mine, theirs = op.Div(own, off), op.Div(other, off)
    determinant = op.Sub(op.Mul(mine, theirs), 1.0)
    solved = op.Div(op.Sub(op.Mul(theirs, op.Div(b, off)), op.Div(beside, off)), determinant)
    return op.Where(is_block, solved, op.Div(b, own))


@lowering(aten.linalg_ldl_factor_ex.default, aten.linalg_ldl_solve.default, complex=True)
def complex_ldl(op: OpBuilder, *args: object, **kwargs: object) -> ir.Value:
    raise LoweringError(
        "The LDL factorization has no form for complex matrices. torch.linalg.lu_factor and lu_solve solve the same "
        "systems, torch.linalg.cholesky those of a positive definite matrix."
    )
