"""ONNX operators as native PyTorch operators: eager, autograd, torch.compile, export."""

from onnxops_core._version import __version__

__all__ = ["__version__"]
