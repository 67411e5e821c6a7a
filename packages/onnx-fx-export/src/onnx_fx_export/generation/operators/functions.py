"""Functions by which layers of transformers compute, where the modules of Python have them that define the layers."""

from __future__ import annotations

import sys
from types import ModuleType

import torch

__all__ = ["modules_with"]


def modules_with(name: str, model: torch.nn.Module) -> list[ModuleType]:
    """Return the modules of Python that define the layers of a model and have a function of that name."""
    names = {type(layer).__module__ for layer in model.modules()}
    found = [sys.modules[each] for each in sorted(names) if each in sys.modules]
    return [module for module in found if callable(getattr(module, name, None))]
