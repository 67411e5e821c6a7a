"""Search in sorted sequences, membership, counts and histograms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import promote, to_ir
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder import OpBuilder
    from onnxops_decomp.dtypes import Operand
    from onnxops_decomp.sizes import Size

aten = torch.ops.aten

BOOL, DOUBLE, INT32, INT64 = ir.DataType.BOOL, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64


def _positions(op: OpBuilder, sequence: ir.Value, values: Operand, right: bool, out_int32: bool) -> ir.Value:
    """Count, for each value, the elements of the sorted sequence that stand before it.

    Args:
        op: Builder.
        sequence: Sorted along its last dimension; 1-D, or with the leading dimensions of ``values``.
        values: What is looked for.
        right: Whether equal elements stand before.
        out_int32: Whether the result is INT32.
    """
    sequence, sought = promote(op, sequence, values)
    if op.rank(sequence) > 1:
        sequence = op.Unsqueeze(sequence, [op.rank(sequence) - 1])
    last = op.rank(sought)
    sought = op.Unsqueeze(sought, [last])
    # Not the opposite comparison: that is how NaN comes last.
    after = op.Greater(sequence, sought) if right else op.GreaterOrEqual(sequence, sought)
    count = op.ReduceSum(op.cast(op.Not(after), INT64), [last], keepdims=0)
    return op.cast(count, INT32) if out_int32 else count


@lowering(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    op: OpBuilder,
    sorted_sequence: ir.Value,
    self: Operand,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: ir.Value | None = None,
) -> ir.Value:
    if sorter is not None:
        sorted_sequence = op.GatherElements(sorted_sequence, sorter, axis=-1)
    return _positions(op, sorted_sequence, self, right or side == "right", out_int32)


@lowering(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(
    op: OpBuilder, self: Operand, boundaries: ir.Value, out_int32: bool = False, right: bool = False
) -> ir.Value:
    return _positions(op, boundaries, self, right, out_int32)


@lowering(aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar, aten.isin.Scalar_Tensor)
def isin(
    op: OpBuilder, elements: Operand, test_elements: Operand, assume_unique: bool = False, invert: bool = False
) -> ir.Value:
    left, right = promote(op, elements, test_elements)
    last = op.rank(left)
    same = op.Equal(op.Unsqueeze(left, [last]), op.Reshape(right, [-1]))
    found = op.cast(op.ReduceMax(op.cast(same, ir.DataType.UINT8), [last], keepdims=0), BOOL)
    return op.Not(found) if invert else found


# ---- counts


def counted(op: OpBuilder, index: ir.Value, weight: ir.Value, bins: Size) -> ir.Value:
    """Sum weights by index.

    Args:
        op: Builder.
        index: 1-D INT64 indices of bins.
        weight: 1-D weights.
        bins: Number of bins.

    Returns:
        1-D sums, of the dtype of the weights.
    """
    empty = op.expand(op.constant(0, op.dtype(weight)), [bins])
    return op.ScatterElements(empty, index, weight, axis=0, reduction="add")


@lowering(aten.bincount.default)
def bincount(op: OpBuilder, self: ir.Value, weights: ir.Value | None = None, minlength: Size = 0) -> ir.Value:
    index = op.cast(self, INT64)
    largest = op.ReduceMax(index, keepdims=0)
    # Of no elements the maximum is the smallest integer, and minlength decides.
    bins = op.Max(op.Add(largest, 1), minlength)
    if weights is None:
        return counted(op, index, op.Expand(op.constant(1), op.Shape(index)), bins)
    if weights.dtype != ir.DataType.FLOAT:
        weights = op.cast(weights, DOUBLE)
    return counted(op, index, weights, bins)


def _histogram_range(op: OpBuilder, value: ir.Value, min: float, max: float) -> tuple[ir.Value, ir.Value]:
    """Return the range of a histogram: that of the data if none is given, and never an empty one."""
    dtype = op.dtype(value)
    if min != max:
        return op.constant(min, dtype), op.constant(max, dtype)
    if min != 0:
        return op.constant(min - 1, dtype), op.constant(max + 1, dtype)
    low, high = op.ReduceMin(value, keepdims=0), op.ReduceMax(value, keepdims=0)
    margin = op.cast(op.Equal(low, high), dtype)
    return op.Sub(low, margin), op.Add(high, margin)


@lowering(aten.histc.default)
def histc(op: OpBuilder, self: ir.Value, bins: int = 100, min: float = 0, max: float = 0) -> ir.Value:
    dtype = op.dtype(self)
    value = op.Reshape(self, [-1])
    low, high = _histogram_range(op, value, min, max)
    counts = binned(op, value, low, high, bins, None)
    return op.cast(counts, dtype)


def binned(
    op: OpBuilder, value: ir.Value, low: ir.Value, high: ir.Value, bins: int, weight: ir.Value | None
) -> ir.Value:
    """Sum the weights (1 for None) of 1-D values in bins of equal width; the last bin includes its upper bound."""
    inside = op.And(op.GreaterOrEqual(value, low), op.LessOrEqual(value, high))
    place = op.Mul(op.Div(op.Sub(value, low), op.Sub(high, low)), float(bins))
    index = op.cast(op.Where(inside, place, 0), INT64)
    index = op.Min(index, bins - 1)
    share = op.cast(inside, to_ir(torch.float32) if weight is None else op.dtype(weight))
    return counted(op, index, share if weight is None else op.Mul(share, weight), bins)
