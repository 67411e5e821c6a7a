"""Search in sorted sequences, and membership."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import promote
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.dtypes import Operand

__all__ = ["positions"]

aten = torch.ops.aten

BOOL, INT32, INT64 = ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64


def positions(op: OpBuilder, sequence: ir.Value, values: Operand, right: bool, out_int32: bool) -> ir.Value:
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
    length = op.size(sequence, -1)
    if op.dtype(sought).is_floating_point():
        # The first element that does not stand before: none stands behind NaN, and NaN behind none.
        after = op.Greater(sequence, sought) if right else op.GreaterOrEqual(sequence, sought)
        first = op.ReduceMin(op.Where(after, op.Range(0, length, 1), length), [last], keepdims=0)
        count = first if isinstance(length, int) and length else op.Min(first, length)
    else:
        before = op.LessOrEqual(sequence, sought) if right else op.Less(sequence, sought)
        count = op.ReduceSum(op.cast(before, INT64), [last], keepdims=0)
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
    return positions(op, sorted_sequence, self, right or side == "right", out_int32)


@lowering(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(
    op: OpBuilder, self: Operand, boundaries: ir.Value, out_int32: bool = False, right: bool = False
) -> ir.Value:
    return positions(op, boundaries, self, right, out_int32)


@lowering(aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar, aten.isin.Scalar_Tensor)
def isin(
    op: OpBuilder, elements: Operand, test_elements: Operand, assume_unique: bool = False, invert: bool = False
) -> ir.Value:
    left, right = promote(op, elements, test_elements)
    last = op.rank(left)
    same = op.Equal(op.Unsqueeze(left, [last]), op.Reshape(right, [-1]))
    found = op.cast(op.ReduceMax(op.cast(same, ir.DataType.UINT8), [last], keepdims=0), BOOL)
    return op.Not(found) if invert else found
