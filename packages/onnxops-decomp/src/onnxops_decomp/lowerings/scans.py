"""Running sums, products and extrema along a dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.lowerings.reductions import summed_dtype
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder import OpBuilder

aten = torch.ops.aten


def _scan(op: OpBuilder, op_type: str, value: ir.Value, dim: int) -> ir.Value:
    """Emit CumSum or CumProd; of a 0-d tensor either is the tensor itself."""
    rank = op.rank(value)
    return value if rank == 0 else op.emit(op_type, value, op.constant(dim % rank))


@lowering(aten.cumsum.default)
def cumsum(op: OpBuilder, self: ir.Value, dim: int, dtype: torch.dtype | None = None) -> ir.Value:
    return _scan(op, "CumSum", summed_dtype(op, self, dtype), dim)


@lowering(aten.cumprod.default)
def cumprod(op: OpBuilder, self: ir.Value, dim: int, dtype: torch.dtype | None = None) -> ir.Value:
    return _scan(op, "CumProd", summed_dtype(op, self, dtype), dim)
