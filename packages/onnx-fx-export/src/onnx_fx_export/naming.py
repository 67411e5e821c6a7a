"""Readable input and output names from the structure of the model's arguments and results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.errors import InvalidArgumentError

__all__ = ["input_paths", "output_paths", "rename_dimensions", "renamed_text"]


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


def renamed_text(text: str, names: Mapping[str, str]) -> str:
    """Replace the identifiers in an expression."""
    return re.sub(r"[A-Za-z_]\w*", lambda match: names.get(match[0], match[0]), text)


def rename_dimensions(model: ir.Model, names: Mapping[str, str]) -> None:
    """Rename symbolic dimensions in all shapes of a model.

    Raises:
        InvalidArgumentError: If a name is no dimension of an input, or a new one is no identifier.
    """
    known = {dim.value for value in model.graph.inputs for dim in value.shape or () if not isinstance(dim, int)}
    for old, new in names.items():
        if old not in known:
            raise InvalidArgumentError(f"The model has no dimension {old!r}; it has {sorted(filter(None, known))}.")
        if not new.isidentifier():
            raise InvalidArgumentError(f"{new!r} is no name for a dimension.")
    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    values = [value for graph in graphs for value in graph.inputs]
    values += [output for graph in graphs for node in graph.all_nodes() for output in node.outputs]
    for value in values:
        if value.shape is not None and not value.shape.is_static():
            value.shape = ir.Shape(
                dim if isinstance(dim, int) or dim.value is None else renamed_text(dim.value, names)
                for dim in value.shape.dims
            )
