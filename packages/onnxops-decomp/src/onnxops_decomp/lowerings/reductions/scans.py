"""Running sums, products and extrema along a dimension."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.formulas.loops import repeat
from onnxops_decomp.lowerings.pointwise.elementary import log_of_sum
from onnxops_decomp.lowerings.reductions.over_dimensions import summed_dtype
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

aten = torch.ops.aten

BOOL, INT64, UINT8 = ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.UINT8

Step = Callable[["OpBuilder", ir.Value, ir.Value, Sequence[ir.Value]], Sequence[ir.Value]]


def _scan(op: OpBuilder, op_type: str, value: ir.Value, dim: int) -> ir.Value:
    """Emit CumSum or CumProd; of a 0-d tensor either is the tensor itself."""
    rank = op.rank(value)
    return value if rank == 0 else op.emit(op_type, value, op.constant(dim % rank))


@lowering(aten.cumsum.default)
def cumsum(op: OpBuilder, self: ir.Value, dim: int, dtype: torch.dtype | None = None) -> ir.Value:
    return _scan(op, "CumSum", summed_dtype(op, self, dtype), dim)


@lowering(aten.cumprod.default)
def cumprod(op: OpBuilder, self: ir.Value, dim: int, dtype: torch.dtype | None = None) -> ir.Value:
    return _scan(op, "CumProd", summed_dtype(op, self, dtype), dim)


def running(
    op: OpBuilder, data: ir.Value, dim: int, start: Sequence[ir.Value | float | int], step: Step
) -> list[ir.Value]:
    """Walk along a dimension with a state, and return all states, stacked along that dimension.

    Args:
        op: Builder.
        data: Tensor of rank 1 or more.
        dim: Dimension to walk along.
        start: For each part of the state what it starts from: a number in the dtype of ``data``, or a 0-d value.
        step: Called with the builder of the loop body, the slice of ``data``, its index and the state; returns the
            next state. Each part has the shape of the slice.
    """
    rank = op.rank(data)
    axis = dim % rank
    front = [axis, *(other for other in range(rank) if other != axis)]
    moved = op.Transpose(data, perm=front)
    length = op.size(data, axis)
    initial = [
        op.expand(part if isinstance(part, ir.Value) else op.constant(part, op.dtype(data)), op.sizes(moved)[1:])
        for part in start
    ]

    def at(body: OpBuilder, index: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        after = list(step(body, body.Gather(moved, index, axis=0), index, state))
        return after, after

    _, stacked = repeat(op, length, initial, at, parts=[op.sizes(moved)[1:]] * len(initial))
    back = [front.index(other) for other in range(rank)]
    return [op.Transpose(output, perm=back) for output in stacked]


def _extremum(op: OpBuilder, value: ir.Value, dim: int, op_type: str) -> tuple[ir.Value, ir.Value]:
    """Return the running extremum and where it was last met; NaN is the extremum from where it occurs."""
    if op.rank(value) == 0:
        return op.Identity(value), op.constant(0)
    dtype = op.dtype(value)
    keys = op.cast(value, UINT8) if dtype == BOOL else value
    minds_nan = op.minds_nan(value)

    def step(
        body: OpBuilder, element: ir.Value, index: ir.Value, state: Sequence[ir.Value]
    ) -> tuple[ir.Value, ir.Value]:
        best, where = state
        taken = body.emit(op_type, element, best)
        if minds_nan:
            taken = body.Or(body.And(taken, body.Not(body.IsNaN(best))), body.IsNaN(element))
        taken = body.Or(taken, body.Equal(index, 0))
        return body.Where(taken, element, best), body.Where(taken, index, where)

    values, indices = running(op, keys, dim, [0, op.constant(0)], step)
    return op.cast(values, dtype), indices


@lowering(aten.cummax.default)
def cummax(op: OpBuilder, self: ir.Value, dim: int) -> tuple[ir.Value, ir.Value]:
    return _extremum(op, self, dim, "GreaterOrEqual")


@lowering(aten.cummin.default)
def cummin(op: OpBuilder, self: ir.Value, dim: int) -> tuple[ir.Value, ir.Value]:
    return _extremum(op, self, dim, "LessOrEqual")


@lowering(aten.logcumsumexp.default, aten._logcumsumexp.default)
def logcumsumexp(op: OpBuilder, self: ir.Value, dim: int) -> ir.Value:
    if op.rank(self) == 0:
        return op.Identity(self)

    def step(body: OpBuilder, element: ir.Value, index: ir.Value, state: Sequence[ir.Value]) -> list[ir.Value]:
        return [log_of_sum(body, state[0], element, 1.0)]

    return running(op, self, dim, [-math.inf], step)[0]
