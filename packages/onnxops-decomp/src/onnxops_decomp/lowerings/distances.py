"""Distances between rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder import OpBuilder

aten = torch.ops.aten


@lowering(aten.cdist.default, aten._cdist_forward.default)
def cdist(op: OpBuilder, x1: ir.Value, x2: ir.Value, p: float = 2.0, compute_mode: int | None = None) -> ir.Value:
    # The differences themselves, not torch's shortcut over a matrix product, which loses digits for close rows.
    difference = op.Sub(op.Unsqueeze(x1, [-2]), op.Unsqueeze(x2, [-3]))
    if p == 0:
        moved = op.Not(op.Equal(difference, 0.0))
        return op.ReduceSum(op.cast(moved, op.dtype(x1)), [-1], keepdims=0)
    if p == 1:
        return op.ReduceL1(difference, [-1], keepdims=0)
    if p == 2:
        return op.ReduceL2(difference, [-1], keepdims=0)
    if math.isinf(p):
        width = op.size(x1, -1)
        if isinstance(width, int) and width == 0:
            return op.ReduceSum(difference, [-1], keepdims=0)
        return op.ReduceMax(op.Abs(difference), [-1], keepdims=0)
    return op.Pow(op.ReduceSum(op.Pow(op.Abs(difference), p), [-1], keepdims=0), 1 / p)
