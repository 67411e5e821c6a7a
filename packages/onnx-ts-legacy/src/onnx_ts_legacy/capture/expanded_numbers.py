"""Numbers that stand for lists of equal ones, as ``kernel_size=n`` does for ``[n, n]``.

torch makes such a list of a traced size without a word to the trace, which then holds it as a constant; the elements of
a list that the program gives are recorded.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, CodeType
from typing import Any

import torch

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.capture.leaves import PLAIN
from onnx_ts_legacy.capture.truth_values import with_truth_values
from onnxops_core.exporting import original

__all__ = ["expanding_functions", "is_integer", "with_lists"]


def with_lists(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a call with lists in place of the integers that torch expands.

    Args:
        name: What the operator is called in ATen.
        args: By position, the tensor itself first.
        kwargs: By name.
    """
    if not any(is_integer(value) for value in (*args[1:], *kwargs.values())):
        return args, kwargs
    listed = [_as_list(name, index, value) for index, value in enumerate(args)]
    return listed, {key: _as_list(name, key, value) for key, value in kwargs.items()}


def _as_list(name: str, place: int | str, value: Any) -> Any:
    length = _length(name, place) if is_integer(value) else None
    return value if length is None else [value] * length


def is_integer(value: Any) -> bool:
    """Tell whether a value is a tensor that torch takes for an integer, as the sizes of a trace are."""
    return (
        type(value) not in PLAIN
        and isinstance(value, torch.Tensor)
        and not private.rank_of(value)
        and not (value.is_floating_point() or value.is_complex())
    )


@functools.cache
def _length(name: str, place: int | str) -> int | None:
    """Return how long the list is that an operator of ATen takes at a place; None if it may take no list there."""
    packet = getattr(torch.ops.aten, name.lstrip("_"), None)
    schemas = [] if packet is None else [getattr(packet, overload)._schema for overload in packet.overloads()]
    found = [each for schema in schemas for each in _arguments(schema, place)]
    if any(str(each.type) == "Tensor" for each in found):
        return None
    return next((each.N for each in found if each.N), None)


def _arguments(schema: Any, place: int | str) -> Iterator[Any]:
    if isinstance(place, str):
        yield from (each for each in schema.arguments if each.name == place)
    else:
        yield from [each for each in schema.arguments if not each.kwarg_only][place : place + 1]


def expanding_functions() -> list[tuple[Any, str, Callable[[Any], Any]]]:
    """Return what makes replacements of what torch's functions in Python call, which no mode of torch sees."""
    functional = torch.nn.functional
    return [
        (functional, name, functools.partial(_expanding, name))
        for name in _called_inside()
        if type(original(functional, name)) is BuiltinFunctionType
    ]


def _called_inside() -> tuple[str, ...]:
    """Return the operators in ``torch.nn.functional`` that functions of torch in Python may call.

    A mode sees the others as well, which only code of models and modules calls.
    """
    inside = {
        name
        for owner in (torch.functional, torch.nn.functional, torch.nn.init, torch.Tensor)
        for value in vars(owner).values()
        for name in _names_in(getattr(inspect.unwrap(value) if callable(value) else value, "__code__", None))
    }
    found = (name for name in vars(torch.nn.functional) if name in inside and not name.startswith("has_torch_function"))
    return tuple(name for name in found if hasattr(torch.ops.aten, name))


def _names_in(code: Any) -> Iterator[str]:
    """Yield the names of globals and attributes that some code and what is defined in it may read."""
    if isinstance(code, CodeType):
        yield from code.co_names
        for part in code.co_consts:
            yield from _names_in(part)


def _expanding(name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
    if type(usual) is not BuiltinFunctionType:
        return usual

    @functools.wraps(usual)
    def function(*args: Any, **kwargs: Any) -> Any:
        if private.traces():
            args, kwargs = with_truth_values(name, *with_lists(name, args, kwargs))  # type: ignore[assignment]
        return usual(*args, **kwargs)

    return function
