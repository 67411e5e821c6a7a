"""What the code of a model has in Python objects at a moment, as far as it may decide by that later."""

from __future__ import annotations

import collections
import types
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch

from onnx_fx_export.sizes.texts import asking_frame

__all__ = ["may_agree", "python_state"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_CODE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_GLOBAL = (bool, int, float, str, list, dict, set, collections.deque)
_MOST_PARTS = 200_000
# What torch keeps in each module: its tensors are in the graph, its parts are described by themselves.
_OF_TORCH = frozenset(vars(torch.nn.Module()))
_State = dict[str, Any]


def python_state(frame: FrameType | None) -> list[_State]:
    """Return what the variables hold that a frame of the model's code, and those that called it, can read.

    Of tensors, it is their dtypes and ranks: what they hold is in the graph.
    """
    found, description = [], _Description()
    # Who calls torch.export has variables of their own.
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith("torch.export."):
        if asking_frame(frame) is frame:
            # A function that the frame calls may read any of its file.
            plain = {name: value for name, value in frame.f_globals.items() if isinstance(value, _GLOBAL)}
            variables = {f"global {name}": value for name, value in plain.items() if not name.startswith("__")}
            variables |= frame.f_locals
            found.append({name: description.of(value) for name, value in variables.items()})
        frame = frame.f_back
    return found


def may_agree(first: list[_State], second: list[_State]) -> bool:
    """Tell whether all variables that are known in both hold the same; reading one that is unknown is an error."""
    return len(first) == len(second) and all(
        one[name] == other[name] for one, other in zip(first, second, strict=True) for name in one.keys() & other.keys()
    )


class _Description:
    """Describes values, so that equal descriptions mean the same to code that reads them."""

    def __init__(self) -> None:
        self._left = _MOST_PARTS
        # Kept, as other objects may have the identity of one that is gone.
        self._seen: dict[int, tuple[int, Any]] = {}

    def of(self, value: object) -> Any:
        """Return the description of a value; of one that is too large, one that equals no other."""
        self._left -= 1
        if self._left < 0:
            return object()
        if isinstance(value, _PLAIN):
            return (type(value).__name__, repr(value))
        if isinstance(value, torch.Tensor):
            return ("tensor", value.dtype, value.dim())
        if isinstance(value, (*_SYMBOLIC, *_CODE)):
            return type(value).__name__
        if id(value) in self._seen:
            return ("seen", self._seen[id(value)][0])
        self._seen[id(value)] = len(self._seen), value
        parts = _parts(value)
        # What has no parts that Python shows may count, as iterators do; its text tells.
        return (type(value).__name__, repr(value) if parts is None else [(name, self.of(each)) for name, each in parts])


def _parts(value: object) -> list[tuple[str, Any]] | None:
    """Return what a value holds, by names or places; None if Python does not show it."""
    if isinstance(value, torch.nn.Module):
        own = [(name, each) for name, each in vars(value).items() if name not in _OF_TORCH]
        return [*own, *value._modules.items()]
    if isinstance(value, Mapping):
        return [(repr(key), each) for key, each in value.items()]
    if isinstance(value, list | tuple | set | frozenset | collections.deque):
        return [(str(place), each) for place, each in enumerate(value)]
    slots = [name for kind in type(value).__mro__ for name in _names(vars(kind).get("__slots__", ()))]
    own = [(name, getattr(value, name)) for name in slots if hasattr(value, name)]
    return [*own, *vars(value).items()] if hasattr(value, "__dict__") else own or None


def _names(slots: object) -> list[str]:
    return (
        [slots] if isinstance(slots, str) else [str(name) for name in slots] if isinstance(slots, tuple | list) else []
    )
