"""Which argument each input of a model is, and what inputs and outputs are called."""

from __future__ import annotations

import collections
import dataclasses
import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnxops_core import OnnxExporterError
from onnxops_core.exporting import warn_user

__all__ = [
    "Leaf",
    "argument_paths",
    "call_leaves",
    "check_names",
    "example_paths",
    "in_order",
    "key_of",
    "left_out",
    "names_by_leaf",
    "output_name",
    "path_name",
    "positional_parameters",
    "structure_paths",
    "warn_of_left_out",
    "warn_of_names",
    "warn_of_numbers",
    "without_absent",
    "without_keywords",
]

Path = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A leaf of the example call.

    Attributes:
        name: What it is called after its parameter and the keys that lead to it.
        value: What the example gives for it.
        is_input: Whether it is an input of the model, and no constant.
    """

    name: str
    value: Any
    is_input: bool


def call_leaves(arguments: Mapping[str, Any]) -> list[Leaf]:
    """Return the leaves of a call, given its arguments by name."""
    paths = [(name, *path) for name, value in arguments.items() for path in example_paths(value)]
    values = pytree.tree_leaves(list(arguments.values()))
    leaves = zip(map(path_name, paths), values, strict=True)
    return [Leaf(name, value, isinstance(value, torch.Tensor)) for name, value in leaves]


def left_out(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the parameters that a call leaves at None."""
    try:
        bound = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:  # they do not fit, which the capture says
        return frozenset()
    return frozenset(name for name, p in signature.parameters.items() if name not in bound and p.default is None)


def without_keywords(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call whose last positional one may be a dict of keyword arguments, as in torch.onnx.

    It is an argument itself if the model takes it as one, and either there are other keyword arguments (torch.onnx
    takes them in one place or the other) or the model does not take its keys as keywords.
    """
    named = dict(kwargs or {})
    last = args[-1] if args else None
    if not isinstance(last, dict) or not all(isinstance(key, str) for key in last):
        return args, named
    is_argument = _binds(signature, args, named)
    if is_argument and (named or not _binds(signature, args[:-1], last)):
        return args, named
    return args[:-1], {**last, **named}


def _binds(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def in_order(parameters: Iterable[str], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a call in the order of their parameters.

    Args:
        parameters: Names of the parameters of what is called.
        kwargs: The arguments; those that ``**kwargs`` collects come last, in the order of the call.
    """
    return {**{name: kwargs[name] for name in parameters if name in kwargs}, **kwargs}


def positional_parameters(signature: inspect.Signature) -> list[str]:
    """Return the names of the positional parameters; one that collects further arguments begins with an asterisk."""
    collects = inspect.Parameter.VAR_POSITIONAL
    parameters = [p for name, p in signature.parameters.items() if name != "self"]
    return [f"*{p.name}" if p.kind is collects else p.name for p in parameters if p.kind <= collects]


# ---- paths


def key_of(entry: Any) -> Any:
    """Return what one step of a path in a structure is called: a key, a field, or a position."""
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return entry


def path_name(path: Iterable[Any]) -> str:
    """Return what the leaf at the end of a path is called: ``cache.0.key``."""
    return ".".join(map(str, path))


def output_name(path: Path) -> str:
    """Return what the output at the end of a path in the result is called.

    Returns:
        ``output`` for a single one, ``output_0`` ... for the elements of a tuple or list, else the keys to it.
    """
    return path_name([f"output_{path[0]}", *path[1:]] if path and isinstance(path[0], int) else path or ("output",))


def example_paths(tree: Any) -> list[Path]:
    """Return the keys that lead to each leaf of a structure."""
    return [tuple(map(key_of, path)) for path, _ in pytree.tree_flatten_with_path(tree)[0]]


def structure_paths(spec: pytree.TreeSpec) -> list[Path]:
    """Return the keys that lead to each leaf of a structure of which there is no example.

    No container is built, as caches and their like look at what they are built of. Classes that say nothing about
    their keys have positions.
    """
    if spec.is_leaf():
        return [()]
    keys, children = _keys(spec), spec.children()
    return [(key, *path) for key, child in zip(keys, children, strict=True) for path in structure_paths(child)]


def _keys(spec: pytree.TreeSpec) -> Sequence[Any]:
    """Return what the children of a container are called, which stands in its context or in a part of it."""
    context, count = spec.context, spec.num_children
    context = getattr(context, "keys_of_children", getattr(context, "_fields", context))
    parts = (context, *context) if isinstance(context, tuple | list) else (context,)
    names = [part for part in parts if isinstance(part, tuple | list) and len(part) == count]
    is_dict = spec.type in (dict, collections.OrderedDict, collections.defaultdict)
    plain = [part for part in names if is_dict or all(isinstance(key, str) for key in part)]
    return plain[0] if plain else range(count)


def argument_paths(paths: Iterable[Path], parameters: Sequence[str]) -> list[Path]:
    """Return paths that begin with the name of a parameter.

    Args:
        paths: Paths in ``(args, kwargs)``.
        parameters: Names of the positional parameters, as :func:`positional_parameters` returns them.
    """
    return [(*(_head(parameters, path[1]) if path[0] == 0 else path[1:2]), *path[2:]) for path in paths]


def _head(parameters: Sequence[str], index: int) -> Path:
    """Return the start of the path of a positional argument; those that one parameter collects are numbered."""
    if parameters and parameters[-1].startswith("*") and index >= len(parameters) - 1:
        return parameters[-1].removeprefix("*"), index - len(parameters) + 1
    return (parameters[index],) if index < len(parameters) else (f"input_{index}",)


# ---- names that the user gives


def check_names(
    input_names: Sequence[str],
    output_names: Sequence[str],
    weights: Collection[str],
    error: type[OnnxExporterError],
) -> None:
    """Make sure that the names that the user gives can stand in one model.

    Args:
        input_names: Names of inputs.
        output_names: Names of outputs.
        weights: Names of the weights, which keep theirs so that they can be replaced.
        error: What to raise.

    Raises:
        OnnxExporterError: If a name is given twice, is that of a weight, or is not a name.
    """
    found: set[str] = set()
    for argument, names in (("input_names", input_names), ("output_names", output_names)):
        if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
            raise error(f"{argument} is a list of names, not {names!r}.")
        for name in names:
            if not name.strip() or not name.isprintable():
                raise error(f"{argument} gives {name!r}, which is not a name for a value of an ONNX model.")
            if name in found or name in weights:
                owner = "a weight" if name in weights else "another input or output"
                raise error(f"{argument} gives the name {name!r}, which is already the name of {owner}.")
            found.add(name)


def warn_of_left_out(values: Mapping[str, Any]) -> None:
    """Warn of what a model returns and ONNX has no value for.

    Args:
        values: What it is, by its place in the result.

    Warns:
        UserWarning: If there is anything.
    """
    if values:
        places = ", ".join(f"{value!r} at {name}" for name, value in values.items())
        warn_user(f"The model returns {places}: this is not an output of an ONNX model and is left out.")


def warn_of_numbers(constants: Mapping[str, Any], alternative: str) -> None:
    """Warn of numbers of the example that are part of the model.

    Args:
        constants: The arguments that are not inputs, by name.
        alternative: How to make inputs of them.

    Warns:
        UserWarning: If there are numbers among them.
    """
    numbers = [f"{name}={value!r}" for name, value in constants.items() if isinstance(value, bool | int | float)]
    if numbers:
        warn_user(f"The model takes {', '.join(numbers)} of the example as constants. {alternative} for an input.")


def without_absent(given: Sequence[str], absent: Collection[str]) -> Sequence[str]:
    """Return the names of inputs without those of parameters that the example call leaves at None.

    Args:
        given: The names.
        absent: Names of these parameters.

    Warns:
        UserWarning: If there are such names.
    """
    for name in given:
        if name in absent:
            warn_user(f"input_names has {name!r}, which the example leaves at None: it is not an input.")
    return given if isinstance(given, str) else [name for name in given if name not in absent]


def names_by_leaf(given: Sequence[str], leaves: Sequence[Leaf], error: type[OnnxExporterError]) -> dict[int, str]:
    """Return the names that the user gives the inputs, by the positions of the leaves that they belong to.

    A name for an argument that is None has no input to name and is left out.

    Args:
        given: Names of the inputs in order, as many as the user likes.
        leaves: Leaves of the example call.
        error: What to raise.

    Raises:
        OnnxExporterError: If there are more names than inputs.
    """
    inputs = [index for index, leaf in enumerate(leaves) if leaf.is_input]
    absent = {leaf.name for leaf in leaves if leaf.value is None and not leaf.is_input}
    present = [name for name in given if name not in absent]
    if len(present) <= len(inputs):
        return dict(zip(inputs, present, strict=False))
    places = [index for index, leaf in enumerate(leaves) if leaf.is_input or leaf.value is None]
    if len(given) > len(places):
        constants = "".join(f"; {_constant(leaf)}" for leaf in leaves if not leaf.is_input)
        names = ", ".join(leaves[index].name for index in inputs)
        raise error(f"input_names has {len(given)} names for {len(inputs)} inputs ({names}){constants}.")
    return {index: name for index, name in zip(places, given, strict=False) if leaves[index].is_input}


def warn_of_names(given: Sequence[str], named: Mapping[int, str], leaves: Sequence[Leaf]) -> None:
    """Warn of names of inputs that may be meant for other arguments.

    Args:
        given: Names of the inputs in order.
        named: The names by leaf, as :func:`names_by_leaf` returns them.
        leaves: Leaves of the example call.

    Warns:
        UserWarning: If a name is that of another argument than the one in that place, or of one that is None.
    """
    own = {leaf.name for leaf in leaves}
    inputs = ", ".join(leaf.name for leaf in leaves if leaf.is_input)
    for name in given:
        if name not in named.values():
            absent = ", ".join(leaf.name for leaf in leaves if leaf.value is None and not leaf.is_input)
            text = f"input_names has {name!r} for an argument that is None in the example ({absent}), not an input."
            warn_user(f"{text} The inputs are, in order: {inputs}.")
    for index, name in named.items():
        if name != leaves[index].name and name in own:
            warn_user(
                f"input_names gives the name {name!r} to the input for {leaves[index].name}, and {name} is another "
                f"argument of the model. The inputs are, in order: {inputs}."
            )


def _constant(leaf: Leaf) -> str:
    if leaf.value is None:
        return f"{leaf.name} is None in the example and no input"
    return f"{leaf.name} is {leaf.value!r} in the example, which is a constant of the model"
