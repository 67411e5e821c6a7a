"""Readable input and output names from the structure of the model's arguments and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["input_paths", "output_paths"]


def _paths(spec: pytree.TreeSpec) -> list[tuple[Any, ...]]:
    # Containers such as caches look at their tensors when they are put together, so the leaves are tensors.
    tree = pytree.tree_unflatten([torch.empty(0) for _ in range(spec.num_leaves)], spec)
    return [tuple(_key(entry) for entry in path) for path, _ in pytree.tree_flatten_with_path(tree)[0]]


def _key(entry: Any) -> Any:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return entry


def input_paths(spec: pytree.TreeSpec, parameters: Sequence[str]) -> list[str]:
    """Return a name for each flat input.

    Args:
        spec: Structure of ``(args, kwargs)``.
        parameters: Names of the positional parameters of the model's forward.

    Returns:
        Names such as ``x``, ``x.0`` or ``past.key``, in flat order.
    """
    names = []
    for path in _paths(spec):
        if path[0] == 0:
            index = path[1]
            head = parameters[index] if index < len(parameters) else f"input_{index}"
            names.append(".".join(str(part) for part in (head, *path[2:])))
        else:
            names.append(".".join(str(part) for part in path[1:]))
    return names


def output_paths(spec: pytree.TreeSpec) -> list[str]:
    """Return a name for each flat output: ``output``, ``output_0`` ..., or the keys that lead to it."""
    names = []
    for path in _paths(spec):
        if not path:
            names.append("output")
        elif isinstance(path[0], int):
            names.append(".".join(str(part) for part in (f"output_{path[0]}", *path[1:])))
        else:
            names.append(".".join(str(part) for part in path))
    return names
