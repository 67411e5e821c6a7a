"""ONNX operators as native PyTorch operators: eager, autograd, torch.compile, export."""

from onnxops_core._version import __version__
from onnxops_core.errors import OnnxExporterError
from onnxops_core.export_state import is_in_onnx_export, onnx_export
from onnxops_core.symbolic import SymbolicCall, decode_symbolic_call, symbolic, symbolic_multi_out

__all__ = [
    "OnnxExporterError",
    "SymbolicCall",
    "__version__",
    "decode_symbolic_call",
    "is_in_onnx_export",
    "onnx_export",
    "symbolic",
    "symbolic_multi_out",
]
