"""Gradients and ``vmap`` in the code of a model, captured as what they compute.

torch.export records above autograd, where a gradient that the model itself takes is still to be computed, and fails on
most of them. Below autograd, it is in the program as the operators that compute it.
"""

from __future__ import annotations

import types

import torch

from onnxops_decomp.exporting import code_names, kept_inventory

__all__ = ["has_transforms"]

_TRANSFORMS = frozenset(
    ("grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "vjp", "vmap", "functionalize")
)


def has_transforms(model: torch.nn.Module) -> bool:
    """Tell whether the code of a model names a transform of functions (``torch.func``)."""
    with kept_inventory(model) as inventory:
        codes = [function.__code__ for function in inventory.functions if isinstance(function, types.FunctionType)]
    return any(not _TRANSFORMS.isdisjoint(code_names(code)) for code in codes)
