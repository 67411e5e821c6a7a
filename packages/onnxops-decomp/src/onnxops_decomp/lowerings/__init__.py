"""ATen -> ONNX: one small function per ATen operator, in modules by family."""

from onnxops_decomp.lowerings.registry import Lowering, LoweringTable, builtin_table, lowering, operator_name

__all__ = ["Lowering", "LoweringTable", "builtin_table", "lowering", "operator_name"]
