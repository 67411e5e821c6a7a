"""What the user says of dynamic dimensions, in the one form that torch.export takes, and what became of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

from onnx_fx_export.errors import InvalidArgumentError

__all__ = [
    "NUMBER",
    "DimName",
    "bound_arguments",
    "dim_name",
    "for_torch",
    "from_dynamic_axes",
    "leaf_specs",
    "normalized",
    "smallest_declared",
]

DimName = str | None

# Stands for the axis where the declaration is of a number and not of a tensor's dimension.
NUMBER = -1


def bound_arguments(forward: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the call's arguments by parameter name.

    Raises:
        InvalidArgumentError: If they do not fit the signature.
    """
    signature = inspect.signature(forward)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidArgumentError(
            f"The example arguments do not fit {getattr(forward, '__qualname__', 'forward')}{signature}: {error}."
        ) from error
    arguments: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            arguments.update(value)
        else:
            arguments[name] = value
    return arguments


def from_dynamic_axes(
    dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int]],
    arguments: Mapping[str, Any],
    input_names: Sequence[str] | None,
) -> dict[str, Any]:
    """Convert the ``dynamic_axes`` of the TorchScript exporter.

    Args:
        dynamic_axes: For each input (and output, which follow from the inputs), its dynamic axes: a list, or a
            mapping from axis to name.
        arguments: The call's arguments by parameter name.
        input_names: Names that the user gives the inputs, in order.

    Raises:
        InvalidArgumentError: If an input has more dimensions declared than it has.
    """
    leaves: dict[str, list[Any]] = {}
    flat_names = list(input_names or [])
    position = 0
    for name, value in arguments.items():
        specs: list[Any] = []
        for leaf in pytree.tree_leaves(value):
            called = flat_names[position] if position < len(flat_names) else name
            axes = dynamic_axes.get(called, dynamic_axes.get(name, {})) if isinstance(leaf, torch.Tensor) else {}
            specs.append(_axes_of(called, axes, leaf))
            position += isinstance(leaf, torch.Tensor)
        leaves[name] = specs
    return {
        name: specs[0] if pytree.tree_structure(arguments[name]).is_leaf() else specs for name, specs in leaves.items()
    }


def _axes_of(name: str, axes: Mapping[int, str] | Sequence[int], leaf: Any) -> Any:
    if not axes:
        return None
    named = dict(axes) if isinstance(axes, Mapping) else dict.fromkeys(axes, Dim.DYNAMIC)
    result = {}
    for axis, dim in named.items():
        if not -leaf.dim() <= axis < leaf.dim():
            raise InvalidArgumentError(f"dynamic_axes names axis {axis} of {name}, which has {leaf.dim()} dimensions.")
        result[axis % leaf.dim()] = dim
    return result


def normalized(dynamic_shapes: Any, arguments: Mapping[str, Any], input_names: Sequence[str] | None) -> Any:
    """Return ``dynamic_shapes`` as torch.export takes it.

    Names may be those of the parameters or those in ``input_names``; a string is a dynamic dimension of that name.

    Raises:
        InvalidArgumentError: If a key is neither.
    """
    if dynamic_shapes is None:
        return None
    if isinstance(dynamic_shapes, tuple | list):
        # An optional argument that the call leaves out needs no entry, but may have an empty one.
        dynamic_shapes = list(dynamic_shapes)
        while len(dynamic_shapes) > len(arguments) and not dynamic_shapes[-1]:
            dynamic_shapes.pop()
        if len(dynamic_shapes) != len(arguments):
            raise InvalidArgumentError(
                f"dynamic_shapes describes {len(dynamic_shapes)} arguments, the call has {len(arguments)}."
            )
        dynamic_shapes = dict(zip(arguments, dynamic_shapes, strict=True))
    by_input_name = dict(zip(input_names or (), arguments, strict=False))
    result: dict[str, Any] = dict.fromkeys(arguments)
    for key, spec in dynamic_shapes.items():
        name = key if key in arguments else by_input_name.get(key)
        if name is None:
            known = ", ".join([*arguments, *(input_names or ())])
            raise InvalidArgumentError(f"dynamic_shapes names {key!r}, which is no input of the model ({known}).")
        result[name] = spec
    return result


def leaf_specs(value: Any, spec: Any) -> list[dict[int, Any]]:
    """Return, for each leaf of an argument, its declared dimensions by axis."""
    children, structure = pytree.tree_flatten(value, is_leaf=lambda node: node is not value)
    if structure.is_leaf():
        return [_leaf_spec(value, spec)]
    if spec is None:
        return [{} for _ in pytree.tree_leaves(value)]
    leaves = pytree.tree_leaves(value)
    if isinstance(spec, tuple | list) and len(spec) == len(leaves) != len(children):
        return [_leaf_spec(leaf, entry) for leaf, entry in zip(leaves, spec, strict=True)]
    if isinstance(spec, Mapping) and isinstance(value, Mapping):
        parts = [spec.get(key) for key in value]
    else:
        parts = list(spec.values()) if isinstance(spec, Mapping) else list(spec)
    if len(parts) != len(children):
        raise InvalidArgumentError(f"dynamic_shapes gives {len(parts)} entries for {len(children)} values.")
    return [leaf for child, part in zip(children, parts, strict=True) for leaf in leaf_specs(child, part)]


def _leaf_spec(value: Any, spec: Any) -> dict[int, Any]:
    if spec is None:
        return {}
    if not isinstance(value, torch.Tensor):
        is_number = isinstance(value, int | float)
        if not is_number or (isinstance(spec, Mapping | Sequence) and not isinstance(spec, str)):
            if not spec:
                return {}
            kind = "number" if is_number else type(value).__name__
            raise InvalidArgumentError(f"dynamic_shapes gives {spec!r} for a {kind}, which has no dimensions.")
        return {} if isinstance(spec, int) or spec is Dim.STATIC else {NUMBER: spec}
    entries = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
    return {axis % max(value.dim(), 1): dim for axis, dim in entries if dim is not None and not isinstance(dim, int)}


def for_torch(value: Any, specs: Iterator[dict[int, Any]]) -> Any:
    """Return the declared dimensions of an argument in the structure that torch.export wants.

    Args:
        value: The argument.
        specs: Declared dimensions of the leaves that are still to come, in order. A name becomes a dimension that
            must stay dynamic.
    """
    children, structure = pytree.tree_flatten(value, is_leaf=lambda node: node is not value)
    if structure.is_leaf():
        spec = next(specs)
        if NUMBER in spec:
            return Dim.DYNAMIC if type(value) is int else None
        return {axis: Dim.DYNAMIC if isinstance(dim, str) else dim for axis, dim in spec.items()} or None
    parts = [for_torch(child, specs) for child in children]
    if isinstance(value, Mapping):
        return dict(zip(value, parts, strict=True))
    return tuple(parts) if isinstance(value, tuple) else parts


def dim_name(dim: Any) -> DimName:
    """Return the name that the user gave a dimension, or None."""
    if isinstance(dim, str):
        return dim
    return str(dim.__name__) if isinstance(dim, Dim) else None


def smallest_declared(dynamic_shapes: Any) -> int:
    """Return the smallest size at which every declared dimension may be: 1, or more where a ``Dim`` has a bound."""
    return max([1, *(int(getattr(leaf, "min", None) or 1) for leaf in pytree.tree_leaves(dynamic_shapes))])
