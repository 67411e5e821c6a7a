"""The optional packages that generation stands on, each loaded when it is first used."""

from __future__ import annotations

import importlib
from typing import Any

from onnxops_decomp.exporting import MissingRuntimeError

__all__ = ["genai", "onnxruntime", "transformers"]


def transformers() -> Any:
    """Return transformers, whose names are untyped."""
    return _loaded("transformers")


def onnxruntime() -> Any:
    """Return ONNX Runtime, which has no types."""
    return _loaded("onnxruntime")


def genai() -> Any:
    """Return ONNX Runtime GenAI, which has no types."""
    return _loaded("onnxruntime_genai")


def _loaded(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingRuntimeError(
            f"Generation needs {name.replace('_', '-')}, which is not installed: "
            'pip install "onnx-fx-export[generation]".'
        ) from None
