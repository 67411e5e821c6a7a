"""Readable input and output names from the structure of the model's arguments and results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.errors import InvalidArgumentError

__all__ = ["boundary_names", "input_paths", "key_of", "output_paths"]


def _paths(spec: pytree.TreeSpec) -> list[tuple[Any, ...]]:
    # Containers such as caches look at their tensors when they are put together, so the leaves are tensors.
    tree = pytree.tree_unflatten([torch.empty(0) for _ in range(spec.num_leaves)], spec)
    return [tuple(key_of(entry) for entry in path) for path, _ in pytree.tree_flatten_with_path(tree)[0]]


def key_of(entry: Any) -> Any:
    """Return what one step of a path in a structure is called: a key, a field, or a position."""
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return entry


def input_paths(spec: pytree.TreeSpec, parameters: Sequence[str]) -> list[str]:
    """Return a name for each flat input.

    Args:
        spec: Structure of ``(args, kwargs)``.
        parameters: Names of the positional parameters of the model's forward; one that collects further arguments
            begins with an asterisk.

    Returns:
        Names such as ``x``, ``x.0`` or ``past.key``, in flat order.
    """
    names = []
    for path in _paths(spec):
        if path[0] == 0:
            index = path[1]
            head = _head(parameters, index)
            names.append(".".join(str(part) for part in (head, *path[2:])))
        else:
            names.append(".".join(str(part) for part in path[1:]))
    return names


def _head(parameters: Sequence[str], index: int) -> str:
    """Return the name of a positional argument; those that one parameter collects are numbered."""
    if parameters and parameters[-1].startswith("*") and index >= len(parameters) - 1:
        return f"{parameters[-1].removeprefix('*')}.{index - len(parameters) + 1}"
    return parameters[index] if index < len(parameters) else f"input_{index}"


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


def boundary_names(
    inputs: Sequence[str],
    outputs: Sequence[str],
    given: Mapping[str, Sequence[str]],
    weights: Collection[str],
) -> frozenset[str]:
    """Return the names that no value inside of the model may take.

    Args:
        inputs: Names of the inputs by the structure of the arguments.
        outputs: Names of the outputs by the structure of the result; one that an input has too is not kept.
        given: What the user passed as ``input_names`` and as ``output_names``.
        weights: Names of the weights, which keep theirs so that they can be replaced.

    Raises:
        InvalidArgumentError: If the user gives one name twice, or that of a weight, or something that is no name.
    """
    found: set[str] = set()
    for argument, names in given.items():
        if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
            raise InvalidArgumentError(f"{argument} is a list of names, not {names!r}.")
        for name in names:
            if name in found or name in weights:
                owner = "a weight" if name in weights else "another input or output"
                raise InvalidArgumentError(f"{argument} gives the name {name!r}, which is that of {owner}.")
            found.add(name)
    return frozenset({*found, *(name for name in outputs if name not in inputs and name not in weights)})
