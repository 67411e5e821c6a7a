"""Embeddings and bags of embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.errors import LoweringError
from onnxops_decomp.formulas.operands import arange
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.spec.inference import mark_nonnegative

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

aten = torch.ops.aten

_MEAN, _MAX = 1, 2


@lowering(aten.embedding.default)
def embedding(
    op: OpBuilder,
    weight: ir.Value,
    indices: ir.Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> ir.Value:
    return op.Gather(weight, mark_nonnegative(indices))


@lowering(aten.embedding_renorm.default)
def embedding_renorm(op: OpBuilder, self: ir.Value, indices: ir.Value, max_norm: float, norm_type: float) -> ir.Value:
    used = op.Reshape(indices, [-1, 1])
    rows = op.Gather(self, op.Reshape(indices, [-1]))
    norms = _norms(op, rows, norm_type)
    # torch adds 1e-7 to the norm that it divides by.
    scale = op.Div(max_norm, op.Add(norms, 1e-7))
    scaled = op.Mul(rows, op.Where(op.Greater(norms, max_norm), scale, op.constant(1.0, op.dtype(self))))
    # A row that is used twice is written twice with the same contents.
    return op.ScatterND(self, used, scaled)


def _norms(op: OpBuilder, rows: ir.Value, order: float) -> ir.Value:
    if order == 2:
        return op.ReduceL2(rows, [1])
    if order == 1:
        return op.ReduceL1(rows, [1])
    if order == float("inf"):
        return op.ReduceMax(op.Abs(rows), [1])
    if order <= 0:
        raise LoweringError(f"embedding with a norm of order {order} is not supported; use a positive order.")
    return op.Pow(op.ReduceSum(op.Pow(op.Abs(rows), order), [1]), 1.0 / order)


def _bag(
    op: OpBuilder,
    weight: ir.Value,
    indices: ir.Value,
    offsets: ir.Value,
    mode: int,
    per_sample_weights: ir.Value | None,
    include_last_offset: bool,
    padding_idx: Size | None,
) -> tuple[ir.Value | None, ...]:
    """Reduce the embeddings of each bag.

    The other results of torch serve the backward pass, and their contents differ between devices; there are none here.
    """
    int64, dtype = ir.DataType.INT64, op.dtype(weight)
    indices, offsets = op.cast(indices, int64), op.cast(offsets, int64)
    starts = op.Slice(offsets, [0], [-1]) if include_last_offset else offsets
    places = arange(op, op.size(indices, 0))
    begun = op.cast(op.LessOrEqual(op.Unsqueeze(starts, [1]), places), int64)
    bag = op.Sub(op.ReduceSum(begun, [0], keepdims=0), 1)
    counts = None if padding_idx is None else op.Not(op.Equal(indices, padding_idx))
    summed = counts
    if include_last_offset and counts is None and dtype != ir.DataType.DOUBLE:
        # Where the last offset is not the number of indices, PyTorch ends the last bag there in its fast sums only. All
        # else, the number that a mean divides by included, goes on to the end of the indices.
        summed = op.Less(places, op.Slice(offsets, [-1], [2**63 - 1]))
    rows = op.Gather(weight, indices)
    bags = op.size(starts, 0)
    if mode == _MAX:
        return _largest(op, rows, bag, counts, bags), None, None, None
    if per_sample_weights is not None:
        rows = op.Mul(rows, op.Unsqueeze(per_sample_weights, [1]))
    result = _summed(op, rows, bag, summed, bags)
    if mode == _MEAN:
        ones = op.expand(op.constant([[1.0]], dtype), [op.size(indices, 0), 1])
        result = op.Div(result, op.Max(_summed(op, ones, bag, counts, bags), 1.0))
    return result, None, None, None


def _summed(op: OpBuilder, rows: ir.Value, bag: ir.Value, counts: ir.Value | None, bags: Size) -> ir.Value:
    """Add up the rows of each bag, those that do not count left out; half floats are added up in float."""
    dtype = op.dtype(rows)
    rows = op.cast(rows, ir.DataType.FLOAT) if dtype.bitwidth < 32 else rows
    zero = op.constant([[0.0]], op.dtype(rows))
    if counts is not None:
        rows = op.Where(op.Unsqueeze(counts, [1]), rows, zero)
    nothing = op.expand(zero, [bags, op.size(rows, 1)])
    return op.cast(op.ScatterND(nothing, op.Unsqueeze(bag, [1]), rows, reduction="add"), dtype)


def _largest(op: OpBuilder, rows: ir.Value, bag: ir.Value, counts: ir.Value | None, bags: Size) -> ir.Value:
    """Return the largest element of the rows of each bag; 0 for an empty bag."""
    member = op.Equal(op.Unsqueeze(arange(op, bags), [1]), op.Unsqueeze(bag, [0]))
    if counts is not None:
        member = op.And(member, op.Unsqueeze(counts, [0]))
    lowest = op.constant(float("-inf"), op.dtype(rows))
    spread = op.Where(op.Unsqueeze(member, [2]), op.Unsqueeze(rows, [0]), lowest)
    filled = op.ReduceMax(op.cast(member, ir.DataType.INT64), [1])
    largest = op.ReduceMax(spread, [1], keepdims=0)
    return op.Where(op.cast(filled, ir.DataType.BOOL), largest, op.constant(0.0, op.dtype(rows)))


@lowering(aten.embedding_bag.default, aten.embedding_bag.padding_idx)
def embedding_bag(
    op: OpBuilder,
    weight: ir.Value,
    indices: ir.Value,
    offsets: ir.Value,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: ir.Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[ir.Value | None, ...]:
    padding: Size | None = padding_idx
    if padding_idx is not None and padding_idx < 0:
        padding = op.size_add(op.size(weight, 0), padding_idx)
    return _bag(op, weight, indices, offsets, mode, per_sample_weights, include_last_offset, padding)


@lowering(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag_forward(
    op: OpBuilder,
    weight: ir.Value,
    indices: ir.Value,
    offsets: ir.Value,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: ir.Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[ir.Value | None, ...]:
    padding = None if padding_idx < 0 else padding_idx
    return _bag(op, weight, indices, offsets, mode, per_sample_weights, include_last_offset, padding)


@lowering(aten.one_hot.default)
def one_hot(op: OpBuilder, self: ir.Value, num_classes: Size = -1) -> ir.Value:
    """As many classes as the largest one asks for where no number is given."""
    if isinstance(num_classes, int) and num_classes == -1:
        num_classes = op.Add(op.ReduceMax(self, keepdims=0), 1)
    classes = op.Range(0, num_classes, 1)
    return op.cast(op.Equal(op.Unsqueeze(self, [op.rank(self)]), classes), ir.DataType.INT64)
