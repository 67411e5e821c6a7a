"""Functional forms of the operators that overwrite a tensor: copy, fill, zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.lowerings.layout.creation import filled
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.dtypes import Operand

aten = torch.ops.aten


@lowering(aten.copy.default)
def copy(op: OpBuilder, self: ir.Value, src: ir.Value, non_blocking: bool = False) -> ir.Value:
    return op.expand(op.cast(src, op.dtype(self)), op.sizes(self))


@lowering(aten.fill.Scalar, aten.fill.Tensor)
def fill(op: OpBuilder, self: ir.Value, value: Operand) -> ir.Value:
    return filled(op, op.sizes(self), value, op.dtype(self))


@lowering(aten.zero.default)
def zero(op: OpBuilder, self: ir.Value) -> ir.Value:
    return filled(op, op.sizes(self), 0, op.dtype(self))
