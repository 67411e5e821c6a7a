"""Truth values where an operator takes a number, as in ``mask & True`` or ``torch.full((2,), True)``.

Tracing ends in an internal error for them. A tensor takes their place where the operator takes one as well, and has the
same part in the dtype of the result; elsewhere 0 or 1 does.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["with_truth_values"]

# What operators of Python are called in ATen, where that is not their own name.
_ATEN_NAMES = {"mod": "remainder", "floordiv": "floor_divide", "truediv": "div"}


def with_truth_values(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a call without truth values that a trace cannot record.

    Args:
        name: What is called.
        args: Its arguments by position, the tensor itself first.
        kwargs: Those by name.
    """
    if not any(type(value) is bool for value in (*args, *kwargs.values())):
        return args, kwargs
    recorded = [_recorded(name, place, value) for place, value in enumerate(args)]
    named = {key: _recorded(name, key, value) for key, value in kwargs.items()}
    if all(map(operator.is_, (*args, *kwargs.values()), (*recorded, *named.values()))):
        return args, kwargs
    if name == "full" and named.get("dtype") is None:
        # The value alone decides the dtype.
        named["dtype"] = torch.bool
    return recorded, named


def _recorded(name: str, place: int | str, value: Any) -> Any:
    kinds = _kinds(name, place) if type(value) is bool else ()
    if "Scalar" not in kinds or "bool" in kinds:
        return value
    return torch.tensor(value) if "Tensor" in kinds else int(value)


@functools.cache
def _kinds(name: str, place: int | str) -> frozenset[str]:
    """Return the types of what an operator of ATen takes at a place, one of each overload."""
    packet = _packet(name)
    schemas = [] if packet is None else [getattr(packet, overload)._schema for overload in packet.overloads()]
    numbers = [found for found in (_argument(schema, place) for schema in schemas) if found is not None]
    # Another overload may take a tensor of another meaning there, as scatter() does.
    names = {found.name for found in numbers if _kind(found) == "Scalar"}
    return frozenset(_kind(found) for found in numbers if found.name in names)


def _packet(name: str) -> Any:
    plain = name.strip("_")
    for known in (name, _ATEN_NAMES.get(plain, plain), f"__{plain[1:]}__", _ATEN_NAMES.get(plain[1:], plain[1:])):
        packet = getattr(torch.ops.aten, known, None)
        if packet is not None:
            return packet
    return None


def _argument(schema: Any, place: int | str) -> Any:
    if isinstance(place, str):
        return next((each for each in schema.arguments if each.name == place), None)
    given = [each for each in schema.arguments if not each.kwarg_only]
    return given[place] if place < len(given) else None


def _kind(argument: Any) -> str:
    return str(argument.type).removeprefix("Optional[").removesuffix("]").replace("number", "Scalar")
