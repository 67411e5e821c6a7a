"""Functions by which layers of transformers compute, where the modules of Python have them that define the layers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from onnxops_decomp.exporting import installed_release

__all__ = ["has_operators", "modules_with"]


def modules_with(name: str, model: torch.nn.Module) -> list[ModuleType]:
    """Return the modules of Python that define the layers of a model and have a function of that name."""
    names = {type(layer).__module__ for layer in model.modules()}
    found = [sys.modules[each] for each in sorted(names) if each in sys.modules]
    return [module for module in found if callable(getattr(module, name, None))]


def has_operators(
    name: str, model: torch.nn.Module, agree: Callable[[Callable[..., Any]], bool], since: tuple[int, int]
) -> bool:
    """Tell whether layers of a model compute by functions that an operator of ONNX Runtime stands for.

    Args:
        name: The name of the functions.
        model: The model.
        agree: Tells whether a function computes what the operator does.
        since: The release of ONNX Runtime whose operator was compared with the models.
    """
    installed, modules = installed_release(), modules_with(name, model)
    if not modules or (installed is not None and installed < since):
        return False
    with contextlib.suppress(TypeError):  # another release may have the function with other parameters
        return all(agree(getattr(module, name)) for module in modules)
    return False
