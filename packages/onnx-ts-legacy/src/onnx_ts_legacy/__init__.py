"""The TorchScript based ONNX exporter, kept alive."""

from onnx_ts_legacy._version import __version__

__all__ = ["__version__"]
