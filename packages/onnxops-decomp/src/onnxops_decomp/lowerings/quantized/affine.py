"""Quantized tensors of torch, from where they are made to where they are dequantized.

torch captures no other operator on them, and none that makes one with a scale per channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import Affine, affine_of, mark_quantized, to_ir
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.lowerings.quantized.quantization import number_parameter
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.dtypes import Operand

aten = torch.ops.aten

FLOAT = ir.DataType.FLOAT


@lowering(aten.quantize_per_tensor.default, aten.quantize_per_tensor.tensor_qparams)
def quantize_per_tensor(
    op: OpBuilder, self: ir.Value, scale: Operand, zero_point: Operand, dtype: torch.dtype
) -> ir.Value:
    if dtype not in (torch.qint8, torch.quint8):
        raise LoweringError(f"In ONNX, tensors are quantized to qint8 and quint8, not to {dtype}.")
    affine = Affine(number_parameter(op, scale, FLOAT), number_parameter(op, zero_point, to_ir(dtype)))
    # A tensor of its own: the integers themselves may be what another part of the model works with.
    return mark_quantized(op.copy(op.QuantizeLinear(self, *affine)), affine)


@lowering(aten.dequantize.self, aten.dequantize.tensor)
def dequantize(op: OpBuilder, self: ir.Value) -> ir.Value:
    affine = affine_of(self)
    return op.cast(self, FLOAT) if affine is None else op.DequantizeLinear(self, *affine)
