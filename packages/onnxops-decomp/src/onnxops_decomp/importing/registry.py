"""The table from ONNX operators to the functions that compute them."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch

from onnxops_core.native import NativeOp, native_ops
from onnxops_decomp.importing.errors import ModelImportError

__all__ = [
    "Implementation",
    "Kind",
    "implementation",
    "implementations",
    "onnx_op",
]

F = TypeVar("F")


class Kind:
    """What a parameter takes, read from its annotation.

    Attributes:
        TENSOR: A tensor; Python numbers become one.
        NUMBER: A Python number; a tensor of one element is read.
        NUMBERS: A list of Python numbers; a tensor is read.
        EITHER: Python numbers where the value is some, a tensor otherwise.
        SINGLE: A Python number where the value is one, or a list of one, a tensor otherwise.
        ANY: Whatever there is: a tensor, a sequence, strings, None.
    """

    TENSOR, NUMBER, NUMBERS, EITHER, SINGLE, ANY = "tensor", "number", "numbers", "either", "single", "any"


@dataclasses.dataclass(frozen=True)
class Implementation:
    """What computes an ONNX operator.

    Attributes:
        function: What the graph calls.
        since: Lowest version of the operator that it computes.
        parameters: For each parameter its kind; None for a function of tensors alone, given by position.
        annotations: For each parameter its annotation.
        variadic: Name of the parameter that takes any number of values, or None.
        several: Whether the function returns a tuple with one item per output.
        rank_of_numbers: Rank of the Python numbers that the function returns, None if it returns no such.
        renamed: Attributes and inputs of older versions that have another name.
        defaults: Defaults of the parameters.
        keywords: Parameters that are given by name alone.
        like: Parameter whose element type the results have, where no schema tells; by default the first.
        nullable: Parameters without a default that take None.
        outputs: Which output of the operator each item of the tuple is, if they do not stand in the same order.
    """

    function: Callable[..., Any]
    since: int
    parameters: Mapping[str, str] | None
    annotations: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    variadic: str | None = None
    several: bool = False
    rank_of_numbers: int | None = None
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    keywords: frozenset[str] = frozenset()
    like: str = ""
    nullable: frozenset[str] = frozenset()
    outputs: tuple[int, ...] = ()

    def position(self, output: int) -> int:
        """Return which item of the tuple is an output of the operator.

        Raises:
            ModelImportError: If none is.
        """
        if self.outputs and output not in self.outputs:
            raise ModelImportError(f"Its output {output} is not supported by the importer.")
        return self.outputs.index(output) if self.outputs else output


_TABLE: dict[tuple[str, str], list[Implementation]] = {}
_NUMBER_TYPES = (int, float, list[int], list[float])


def _kind(annotation: Any) -> str:
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        inner = [each for each in typing.get_args(annotation) if each is not type(None)]
        if len(inner) == 1:
            return _kind(inner[0])
        return Kind.EITHER if any(typing.get_origin(each) is list for each in inner) else Kind.SINGLE
    if annotation is torch.Tensor:
        return Kind.TENSOR
    if annotation in (int, float):
        return Kind.NUMBER
    return Kind.NUMBERS if annotation in _NUMBER_TYPES else Kind.ANY


def _described(
    function: Callable[..., Any], since: int, renamed: Mapping[str, str], like: str, rest: Callable[..., Any] | None
) -> Implementation:
    if inspect.isbuiltin(function) or isinstance(function, type(torch.abs)):
        return Implementation(function, since, None)
    parameters = _annotated(function)
    for name, each in _annotated(rest).items() if rest is not None else ():
        if each.default is not each.empty and _kind(each.annotation) != Kind.TENSOR:
            parameters.setdefault(name, each)
    returned = typing.get_type_hints(function).get("return")
    return Implementation(
        function,
        since,
        {name: _kind(each.annotation) for name, each in parameters.items()},
        {name: each.annotation for name, each in parameters.items()},
        variadic=next((name for name, each in parameters.items() if each.kind is each.VAR_POSITIONAL), None),
        several=typing.get_origin(returned) is tuple,
        rank_of_numbers=int(returned in (list[int], list[float])) if returned in _NUMBER_TYPES else None,
        renamed=renamed,
        defaults={name: each.default for name, each in parameters.items() if each.default is not each.empty},
        like=like,
        nullable=frozenset(
            name for name, each in parameters.items() if each.default is each.empty and _takes_none(each.annotation)
        ),
    )


def _annotated(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function with their annotations as types, ``**`` left out."""
    hints, parameters = typing.get_type_hints(function), inspect.signature(function).parameters
    named = {name: each for name, each in parameters.items() if each.kind is not each.VAR_KEYWORD}
    return {name: each.replace(annotation=hints[name]) for name, each in named.items()}


def _takes_none(annotation: Any) -> bool:
    return type(None) in typing.get_args(annotation)


def onnx_op(
    op_type: str,
    *,
    since: int = 1,
    domain: str = "",
    like: str = "",
    rest: Callable[..., Any] | None = None,
    **renamed: str,
) -> Callable[[F], F]:
    """Return a decorator that enters a function as what computes an operator.

    The parameters of the function have the names of the operator's inputs and attributes; whether one is an input or
    an attribute, which changes between opsets, does not matter to the function. Annotations say what it wants: see
    :class:`Kind`. A parameter ``num_outputs`` gets the number of outputs of the node, ``input_types`` the ONNX element
    types of its inputs.

    Args:
        op_type: ONNX operator.
        since: Lowest version of the operator that the function computes.
        domain: Domain of the operator; empty for ONNX's own.
        like: Parameter whose element type the results of an operator without a schema have; by default the first.
        rest: A function to which the function hands on its keyword arguments: it takes all of its optional parameters
            but tensors.
        renamed: Names of older versions, and the parameters that they stand for.
    """

    def enter(function: F) -> F:
        entries = _TABLE.setdefault((domain, op_type), [])
        entries.append(_described(cast(Callable[..., Any], function), since, renamed, like, rest))
        entries.sort(key=lambda entry: -entry.since)
        return function

    return enter


@functools.cache
def _load() -> None:
    from onnxops_decomp.importing import operators

    for module in pkgutil.iter_modules(operators.__path__, f"{operators.__name__}."):
        importlib.import_module(module.name)
    for native in native_ops().values():
        entries = _TABLE.setdefault((native.domain, native.op_type), [])
        entries.append(_native(native))
        entries.sort(key=lambda entry: -entry.since)  # stable: a function of this package stands before its equal


def _native(native: NativeOp) -> Implementation:
    """Return what the table holds for an operator of onnxops-core: the operator itself."""
    overload = native.overload
    arguments = overload._schema.arguments
    return Implementation(
        overload,
        native.since_version,
        {each.name: _native_kind(str(each.type)) for each in arguments},
        several=len(overload._schema.returns) > 1 or "[]" in str(overload._schema.returns[0].type),
        defaults={each.name: each.default_value for each in arguments if each.has_default_value()},
        keywords=frozenset(each.name for each in arguments if each.kwarg_only),
        outputs=native.output_positions,
    )


def _native_kind(type_text: str) -> str:
    if "Tensor" in type_text:
        return Kind.TENSOR
    if "str" in type_text:
        return Kind.ANY
    return Kind.NUMBERS if "List[" in type_text else Kind.NUMBER


def implementation(domain: str, op_type: str, version: int) -> Implementation | None:
    """Return what computes an operator whose schema is of ``version``, or None."""
    _load()
    return next((entry for entry in _TABLE.get((domain, op_type), []) if entry.since <= version), None)


def implementations() -> dict[tuple[str, str], list[Implementation]]:
    """Return the whole table by domain and operator, newest version first."""
    _load()
    return _TABLE
