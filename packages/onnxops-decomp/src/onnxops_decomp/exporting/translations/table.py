"""Translations that a user gives for one export: ``custom_translation_table`` of both exporters.

A translation is a function in one of three forms, which the operator's schema tells apart:

- ours, ``f(op, ...)``: the builder comes first, and the arguments of the operator follow;
- torch's, ``f(...)``: the arguments of the operator alone; it calls the operators of onnxscript;
- a function that ``onnxscript.script`` has made.

Of a list of functions in torch's form the later ones come first, and the first whose annotations admit the dtypes of
the call is taken, as torch's exporter did when it took lists.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from onnxops_core import OnnxExporterError
from onnxops_decomp.dtypes import leave_complex_open
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.exporting.errors import InvalidArgumentError
from onnxops_decomp.exporting.translations.onnxscript_functions import call_traced
from onnxops_decomp.lowerings.registry import PLACEMENT_ARGUMENTS, LoweringTable, builtin_table
from onnxops_decomp.lowerings.scripted import script_lowering
from onnxops_decomp.torch_private import overload_of_custom_op

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["Translations", "translation_table"]

Function = Callable[..., Any]
Translations = Mapping[Any, Any] | LoweringTable
"""What the exporters take: by operator a function, or a list of functions; or a table."""

_BUILDER_NAMES = ("op", "_op")


def translation_table(custom: Translations | None) -> LoweringTable:
    """Return the table of an export: the built-in one, in which a user's translations take the place of its entries.

    Args:
        custom: By operator a translation, or a list of them. Keys are overloads (``torch.ops.aten.relu.default``),
            packets, which stand for all their overloads on tensors that the function fits, what
            ``torch.library.custom_op`` returns, qualified names, functions of torch (``torch.relu``), and functions
            of numbers that stand in fx graphs (``operator.mul``, ``torch.sym_not``).

    Raises:
        InvalidArgumentError: If a key names no operator, or a function does not fit it, or fits it both with and
            without a builder.
    """
    if isinstance(custom, LoweringTable):
        return custom
    table = builtin_table()
    given: Mapping[Any, Any] = custom or {}
    for key, value in given.items():
        functions: list[Function] = list(value) if isinstance(value, list | tuple) else [value]
        if not functions:
            raise InvalidArgumentError(f"custom_translation_table gives {_shown(key)} an empty list of functions.")
        for target in _targets(key, functions):
            table = _entered(table, target, functions)
    return table


# ---- what a key stands for


@dataclasses.dataclass(frozen=True)
class _Argument:
    """One argument of an operator, as far as it decides which functions fit."""

    name: str
    required: bool
    keyword: bool
    default: Any = None


@dataclasses.dataclass(frozen=True)
class _Target:
    """What one translation is for: an overload, a function of numbers, or the name of an operator not yet known."""

    key: Any
    name: str
    arguments: tuple[_Argument, ...] | None
    signature: str = ""

    @classmethod
    def of_overload(cls, overload: torch._ops.OpOverload) -> _Target:
        arguments = tuple(
            _Argument(a.name, not a.has_default_value(), a.kwarg_only, a.default_value)
            for a in overload._schema.arguments
            if not a.is_out
        )
        return cls(overload, overload.name(), arguments, str(overload._schema))

    @classmethod
    def of_number_function(cls, function: Function) -> _Target:
        parameters = inspect.signature(function).parameters.values()
        arguments = tuple(_Argument(p.name, p.default is p.empty, False, p.default) for p in parameters)
        return cls(function, _shown(function), arguments, f"{_shown(function)}{inspect.signature(function)}")


def _targets(key: Any, functions: Sequence[Function]) -> list[_Target]:
    if isinstance(key, str):
        return _named(key, functions)
    overload = key if isinstance(key, torch._ops.OpOverload) else overload_of_custom_op(key)
    if overload is not None:
        return [_functional(overload)]
    if isinstance(key, torch._ops.OpOverloadPacket):
        return _fitting_overloads(key, functions)
    if _is_number_function(key):
        return [_Target.of_number_function(key)]
    packet = getattr(torch.ops.aten, key.__name__, None) if isinstance(key, _BUILTINS) else None
    if packet is None:
        raise InvalidArgumentError(
            f"custom_translation_table has the key {_shown(key)}, which is not an operator: give an overload such as "
            "torch.ops.aten.relu.default, or its name."
        )
    return _fitting_overloads(packet, functions)


_BUILTINS = (types.BuiltinFunctionType, types.MethodDescriptorType)


def _is_number_function(key: Any) -> bool:
    home = getattr(key, "__module__", "")
    name = getattr(key, "__name__", "")
    is_symbolic = name.startswith("sym_") and getattr(torch, name, None) is key
    return is_symbolic or (home in ("_operator", "math", "builtins") and callable(key) and not isinstance(key, type))


def _functional(overload: torch._ops.OpOverload) -> _Target:
    """Return the target for an overload, which has to be one that programs still call when they are written.

    Raises:
        InvalidArgumentError: If it changes an operand, and another overload stands for it in both exporters.
    """
    from onnxops_decomp.graph.calls import functional_overload

    functional = functional_overload(overload)
    if functional is not overload:
        raise InvalidArgumentError(
            f"custom_translation_table has the key {overload.name()}, which writes to an operand. Calls of it are "
            f"translated as {functional.name()}: give that as the key."
        )
    return _Target.of_overload(overload)


def _named(name: str, functions: Sequence[Function]) -> list[_Target]:
    namespace, separator, rest = name.partition("::")
    if not separator or not namespace or not rest:
        raise InvalidArgumentError(f"custom_translation_table has the key {name!r}; write it as 'namespace::name'.")
    packet_name, _, overload_name = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), packet_name, None)
    if packet is None:
        return [_Target(name, name, None)]
    if not overload_name and "default" not in packet.overloads():
        return _fitting_overloads(packet, functions)
    overload = getattr(packet, overload_name or "default", None)
    if overload is None:
        raise InvalidArgumentError(
            f"custom_translation_table has the key {name!r}, but {packet_name} has the overloads "
            f"{', '.join(packet.overloads())}."
        )
    return [_functional(overload)]


def _fitting_overloads(packet: torch._ops.OpOverloadPacket, functions: Sequence[Function]) -> list[_Target]:
    """Return the overloads on tensors that functions fit, all of them in the same form.

    Raises:
        InvalidArgumentError: If there are none.
    """
    overloads = [getattr(packet, name) for name in packet.overloads()]
    targets = [
        _Target.of_overload(overload)
        for overload in overloads
        if not overload._schema.is_mutable and any("Tensor" in str(a.type) for a in overload._schema.arguments)
    ]
    forms = {target: {_form(function, target) for function in functions} for target in targets}
    found = [target for target, kinds in forms.items() if None not in kinds]
    if not found:
        known = "; ".join(target.signature for target in targets) or "none on tensors"
        raise InvalidArgumentError(
            f"custom_translation_table: {_listed(functions)} fits no overload of {packet}: {known}. {_TWO_WAYS}"
        )
    if len(set().union(*(forms[target] for target in found))) > 1:
        names = ", ".join(target.name for target in found)
        raise InvalidArgumentError(
            f"custom_translation_table: {_listed(functions)} fits {packet} with a builder and without one ({names}); "
            f"give one overload as the key. {_TWO_WAYS}"
        )
    return found


# ---- the form of a function

_TWO_WAYS = (
    "Write it as f(op, ...) with the builder first, op.Abs(x), or as f(...) with the operator's own arguments, called "
    "as in its schema, and onnxscript's operators: from onnxscript import opset18; opset18.Abs(x)."
)


def _form(function: Function, target: _Target) -> str | None:
    """Return the form of a function: ``script``, ``builder``, ``traced``, ``both``; None if it fits in no form."""
    if hasattr(function, "to_function_proto"):
        return "script"
    parameters = _parameters(function)
    if target.arguments is None:
        return "builder" if parameters and parameters[0].name in _BUILDER_NAMES else "both"
    with_builder = _fits(parameters, target.arguments, builder=True)
    without = _fits(parameters, target.arguments, builder=False)
    if with_builder and without:
        return "both"
    return "builder" if with_builder else "traced" if without else None


def _parameters(function: Function) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(_plain(function)).parameters.values())
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"custom_translation_table gives {_shown(function)}, which is not a function with a signature. {_TWO_WAYS}"
        ) from None


def _plain(function: Function) -> Function:
    """Return the Python function behind what onnxscript makes of one that it traces."""
    inner: Function = getattr(function, "function", function) if hasattr(function, "function_ir") else function
    return inner


def _fits(parameters: Sequence[inspect.Parameter], arguments: Sequence[_Argument], *, builder: bool) -> bool:
    """Tell whether a function can be called for an operator, by number and names of its parameters."""
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_all = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    takes_named = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = {argument.name for argument in arguments}
    first = places[0].name if places else ""
    if builder:
        if not places and not takes_all:
            return False
        if first in names or (places and _dtypes_of(places[0].annotation) is not None):
            return False
        places = places[1:]
    elif first in _BUILDER_NAMES and first not in names:
        return False
    wanted = [argument for argument in arguments if not argument.keyword]
    named = {argument.name: argument for argument in arguments if argument.keyword}
    order = {argument.name: index for index, argument in enumerate(wanted)}
    for index, place in enumerate(places):
        if index < len(wanted) and (place.name in named or order.get(place.name, index) != index):
            return False
    given = names if takes_named else {p.name for p in parameters if p.kind is not p.VAR_POSITIONAL}
    needed = sum(argument.required for argument in wanted)
    if len(places) < needed and not takes_all:
        return False
    if any(a.required and a.name not in given | PLACEMENT_ARGUMENTS for a in named.values()):
        return False
    rest = [*places[len(wanted) :], *(p for p in parameters if p.kind is p.KEYWORD_ONLY)]
    return all(p.name in names or p.default is not p.empty for p in rest)


# ---- the entries of the table


def _entered(table: LoweringTable, target: _Target, functions: Sequence[Function]) -> LoweringTable:
    """Return the table with functions for a target.

    Raises:
        InvalidArgumentError: If one of them does not fit it, or fits it in two ways.
    """
    forms = []
    for function in functions:
        form = _form(function, target)
        if form in (None, "both"):
            ways = "fits it with a builder and without one" if form else "does not fit its arguments"
            schema = target.signature or f"{target.name}, whose schema is not known: import the library that defines it"
            raise InvalidArgumentError(
                f"custom_translation_table gives {_shown(function)} for {schema}; it {ways}. {_TWO_WAYS}"
            )
        forms.append(str(form))
    if callable(target.key) and not isinstance(target.key, torch._ops.OpOverload):
        table = table.extended({})
        table.numbers[target.key] = _lowering(target, functions, forms)
        return table
    groups: dict[bool | None, list[int]] = {}
    for index, function in enumerate(functions):
        groups.setdefault(_kind(function, forms[index]), []).append(index)
    for kind, members in groups.items():
        entry = _lowering(target, [functions[i] for i in members], [forms[i] for i in members])
        table = table.extended({target.name: entry}, complex=kind)
    return table


def _kind(function: Function, form: str) -> bool | None:
    """Return whether a function is for complex calls: those in torch's form are if they are annotated so."""
    if form != "traced":
        return None
    return any(dtype.name.startswith("COMPLEX") for dtypes in _admitted(function).values() for dtype in dtypes)


def _lowering(target: _Target, functions: Sequence[Function], forms: Sequence[str]) -> Function:
    """Return what the builder calls for a target."""
    choices = [(f, _single(target, f, form)) for f, form in zip(functions, forms, strict=True)]
    if len(choices) == 1:
        return choices[0][1]

    def choose(op: OpBuilder, /, *args: Any, **kwargs: Any) -> Any:
        for function, lower in reversed(choices):
            if _admits(function, args, kwargs):
                return lower(op, *args, **kwargs)
        dtypes = ", ".join(str(getattr(value.dtype, "name", None)) for arg in args for value in _values(arg))
        raise LoweringError(f"none of the translations {_listed(functions)} is annotated for tensors of {dtypes}")

    return choose


def _single(target: _Target, function: Function, form: str) -> Function:
    if form == "script":
        return script_lowering(function)
    called = function if form == "builder" else _traced(target, _plain(function))

    @functools.wraps(called)
    def guarded(op: OpBuilder, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return called(op, *args, **kwargs)
        except OnnxExporterError:
            raise
        except Exception as error:
            raise LoweringError(
                f"the translation {_shown(function)} failed with {type(error).__name__}: {error}"
            ) from error

    return guarded


def _traced(target: _Target, function: Function) -> Function:
    parameters = inspect.signature(function).parameters

    def lower(op: OpBuilder, /, *args: Any, **kwargs: Any) -> Any:
        given, named = _said(target, function, parameters, args, kwargs)
        results = call_traced(op, function, given, named)
        if _kind(function, "traced"):  # torch's functions do not say which of their results are complex
            pytree.tree_map_only(ir.Value, leave_complex_open, results)
        return results

    return lower


def _said(
    target: _Target,
    function: Function,
    parameters: Mapping[str, inspect.Parameter],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call without defaults: the function has its own, or was not written for them.

    Raises:
        LoweringError: If the call gives something that the function has no parameter for.
    """
    places = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_all = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    takes_named = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    schema = {argument.name: argument for argument in target.arguments or ()}
    wanted = [argument for argument in schema.values() if not argument.keyword]
    given, named = list(args), dict(kwargs)
    while given and _is_default(wanted[len(given) - 1], given[-1]):
        last = places[len(given) - 1] if len(given) <= len(places) else None
        if last is not None and last.default is last.empty:
            break
        given.pop()
    for name, value in kwargs.items():
        known = parameters.get(name)
        replaceable = known is None or known.default is not known.empty
        stored = known is None and not takes_named and name in PLACEMENT_ARGUMENTS
        if stored or (replaceable and _is_default(schema[name], value)):
            del named[name]
        elif known is None and not takes_named:
            raise LoweringError(f"the translation {_shown(function)} has no parameter {name!r}, which the call passes")
    if len(given) > len(places) and not takes_all:
        extra = wanted[len(places)].name
        raise LoweringError(f"the translation {_shown(function)} has no parameter {extra!r}, which the call passes")
    return given, named


def _is_default(argument: _Argument, value: Any) -> bool:
    same = type(value) is type(argument.default) and not isinstance(value, ir.Value)
    return not argument.required and same and bool(value == argument.default)


# ---- the dtypes that annotations admit


@functools.lru_cache(maxsize=256)
def _admitted(function: Function) -> dict[str, frozenset[ir.DataType]]:
    """Return the dtypes that a function is annotated for, by parameter; what has no such annotation is left out."""
    plain = _plain(function)
    try:
        hints = typing.get_type_hints(plain)
    except (NameError, TypeError):
        hints = dict(getattr(plain, "__annotations__", {}))
    found = {name: _dtypes_of(hint) for name, hint in hints.items() if name != "return"}
    return {name: dtypes for name, dtypes in found.items() if dtypes is not None}


def _dtypes_of(annotation: Any) -> frozenset[ir.DataType] | None:
    """Return the dtypes of an annotation made of onnxscript's tensor types; None if it is none."""
    dtype = getattr(annotation, "dtype", None)
    if isinstance(dtype, ir.DataType):
        return frozenset((dtype,))
    parts: Iterable[Any] = typing.get_args(annotation)
    if isinstance(annotation, typing.TypeVar):
        parts = annotation.__constraints__ or (annotation.__bound__,)
    known = [dtypes for part in parts if (dtypes := _dtypes_of(part)) is not None]
    return frozenset().union(*known) if known else None


# A complex tensor is one of pairs in ONNX.
_PAIRS = {ir.DataType.COMPLEX64: ir.DataType.FLOAT, ir.DataType.COMPLEX128: ir.DataType.DOUBLE}


def _admits(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether the annotations of a function admit the tensors of a call."""
    parameters = [p for p in _parameters(function) if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    given = {**kwargs, **{p.name: arg for p, arg in zip(parameters, args, strict=False)}}
    return all(
        part.dtype is None or part.dtype in dtypes | {_PAIRS[dtype] for dtype in dtypes & _PAIRS.keys()}
        for name, dtypes in _admitted(function).items()
        for part in _values(given.get(name))
    )


def _values(value: Any) -> Iterator[ir.Value]:
    for part in value if isinstance(value, list | tuple) else (value,):
        if isinstance(part, ir.Value):
            yield part


# ---- words


def _shown(thing: Any) -> str:
    """Return how messages call a function or key: its name, and where it is defined."""
    plain = _plain(thing)
    name = getattr(plain, "__qualname__", None) or getattr(plain, "__name__", None)
    if name is None:
        return repr(thing)
    code = getattr(plain, "__code__", None)
    return str(name) if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


def _listed(functions: Sequence[Function]) -> str:
    return ", ".join(map(_shown, functions))
