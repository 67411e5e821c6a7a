"""One function per ONNX operator change: how the newer form is written in the older opset."""

import importlib
import pkgutil

from onnxops_decomp.builder.forms import adapter, find_adapter

__all__ = ["adapter", "find_adapter", "load_all"]


def load_all() -> None:
    """Import the modules of this room, which register their adapters."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
