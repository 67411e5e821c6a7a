"""Embeddings and bags of embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder import OpBuilder

aten = torch.ops.aten


@lowering(aten.embedding.default)
def embedding(
    op: OpBuilder,
    weight: ir.Value,
    indices: ir.Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> ir.Value:
    return op.Gather(weight, indices)
