"""The torch.export based ONNX exporter."""

from onnx_fx_export._version import __version__
from onnx_fx_export.compat.preview import (
    ExportOptions,
    ExportOutput,
    ExportOutputSerializer,
    OnnxRegistry,
    dynamo_export,
)
from onnx_fx_export.compat.torch_onnx import replace_torch_onnx
from onnx_fx_export.errors import (
    CaptureError,
    ConversionError,
    DynamicShapeError,
    FallbackError,
    InvalidArgumentError,
    MutationError,
    OnnxExporterError,
    RuntimeSupportError,
    SaveError,
    UnsupportedOperatorError,
    UnsupportedOpsetError,
    VerificationError,
)
from onnx_fx_export.export import export, unconvertible_ops
from onnx_fx_export.weights.unallocated import enable_fake_mode
from onnxops_decomp.exporting import ONNXProgram

__all__ = [
    "CaptureError",
    "ConversionError",
    "DynamicShapeError",
    "ExportOptions",
    "ExportOutput",
    "ExportOutputSerializer",
    "FallbackError",
    "InvalidArgumentError",
    "MutationError",
    "ONNXProgram",
    "OnnxExporterError",
    "OnnxRegistry",
    "RuntimeSupportError",
    "SaveError",
    "UnsupportedOperatorError",
    "UnsupportedOpsetError",
    "VerificationError",
    "__version__",
    "dynamo_export",
    "enable_fake_mode",
    "export",
    "replace_torch_onnx",
    "unconvertible_ops",
]
