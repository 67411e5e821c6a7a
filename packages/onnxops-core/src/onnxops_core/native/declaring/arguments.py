"""What kind of value each argument of a native operator takes, read from its torch schema.

torch itself checks kinds where a call goes through the dispatcher, with an error of its own; calls on plain tensors go
past it. Here both are refused alike, before anything looks at the values.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

import torch

from onnxops_core.native.declaring.call import Parameters
from onnxops_core.native.declaring.checks import invalid

__all__ = ["ArgumentKinds", "CheckedCalls"]

_INTEGER = (numbers.Integral, torch.SymInt)
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "Tensor": ((torch.Tensor,), "a tensor"),
    "int": (_INTEGER, "an integer"),
    "float": ((numbers.Real, torch.SymFloat, torch.SymInt), "a number"),
    "bool": ((bool, torch.SymBool), "True or False"),
    "str": ((str,), "a string"),
    "List[int]": ((Sequence,), "a list of integers"),
}


class ArgumentKinds:
    """Brings the arguments of a call to the kinds that a torch schema has, and refuses others.

    Which types of values have passed is remembered: the check of a call like an earlier one is a look-up.
    """

    def __init__(self, op: str, arguments: Sequence[torch.Argument]) -> None:
        self._op = op
        self._kinds = {argument.name: str(argument.type) for argument in arguments}
        self.has_lists = any(kind == "List[int]" for kind in self._kinds.values())
        found = (_conversion(str(argument.type), argument.kwarg_only) for argument in arguments)
        self._conversions = [
            (place, argument.name, convert)
            for place, (argument, convert) in enumerate(zip(arguments, found, strict=True))
            if convert is not None
        ]
        self._passed: set[tuple[object, ...]] = set()

    def converted(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the values with booleans for ONNX's 0 and 1, and numbers for tensors; the same tuple if they are."""
        for place, name, convert in self._conversions:
            given = values[place]
            if given is None or given is True or given is False:
                continue
            value = convert(self._op, name, given)
            if value is not given:
                values = (*values[:place], value, *values[place + 1 :])
        return values

    def check(self, values: tuple[Any, ...]) -> None:
        """Raise ValueError for an argument of another kind."""
        types = tuple(map(type, values))
        if types in self._passed:
            return
        for (name, kind), value in zip(self._kinds.items(), values, strict=True):
            optional = kind.startswith("Optional[")
            self._check_one(name, value, kind.removeprefix("Optional[").removesuffix("]" if optional else ""), optional)
        if not self.has_lists:
            self._passed.add(types)

    def check_placement(self, values: tuple[Any, ...]) -> None:
        """Raise ValueError for a tensor that is not dense, or on another device than the first one."""
        first: tuple[str, torch.device] | None = None
        for name, value in zip(self._kinds, values, strict=True):
            if not isinstance(value, torch.Tensor):
                continue
            if value.layout != torch.strided:
                raise invalid(self._op, name, value, f"a dense tensor, not one of layout {value.layout}")
            first = first or (name, value.device)
            if value.device != first[1] and (value.dim() or value.is_meta):
                raise invalid(self._op, name, value, f"the device of {first[0]}, {first[1]}, not {value.device}")

    def _check_one(self, name: str, value: object, kind: str, optional: bool) -> None:
        if optional and value is None:
            return
        allowed, expected = _KINDS[kind]
        wrong = not isinstance(value, allowed) or (isinstance(value, bool) and kind != "bool")
        if not wrong and kind == "List[int]":
            wrong = any(not isinstance(item, _INTEGER) for item in cast("Sequence[object]", value))
        if wrong:
            raise invalid(self._op, name, value, f"{expected} or None" if optional else expected)


class CheckedCalls:
    """Checks calls on plain tensors, and remembers those that have passed by all that a check looks at.

    Around a small computation a check costs as much as the computation, and most calls are like an earlier one.
    """

    _MOST = 1024

    def __init__(self, kinds: ArgumentKinds, parameters: Parameters, check: Callable[[Any], None]) -> None:
        self._kinds = kinds
        self._parameters = parameters
        self._check = check
        self._passed: set[tuple[object, ...]] = set()

    def checked(self, call: Any, values: tuple[Any, ...]) -> Any:
        """Return a call with these values in the kinds of the schema; raise ValueError for one that ONNX forbids."""
        parts: list[object] = []
        for value in values:
            if value is None:
                parts.append(None)
            elif isinstance(value, torch.Tensor):
                parts += (value.shape, value.dtype)
            else:
                parts += (type(value), value)
        key = tuple(parts)
        try:
            if key in self._passed:
                return call
        except TypeError:  # a value that has no hash
            key = ()
        converted = self._kinds.converted(values)
        self._kinds.check(converted)
        if converted is not values:  # what a tensor held is not in the key
            key, call = (), self._parameters.made_of(converted)
        self._check(call)
        # (1,) and (1.0,) are equal, so that what lists hold would not be looked at again.
        if key and not self._kinds.has_lists:
            if len(self._passed) >= self._MOST:
                self._passed.clear()
            self._passed.add(key)
        return call


def _conversion(kind: str, is_attribute: bool) -> Callable[[str, str, Any], Any] | None:
    """Return what brings an argument of a kind to it, None where nothing else is taken."""
    if kind in ("bool", "List[int]"):
        return flag if kind == "bool" else integers
    plain = kind.removeprefix("Optional[").removesuffix("]")
    return None if is_attribute else {"int": integer, "float": number}.get(plain)


def flag(op: str, argument: str, value: object) -> bool:
    """Return a boolean attribute, which may be given as ONNX's 0 or 1."""
    if value is True or value is False:
        return value
    if isinstance(value, numbers.Integral) and value in (0, 1):
        return bool(value)
    raise invalid(op, argument, value, "True or False, or 1 or 0")


def integer(op: str, argument: str, value: int | torch.SymInt | torch.Tensor) -> int:
    """Return a whole number that is given as such or as an integer tensor of one element."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
            _refuse(op, argument, value, "an integer, or an integer tensor of one element")
        return cast(int, value.reshape(()).item())
    if isinstance(value, bool) or not isinstance(value, _INTEGER):
        _refuse(op, argument, value, "an integer, or an integer tensor of one element")
    return cast(int, value)


def integers(op: str, argument: str, values: Sequence[int | torch.SymInt] | torch.Tensor) -> list[int]:
    """Return whole numbers that are given as such or as a 1-d integer tensor."""
    if isinstance(values, torch.Tensor):
        if values.dim() != 1 or values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
            _refuse(op, argument, values, "a list of integers, or an integer tensor of rank 1")
        return cast("list[int]", values.tolist())
    if isinstance(values, str) or not isinstance(values, Sequence):
        _refuse(op, argument, values, "a list of integers, or an integer tensor of rank 1")
    return cast("list[int]", list(values))


def number(op: str, argument: str, value: float | torch.SymFloat | torch.Tensor) -> float:
    """Return a number that is given as such or as a tensor of one element."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex() or value.dtype == torch.bool:
            _refuse(op, argument, value, "a number, or a tensor of one element")
        return cast(float, value.reshape(()).item())
    if isinstance(value, bool) or not isinstance(value, _KINDS["float"][0]):
        _refuse(op, argument, value, "a number, or a tensor of one element")
    return cast(float, value)


def _refuse(op: str, argument: str, value: object, expected: str) -> NoReturn:
    raise invalid(op, argument, value, expected)
