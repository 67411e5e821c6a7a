"""What the user says of dynamic dimensions, in the one form that torch.export takes, and what became of it."""

from __future__ import annotations

import collections
import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import AdditionalInputs, Dim, ShapesCollection
from torch.utils import _pytree as pytree

from onnxops_decomp.exporting.calls.caches import by_kind_of_tensor
from onnxops_decomp.exporting.calls.naming import Leaf, example_paths, key_of, names_by_leaf
from onnxops_decomp.exporting.errors import InvalidArgumentError
from onnxops_decomp.exporting.sizes.dimensions import dimension_name

__all__ = [
    "DYNAMIC_NUMBER",
    "axes_by_number",
    "bound_arguments",
    "collected_shapes",
    "declared_bounds",
    "declared_text",
    "for_torch",
    "from_dynamic_axes",
    "leaf_specs",
    "normalized_shapes",
    "smallest_declared",
]

# Other mappings are containers of their own for torch, which takes a list for them.
_DICTS = (dict, collections.OrderedDict, collections.defaultdict)

# Stands for the axis where the declaration is of a number and not of a tensor's dimension.
DYNAMIC_NUMBER = -1
_NO_BOUND = 1 << 62
_DIMENSIONS = "a dimension is a name, a torch.export.Dim, a number, or None"


def bound_arguments(forward: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the call's arguments by parameter name, in the order of the parameters.

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


class FlatSpecs(list[Any]):
    """Declared dimensions of the leaves of an argument, one entry for each."""


def from_dynamic_axes(
    dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int]],
    arguments: Mapping[str, Any],
    input_names: Sequence[str] | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Convert the ``dynamic_axes`` of the TorchScript exporter.

    Args:
        dynamic_axes: For each input and output its dynamic axes: a list, or a mapping from axis to name.
        arguments: The call's arguments by parameter name, in the order of the call.
        input_names: Names that the user gives the inputs, in order.

    Returns:
        Declared dimensions by parameter name, and the entries that name no input: those of outputs.

    Raises:
        InvalidArgumentError: If an input has more dimensions declared than it has.
    """
    others = dict(dynamic_axes)
    declared: dict[str, Any] = {}
    for parameter, names in _leaf_names(arguments, input_names, dynamic_axes).items():
        specs = FlatSpecs()
        for leaf, called in zip(pytree.tree_leaves(arguments[parameter]), names, strict=True):
            found = next((name for name in called if name in dynamic_axes), None)
            others.pop(found or "", None)
            axes = dynamic_axes[found] if found is not None and isinstance(leaf, torch.Tensor) else {}
            specs.append(axes_by_number(found or "", axes, leaf.dim()) if axes else None)
        declared[parameter] = specs
    return declared, others


def axes_by_number(name: str, axes: Mapping[int, str] | Sequence[int], rank: int) -> dict[int, str]:
    """Return the names of the axes of an input or output; those of a list get the names that torch.onnx gives them.

    Raises:
        InvalidArgumentError: If there is no such axis.
    """
    if not isinstance(axes, Mapping):
        axes = {axis: f"{name}_dynamic_axes_{index}" for index, axis in enumerate(axes, start=1)}
    for axis in axes:
        if not -rank <= axis < rank:
            raise InvalidArgumentError(f"dynamic_axes names axis {axis} of {name}, which has {rank} dimensions.")
    return {axis % rank: dim for axis, dim in axes.items()}


def _leaf_names(
    arguments: Mapping[str, Any], input_names: Sequence[str] | None, declared: Collection[str]
) -> dict[str, list[list[str]]]:
    """Return what each leaf of each argument may be called: by the user, by the structure, by its parameter.

    Args:
        arguments: The call's arguments by parameter name, in the order of the call.
        input_names: Names that the user gives the inputs, in order.
        declared: Names that dimensions are declared for: a number among them is an input.
    """
    leaves: list[Leaf] = []
    owners: list[str] = []
    for parameter, value in arguments.items():
        for path, leaf in zip(example_paths(value), pytree.tree_leaves(value), strict=True):
            name = ".".join([parameter, *map(str, path)])
            is_input = isinstance(leaf, torch.Tensor) or (
                _is_number(leaf) and not {name, parameter}.isdisjoint(declared)
            )
            leaves.append(Leaf(name, leaf, is_input))
            owners.append(parameter)
    given = list(input_names or ())
    if len(given) > sum(leaf.is_input for leaf in leaves):
        # A number may be declared by the name that it is given here.
        leaves = [dataclasses.replace(leaf, is_input=leaf.is_input or _is_number(leaf.value)) for leaf in leaves]
    called = names_by_leaf(given, leaves, InvalidArgumentError)
    found: dict[str, list[list[str]]] = {parameter: [] for parameter in arguments}
    for index, (leaf, owner) in enumerate(zip(leaves, owners, strict=True)):
        own = [called[index]] if index in called else []
        # A name that the user gives belongs to the input that gets it.
        found[owner].append([*own, *(name for name in (leaf.name, owner) if name not in called.values())])
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def collected_shapes(dynamic_shapes: Any, model: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
    """Return what is declared, taken out of torch's collections of shapes and of additional inputs.

    What is declared for ``**kwargs`` as a whole, as torch.export takes it, is declared for what that collects.

    Raises:
        InvalidArgumentError: If the collection is of other tensors, or its inputs differ in more than sizes.
    """
    if isinstance(dynamic_shapes, Mapping):
        collecting = _collecting(model)
        if isinstance(found := dynamic_shapes.get(collecting), Mapping) and collecting not in (kwargs or {}):
            return {**{name: spec for name, spec in dynamic_shapes.items() if name != collecting}, **found}
    if type(dynamic_shapes) not in (ShapesCollection, AdditionalInputs):
        return dynamic_shapes
    try:
        return dynamic_shapes.dynamic_shapes(model, tuple(args), dict(kwargs or {}))
    except ValueError as error:
        raise InvalidArgumentError(f"dynamic_shapes does not fit the example: {error}") from error


def _collecting(model: Any) -> str:
    """Return the name of the parameter of a model that collects keyword arguments; an empty string if there is none."""
    try:
        parameters = inspect.signature(getattr(model, "forward", model)).parameters.values()
    except (TypeError, ValueError):
        return ""
    return next((each.name for each in parameters if each.kind is each.VAR_KEYWORD), "")


def normalized_shapes(
    dynamic_shapes: Any,
    arguments: Mapping[str, Any],
    input_names: Sequence[str] | None,
    in_call: Mapping[str, Any] | None = None,
) -> Any:
    """Return the declared dimensions by parameter name.

    Names may be those of the parameters, those in ``input_names``, or those that inputs have by the structure of the
    arguments; a string is a dynamic dimension of that name.

    Args:
        dynamic_shapes: What is declared.
        arguments: The call's arguments by parameter name, in the order of the parameters.
        input_names: Names that the user gives the inputs, in the order of the call.
        in_call: The arguments in that order, where it is another one.

    Raises:
        InvalidArgumentError: If a key is not one of these.
    """
    if dynamic_shapes is None:
        return None
    if isinstance(dynamic_shapes, tuple | list):
        # An optional argument that the call leaves out needs no entry, but may have an empty one.
        dynamic_shapes = list(dynamic_shapes)
        while len(dynamic_shapes) > len(arguments) and not dynamic_shapes[-1]:
            dynamic_shapes.pop()
        if len(dynamic_shapes) != len(arguments):
            given = ", ".join(
                f"{name}, which holds {len(value)} values" if isinstance(value, tuple | list) else name
                for name, value in arguments.items()
            )
            raise InvalidArgumentError(
                f"dynamic_shapes describes {len(dynamic_shapes)} arguments, the call has {len(arguments)}: {given}."
            )
        dynamic_shapes = dict(zip(arguments, dynamic_shapes, strict=True))
    result: dict[str, Any] = dict.fromkeys(arguments)
    leaves = _leaf_names(in_call or arguments, input_names, dynamic_shapes)
    for key, spec in dynamic_shapes.items():
        if key in arguments:
            result[key] = spec
            continue
        place = next(((p, i) for p, names in leaves.items() for i, name in enumerate(names) if key in name), None)
        if place is None:
            known = ", ".join([*arguments, *(input_names or ())])
            raise InvalidArgumentError(f"dynamic_shapes names {key!r}, which is not an input of the model ({known}).")
        parameter, index = place
        if result[parameter] is None:
            result[parameter] = FlatSpecs([None] * len(leaves[parameter]))
        result[parameter][index] = spec
    return result


def leaf_specs(value: Any, spec: Any) -> list[dict[int, Any]]:
    """Return, for each leaf of an argument, its declared dimensions by axis."""
    children, structure = pytree.tree_flatten(value, is_leaf=lambda node: node is not value)
    if structure.is_leaf():
        return [_leaf_spec(value, spec[0] if isinstance(spec, FlatSpecs) else spec)]
    if spec is None:
        return [{} for _ in pytree.tree_leaves(value)]
    leaves = pytree.tree_leaves(value)
    if isinstance(spec, FlatSpecs) or (isinstance(spec, tuple | list) and len(spec) == len(leaves) != len(children)):
        return [_leaf_spec(leaf, entry) for leaf, entry in zip(leaves, spec, strict=True)]
    if dataclasses.is_dataclass(spec) and not isinstance(spec, type):
        spec = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    names = _child_names(value)
    if (by_kind := by_kind_of_tensor(value, spec)) is not None:
        parts = by_kind
    elif isinstance(spec, Mapping) and names is not None:
        if unknown := spec.keys() - {*names}:
            raise InvalidArgumentError(f"dynamic_shapes names {min(map(str, unknown))!r}; there are {[*names]}.")
        parts = [spec.get(name) for name in names]
    else:
        parts = _parts(spec, len(children))
    if len(parts) != len(children):
        raise InvalidArgumentError(f"dynamic_shapes gives {len(parts)} entries for {len(children)} values.")
    return [leaf for child, part in zip(children, parts, strict=True) for leaf in leaf_specs(child, part)]


def _parts(spec: Any, count: int) -> list[Any]:
    """Return what is declared for each of the values that a container without names holds.

    Raises:
        InvalidArgumentError: If these are the dimensions of one tensor, or nothing of the kind.
    """
    parts = list(spec.values()) if isinstance(spec, Mapping) else spec
    if not isinstance(parts, list | tuple) or any(_is_dimension(part) for part in parts):
        raise InvalidArgumentError(
            f"dynamic_shapes gives {spec!r} where the call has {count} value(s), as *args or in a container. "
            "Give a tuple with one entry for each of them."
        )
    return list(parts)


def _is_dimension(entry: Any) -> bool:
    return isinstance(entry, str | int | Dim | type(Dim.AUTO))


def _child_names(value: Any) -> list[Any] | None:
    """Return what the children of a mapping, dataclass or named tuple are called; None if they have no names."""
    if isinstance(value, Mapping):
        return list(value)
    if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
        paths = pytree.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)[0]
        return [key_of(path[0]) for path, _ in paths]
    return None


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
        return {} if isinstance(spec, int) or spec is Dim.STATIC else {DYNAMIC_NUMBER: spec}
    axes = _axes(spec, value.dim())
    return {axis: dim for axis, dim in axes.items() if dim is not None and not isinstance(dim, int)}


def _axes(spec: Any, rank: int) -> dict[int, Any]:
    """Return what is declared for the axes of a tensor, counted from the front.

    Raises:
        InvalidArgumentError: If an entry names no axis of the tensor, or is not a dimension.
    """
    if not isinstance(spec, Mapping | list | tuple):
        raise InvalidArgumentError(
            f"dynamic_shapes gives {spec!r} for a tensor; give its dimensions by axis, as in {{0: 'batch'}}."
        )
    axes: dict[int, Any] = {}
    for axis, dim in spec.items() if isinstance(spec, Mapping) else enumerate(spec):
        if not isinstance(axis, int) or not -rank <= axis < rank:
            raise InvalidArgumentError(f"dynamic_shapes names axis {axis!r} of a tensor of {rank} dimensions.")
        if dim is not None and not _is_dimension(dim):
            raise InvalidArgumentError(f"dynamic_shapes gives {dim!r} for axis {axis}; {_DIMENSIONS}.")
        axes[axis % rank] = dim
    return axes


def declared_text(dim: Any) -> str | None:
    """Return the name, or the expression in names, that the user gave a dimension; None if it has none."""
    if isinstance(dim, str):
        return dim
    return str(dim.__name__) if isinstance(dim, Dim) else None


def declared_bounds(dim: Any) -> list[str]:
    """Return the conditions that the bounds of a ``Dim`` are; those that every size keeps are left out."""
    root = getattr(dim, "root", dim)
    if not isinstance(root, Dim):
        return []
    name = dimension_name(root.__name__)
    # torch takes the largest integers for no bound.
    upper = [f"{name} <= {root.max}"] if root.max < _NO_BOUND else []
    return [*([f"{name} >= {root.min}"] if root.min > 1 else []), *upper]


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
        if DYNAMIC_NUMBER in spec:
            return Dim.DYNAMIC if type(value) is int else None
        return {axis: Dim.DYNAMIC if isinstance(dim, str) else dim for axis, dim in spec.items()} or None
    parts = [for_torch(child, specs) for child in children]
    if type(value) in _DICTS:
        return dict(zip(value, parts, strict=True))
    if hasattr(value, "_fields"):
        return type(value)(*parts)
    return tuple(parts) if isinstance(value, tuple) else parts


def smallest_declared(dynamic_shapes: Any) -> int:
    """Return the smallest size at which every declared dimension may be: 1, or more where a ``Dim`` has a bound."""
    return max([1, *(int(getattr(leaf, "min", None) or 1) for leaf in pytree.tree_leaves(dynamic_shapes))])
