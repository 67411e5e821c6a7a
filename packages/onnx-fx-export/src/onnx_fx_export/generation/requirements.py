"""The optional packages that generation stands on, each loaded when it is first used."""

from __future__ import annotations

import importlib
import re
from typing import Any

from onnxops_decomp.exporting import MissingRuntimeError

__all__ = ["genai", "onnxruntime", "transformers"]

# Older releases keep caches in another form, or read other settings.
_SINCE = {"transformers": (5,), "onnxruntime_genai": (0, 18)}


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
    shown, install = name.replace("_", "-"), 'pip install "onnx-fx-export[generation]"'
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingRuntimeError(f"Generation needs {shown}, which is not installed: {install}.") from None
    since = _SINCE.get(name, ())
    if tuple(map(int, re.findall(r"\d+", module.__version__)[: len(since)])) < since:
        raise MissingRuntimeError(
            f"Generation needs {shown} {'.'.join(map(str, since))} or newer, and {module.__version__} is installed: "
            f"{install} --upgrade."
        )
    return module
