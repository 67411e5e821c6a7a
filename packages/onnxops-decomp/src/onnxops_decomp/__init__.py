"""ATen to ONNX lowerings for opsets 7 to 28, and ONNX to ATen decompositions."""

from onnxops_decomp._version import __version__

__all__ = ["__version__"]
