"""Compares ONNX models with their reference and finds the first wrong node."""

from onnx_verify._version import __version__

__all__ = ["__version__"]
