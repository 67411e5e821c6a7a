"""Arguments whose shape a model changes in place, as ``x.unsqueeze_(0)`` does.

torch.export reads the shapes of arguments once the model has run, and fails where these are other ones by then. Such a
model is captured once more with views of its arguments, whose shapes it may change; what it writes into them arrives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnxops_core.exporting import original, replaced

__all__ = ["ReshapedArgumentError", "views_of_arguments", "watched_shapes"]

_METHODS = ("squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_")


class ReshapedArgumentError(Exception):
    """A model changes the shape of one of its arguments."""


@contextlib.contextmanager
def watched_shapes(model: torch.nn.Module) -> Iterator[None]:
    """Stop the model where it changes the shape of an argument.

    Raises:
        ReshapedArgumentError: In its code.
    """
    taken: list[torch.Tensor] = []

    def take(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        taken[:] = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]

    def watched(method: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def change(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if any(self is argument for argument in taken):
                raise ReshapedArgumentError
            return method(self, *args, **kwargs)

        return change

    changes = [(torch.Tensor, name, watched(original(torch.Tensor, name))) for name in _METHODS]
    with _before_each_call(model, take), replaced(changes):
        yield


@contextlib.contextmanager
def views_of_arguments(model: torch.nn.Module) -> Iterator[None]:
    """Give the model views of its arguments."""

    def view(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.view_as(tensor), (args, kwargs))

    with _before_each_call(model, view):
        yield


@contextlib.contextmanager
def _before_each_call(model: torch.nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    handle = model.register_forward_pre_hook(hook, prepend=True, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
