"""The torch.export based ONNX exporter."""

from onnx_fx_export._version import __version__
from onnx_fx_export.compatibility import replace_torch_onnx
from onnx_fx_export.errors import (
    CaptureError,
    ConversionError,
    DynamicShapeError,
    InvalidArgumentError,
    MutationError,
    OnnxExporterError,
    SaveError,
    UnsupportedOperatorError,
    UnsupportedOpsetError,
    VerificationError,
)
from onnx_fx_export.export import export, unconvertible_ops
from onnx_fx_export.program import ONNXProgram

__all__ = [
    "CaptureError",
    "ConversionError",
    "DynamicShapeError",
    "InvalidArgumentError",
    "MutationError",
    "ONNXProgram",
    "OnnxExporterError",
    "SaveError",
    "UnsupportedOperatorError",
    "UnsupportedOpsetError",
    "VerificationError",
    "__version__",
    "export",
    "replace_torch_onnx",
    "unconvertible_ops",
]
