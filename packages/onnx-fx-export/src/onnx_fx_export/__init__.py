"""The torch.export based ONNX exporter."""

from onnx_fx_export._version import __version__

__all__ = ["__version__"]
