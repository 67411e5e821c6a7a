"""ONNX Runtime's own domain, and how its operators are emitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxops_decomp.spec.inference import Dims

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["DOMAIN", "DTYPES", "VERSION", "emit"]

DOMAIN = "com.microsoft"
VERSION = 1
# In float64 and bfloat16 its operators have no kernels, or are composed of operators that have none.
DTYPES = frozenset((ir.DataType.FLOAT, ir.DataType.FLOAT16))


def emit(
    op: OpBuilder, op_type: str, inputs: list[ir.Value | None], attributes: dict[str, Any], dims: Dims | None
) -> ir.Value:
    """Emit a node whose one result has the dtype of its first operand."""
    assert inputs[0] is not None
    (result,) = op.emit_custom(DOMAIN, op_type, inputs, attributes, [inputs[0].dtype], version=VERSION, shapes=[dims])
    return result
