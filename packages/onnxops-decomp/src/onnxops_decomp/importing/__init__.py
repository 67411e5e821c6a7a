"""ONNX models as modules of PyTorch."""

from onnxops_decomp.importing.convert import to_torch as to_torch
from onnxops_decomp.importing.errors import ModelImportError as ModelImportError

__all__ = ["ModelImportError", "to_torch"]
