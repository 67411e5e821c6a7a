"""Arguments of calls: as lists stand now, as forms, and as lowerings take them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import number_argument
from onnx_ts_legacy.state.values import ListRef, Poison, RuntimeBool, RuntimeFloat, SequenceState, Tensor, VectorState
from onnx_ts_legacy.state.variables import value_of

__all__ = ["form_of", "frozen", "operand", "split_arguments"]

_RUNTIME_SCALARS = (torch.SymInt, RuntimeBool, RuntimeFloat)
# Most arguments stand for themselves.
_PLAIN = frozenset((bool, int, float, str, type(None), torch.dtype))


def split_arguments(overload: torch._ops.OpOverload, args: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Tell the keyword-only arguments of a node from the others."""
    positional: list[Any] = []
    keyword: dict[str, Any] = {}
    for (name, kwarg_only), value in zip(_parameters(overload), args, strict=False):
        if kwarg_only:
            keyword[name] = value
        else:
            positional.append(value)
    return positional, keyword


@functools.cache
def _parameters(overload: torch._ops.OpOverload) -> tuple[tuple[str, bool], ...]:
    """Return name of each argument and whether it is keyword-only; torch makes the schema's arguments anew."""
    return tuple((argument.name, argument.kwarg_only) for argument in overload._schema.arguments)


def frozen(arg: Any) -> Any:
    """Return a list argument as it is now."""
    if isinstance(arg, ListRef):
        return arg.state if isinstance(arg.state, SequenceState | VectorState) else [frozen(item) for item in arg.items]
    return arg


def form_of(context: ConversionContext, arg: Any) -> Any:
    """Return the form of an argument, or what stands for a number known only at run time."""
    if isinstance(arg, Tensor):
        return arg.fake
    if type(arg) in _PLAIN:
        return arg
    if isinstance(arg, RuntimeFloat):
        return context.metadata.unknown_float()
    if isinstance(arg, RuntimeBool):
        return True
    if isinstance(arg, list | tuple):
        return [form_of(context, item) for item in arg]
    if isinstance(arg, SequenceState):
        return [arg.element]
    if isinstance(arg, VectorState):
        raise ScriptValueError("It takes a list of numbers whose length has to be known here.")
    if isinstance(arg, Poison):
        raise arg.error()
    return arg


def operand(context: ConversionContext, arg: Any) -> Any:
    """Return an argument as lowerings take it."""
    if isinstance(arg, Tensor):
        return value_of(context, arg)
    if type(arg) in _PLAIN:
        return arg
    if isinstance(arg, list | tuple):
        return [operand(context, item) for item in arg]
    if isinstance(arg, _RUNTIME_SCALARS):
        return number_argument(context, arg)
    if isinstance(arg, SequenceState):
        raise ScriptValueError(
            "A list whose length is known only at run time can be stacked, concatenated and indexed, nothing else."
        )
    return arg
