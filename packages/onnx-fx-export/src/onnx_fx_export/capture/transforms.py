"""Gradients and ``vmap`` in the code of a model, captured as what they compute.

torch.export records above autograd, where a gradient that the model itself takes is still to be computed, and fails on
most of them. Below autograd, it is in the program as the operators that compute it.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnxops_decomp.exporting import code_names, gradient_mode, kept_inventory

__all__ = ["has_transforms", "without_further_gradients"]

_TRANSFORMS = frozenset(
    ("grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "vjp", "vmap", "functionalize")
)


def has_transforms(model: torch.nn.Module) -> bool:
    """Tell whether the code of a model names a transform of functions (``torch.func``)."""
    with kept_inventory(model) as inventory:
        codes = [function.__code__ for function in inventory.functions if isinstance(function, types.FunctionType)]
    return any(not _TRANSFORMS.isdisjoint(code_names(code)) for code in codes)


def _without_gradient(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


@contextlib.contextmanager
def without_further_gradients(model: torch.nn.Module) -> Iterator[None]:
    """Record the gradients that a model asks for, and none of its results, which torch.export would differentiate."""
    with contextlib.ExitStack() as running:

        def enter(*_: Any) -> None:
            running.enter_context(gradient_mode(model))

        def leave(module: torch.nn.Module, args: Any, results: Any) -> Any:
            running.close()
            return pytree.tree_map_only(torch.Tensor, _without_gradient, results)

        hooks = [
            model.register_forward_pre_hook(enter, prepend=True),
            model.register_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
