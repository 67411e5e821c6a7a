"""What both exporters raise; all of it is :class:`OnnxExporterError`."""

from __future__ import annotations

from onnxops_core import OnnxExporterError

__all__ = [
    "InvalidArgumentError",
    "MissingRuntimeError",
    "RuntimeSupportError",
    "SaveError",
    "VerificationError",
]


class InvalidArgumentError(OnnxExporterError, ValueError, TypeError):
    """An argument of the exporter, or of the model's call, does not fit."""


class MissingRuntimeError(OnnxExporterError):
    """A package that is needed to run or verify a model is not installed."""


class RuntimeSupportError(OnnxExporterError):
    """ONNX Runtime cannot run the exported model."""


class SaveError(OnnxExporterError, OSError):
    """The model could not be written; nothing was left behind."""


class VerificationError(OnnxExporterError):
    """The exported model does not agree with PyTorch."""
