"""ATen operators as functions for custom symbolics at opset 23; they are made when they are first asked for."""

from onnx_ts_legacy.symbolics.opset_module import symbolic_functions

__getattr__, __dir__ = symbolic_functions(23)
