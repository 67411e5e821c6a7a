"""Operations on the bits of integers; of bools they are logic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import promoted
from onnxops_decomp.lowerings.registry import Function, lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder import OpBuilder

aten = torch.ops.aten


def _bitwise(integer: str, logical: str) -> Function:
    @promoted("self", "other")
    def bitwise(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
        return op.emit(logical if self.dtype == ir.DataType.BOOL else integer, self, other)

    return bitwise


for _name in ("and", "or", "xor"):
    lowering(
        *(f"aten::bitwise_{_name}.{overload}" for overload in ("Tensor", "Scalar", "Scalar_Tensor")),
        *(f"aten::__{_name}__.{overload}" for overload in ("Tensor", "Scalar")),
    )(_bitwise(f"Bitwise{_name.capitalize()}", _name.capitalize()))


@lowering(aten.bitwise_not.default)
def bitwise_not(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.Not(self) if self.dtype == ir.DataType.BOOL else op.BitwiseNot(self)
