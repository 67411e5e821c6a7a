"""Matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder import OpBuilder

aten = torch.ops.aten


@lowering(aten.linear.default)
def linear(op: OpBuilder, input: ir.Value, weight: ir.Value, bias: ir.Value | None = None) -> ir.Value:
    if op.rank(input) == 2 and op.rank(weight) == 2 and op.dtype(input).is_floating_point():
        return op.Gemm(input, weight, bias, transB=1)
    # MatMul wants the weight transposed; the transpose of an initializer is folded by every runtime.
    product = op.MatMul(input, op.Transpose(weight, perm=[1, 0]) if op.rank(weight) == 2 else weight)
    return product if bias is None else op.Add(product, bias)
