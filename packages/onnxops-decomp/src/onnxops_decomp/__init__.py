"""ATen to ONNX lowerings for opsets 7 to 28, and ONNX to ATen decompositions."""

from onnxops_decomp._version import __version__
from onnxops_decomp.adapters import adapter
from onnxops_decomp.builder import OpBuilder
from onnxops_decomp.errors import LoweringError, UnsupportedOperatorError, UnsupportedOpsetError
from onnxops_decomp.lowerings import Lowering, LoweringTable, builtin_table
from onnxops_decomp.onnx_to_aten import aten_decompositions

__all__ = [
    "Lowering",
    "LoweringError",
    "LoweringTable",
    "OpBuilder",
    "UnsupportedOperatorError",
    "UnsupportedOpsetError",
    "__version__",
    "adapter",
    "aten_decompositions",
    "builtin_table",
]
