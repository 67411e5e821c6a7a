"""Losses that torch's own decompositions do not cover."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import promote, result_dtype
from onnxops_decomp.lowerings.pointwise.arithmetic import neg
from onnxops_decomp.lowerings.reductions.over_dimensions import mean
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

__all__ = ["MEAN", "NONE", "reduced"]

aten = torch.ops.aten

NONE, MEAN, SUM = 0, 1, 2


def reduced(op: OpBuilder, loss: ir.Value, reduction: int) -> ir.Value:
    """Return a loss for each element, their mean or their sum."""
    if reduction == NONE:
        return loss
    return mean(op, loss, None) if reduction == MEAN else op.ReduceSum(loss, keepdims=0)


def _weights(op: OpBuilder, like: ir.Value, weight: ir.Value | None, classes: ir.Value, counts: ir.Value) -> ir.Value:
    """Return the weight of each target, 0 where it does not count."""
    dtype = op.dtype(like)
    if weight is None:
        return op.cast(counts, dtype)
    return op.Where(counts, op.Gather(weight, classes), op.constant(0.0, dtype))


@lowering(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    op: OpBuilder, self: ir.Value, target: ir.Value, weight: ir.Value | None, reduction: int, ignore_index: Size
) -> tuple[ir.Value, ir.Value]:
    """Return the negative log likelihood and the sum of the weights that it was divided by."""
    axis = 0 if op.rank(self) == 1 else 1
    target = op.cast(target, ir.DataType.INT64)
    counts = op.Not(op.Equal(target, ignore_index))
    classes = op.Where(counts, target, op.constant(0))
    picked = op.Squeeze(op.GatherElements(self, op.Unsqueeze(classes, [axis]), axis=axis), [axis])
    weights = _weights(op, self, weight, classes, counts)
    # A target that is ignored gives 0, also where its log-likelihood is infinite.
    loss = op.Where(counts, op.Neg(op.Mul(picked, weights)), op.constant(0.0, op.dtype(self)))
    total = op.ReduceSum(weights, keepdims=0)
    if reduction == NONE:
        return loss, op.constant(0.0, op.dtype(self))
    summed = op.ReduceSum(loss, keepdims=0)
    return (op.Div(summed, total) if reduction == MEAN else summed), total


@lowering(aten.nll_loss.default, aten.nll_loss2d.default, aten.nll_loss_nd.default)
def nll_loss(
    op: OpBuilder,
    self: ir.Value,
    target: ir.Value,
    weight: ir.Value | None = None,
    reduction: int = MEAN,
    ignore_index: Size = -100,
) -> ir.Value:
    return nll_loss_forward(op, self, target, weight, reduction, ignore_index)[0]


@lowering(aten.margin_ranking_loss.default)
def margin_ranking_loss(
    op: OpBuilder,
    input1: ir.Value,
    input2: ir.Value,
    target: ir.Value,
    margin: float = 0.0,
    reduction: int = MEAN,
) -> ir.Value:
    # Integers wrap around before the margin, a Python float, makes floats of them.
    product = op.Mul(*promote(op, neg(op, target), op.Sub(*promote(op, input1, input2))))
    loss = op.Add(op.cast(product, result_dtype(product, 0.0)), float(margin))
    return reduced(op, op.Max(loss, 0.0), reduction)


@lowering(aten.hinge_embedding_loss.default)
def hinge_embedding_loss(
    op: OpBuilder, self: ir.Value, target: ir.Value, margin: float = 1.0, reduction: int = MEAN
) -> ir.Value:
    self = op.cast(self, result_dtype(self, 0.0))
    zero = op.constant(0, op.dtype(self))
    far = op.Where(op.Equal(target, 1), zero, op.Max(op.Sub(float(margin), self), 0.0))
    near = op.Where(op.Equal(target, -1), zero, self)
    return reduced(op, op.Add(far, near), reduction)
