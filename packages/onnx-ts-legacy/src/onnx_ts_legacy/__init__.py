"""The TorchScript based ONNX exporter, kept alive."""

from onnx_ts_legacy._version import __version__
from onnx_ts_legacy.api import export
from onnx_ts_legacy.program import TSProgram

__all__ = ["TSProgram", "__version__", "export"]
