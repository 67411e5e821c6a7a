"""Distinct elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import torch

from onnxops_decomp.lowerings.indexing.sorting import sorted_along
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

aten = torch.ops.aten

BOOL, INT64, UINT8 = ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.UINT8


def _nothing(op: OpBuilder) -> ir.Value:
    """Return what torch gives for a result that is not asked for."""
    return op.constant(np.zeros((0,), np.int64))


def _unique(
    op: OpBuilder, value: ir.Value, dim: int | None, return_inverse: bool, return_counts: bool
) -> tuple[ir.Value, ir.Value, ir.Value]:
    minds_nan = op.minds_nan(value)
    if dim is None and minds_nan:
        values, inverse, counts = _distinct_floats(op, value)
        return values, inverse if return_inverse else _nothing(op), counts if return_counts else _nothing(op)
    # Floats are told apart by their places in order, for the sake of NaN.
    keys = _distinct_floats(op, value)[1] if minds_nan else op.cast(value, INT64) if value.dtype == BOOL else value
    values, first, inverse, counts = op.emit_many("Unique", 4, keys, axis=dim, sorted=1)
    values = op.Gather(value, first, axis=dim) if minds_nan else values
    if return_inverse and dim is None:
        inverse = op.reshape(inverse, op.sizes(value))
    return (
        op.cast(values, op.dtype(value)),
        inverse if return_inverse else _nothing(op),
        counts if return_counts else _nothing(op),
    )


def _distinct_floats(op: OpBuilder, value: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return distinct elements in order, the place of each element among them, and how often each occurs.

    Every NaN is distinct and greater than all numbers; the kernels of Unique take NaN for equal to anything.
    """
    flat, order = sorted_along(op, op.Reshape(value, [-1]), 0, False)
    starts = _run_starts(op, flat, 0)
    run = op.Sub(op.CumSum(op.cast(starts, INT64), op.constant(0)), 1)
    inverse = op.ScatterElements(op.Mul(run, 0), order, run, axis=0)
    return op.Compress(flat, starts, axis=0), op.reshape(inverse, op.sizes(value)), _run_lengths(op, starts, run)


@lowering(aten._unique2.default)
def unique2(
    op: OpBuilder, self: ir.Value, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[ir.Value, ir.Value, ir.Value]:
    return _unique(op, self, None, return_inverse, return_counts)


@lowering(aten._unique.default)
def unique(
    op: OpBuilder, self: ir.Value, sorted: bool = True, return_inverse: bool = False
) -> tuple[ir.Value, ir.Value]:
    return _unique(op, self, None, return_inverse, False)[:2]


@lowering(aten.unique_dim.default)
def unique_dim(
    op: OpBuilder,
    self: ir.Value,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[ir.Value, ir.Value, ir.Value]:
    # torch gives inverse and counts here whether asked for or not.
    return _unique(op, self, dim, True, True)


def _run_starts(op: OpBuilder, value: ir.Value, dim: int) -> ir.Value:
    """Return, along ``dim``, which slices differ from the one before; the first does."""
    before, after = op.Slice(value, [0], [-1], [dim]), op.Slice(value, [1], [2**63 - 1], [dim])
    differ = op.cast(op.Not(op.Equal(before, after)), UINT8)
    others = [axis for axis in range(op.rank(value)) if axis != dim]
    if others:
        differ = op.ReduceMax(differ, others, keepdims=0)
    return op.cast(op.Concat(_first_flag(op, value, dim), differ, axis=0), BOOL)


def _first_flag(op: OpBuilder, value: ir.Value, dim: int) -> ir.Value:
    """Return a 1 for the first slice; nothing for no slices."""
    size = op.size(value, dim)
    if isinstance(size, int):
        return op.constant(np.ones((min(size, 1),), np.uint8))
    return op.expand(op.constant(1, UINT8), [op.size_min(size, 1)])


@lowering(aten.unique_consecutive.default)
def unique_consecutive(
    op: OpBuilder, self: ir.Value, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[ir.Value, ir.Value, ir.Value]:
    value, axis = (op.Reshape(self, [-1]), 0) if dim is None else (self, dim % op.rank(self))
    starts = _run_starts(op, value, axis)
    run = op.Sub(op.CumSum(op.cast(starts, INT64), op.constant(0)), 1)
    inverse = op.reshape(run, op.sizes(self)) if dim is None else run
    wanted = (return_inverse, return_counts) if dim is None else (True, True)
    return (
        op.Compress(value, starts, axis=axis),
        inverse if wanted[0] else _nothing(op),
        _run_lengths(op, starts, run) if wanted[1] else _nothing(op),
    )


def _run_lengths(op: OpBuilder, starts: ir.Value, run: ir.Value) -> ir.Value:
    """Return the lengths of runs: the distances between their starts."""
    positions = op.Squeeze(op.NonZero(starts), [0])
    ends = op.Concat(op.Slice(positions, [1], [2**63 - 1], [0]), op.Shape(run), axis=0)
    return op.Sub(ends, positions)


@lowering(aten.unique_dim_consecutive.default)
def unique_dim_consecutive(
    op: OpBuilder, self: ir.Value, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[ir.Value, ir.Value, ir.Value]:
    return unique_consecutive(op, self, return_inverse, return_counts, dim)
