"""Operators that well-known libraries register with torch; by name, so that the libraries need not be installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.errors import LoweringError
from onnxops_decomp.lowerings.quantized.products import grouped_mm
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder


@lowering("transformers::grouped_mm_fallback")
def grouped_mm_fallback(op: OpBuilder, input: ir.Value, weight: ir.Value, offs: ir.Value) -> ir.Value:
    """Multiply the rows of each expert by its weight; transformers' mixture-of-experts layers."""
    if op.dtype(input) == ir.DataType.DOUBLE:
        raise LoweringError("Products of groups are computed in float32; the operands are float64.")
    return grouped_mm(op, input, weight, offs)
