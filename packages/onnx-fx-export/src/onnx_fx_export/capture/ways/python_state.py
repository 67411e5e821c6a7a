"""What the code of a model has in Python objects at a moment, as far as it may decide by that later."""

from __future__ import annotations

import types
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch

from onnx_fx_export.sizes.texts import asking_frame

__all__ = ["may_agree", "python_state"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_MOST_LEVELS, _MOST_PARTS = 4, 5000
_CODE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_State = dict[str, Any]


def python_state(frame: FrameType | None) -> list[_State]:
    """Return what the variables hold that a frame of the model's code, and those that called it, can read.

    Of tensors, it is their dtypes and ranks: what they hold is in the graph.
    """
    found = []
    # Who calls torch.export has variables of their own.
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith("torch.export."):
        if asking_frame(frame) is frame:
            names = {name: frame.f_globals.get(name) for name in frame.f_code.co_names}
            plain = {name: value for name, value in names.items() if isinstance(value, list | dict | set | int | str)}
            variables = {f"global {name}": value for name, value in plain.items()} | frame.f_locals
            description = _Description()
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

    def of(self, value: object, level: int = 0) -> Any:
        """Return the description of a value; of one that is too large, one that equals no other."""
        self._left -= 1
        if self._left < 0:
            return object()
        if isinstance(value, _PLAIN):
            return (type(value).__name__, repr(value))
        if isinstance(value, torch.Tensor):
            return ("tensor", value.dtype, value.dim())
        if level == _MOST_LEVELS or isinstance(value, _CODE):
            return type(value).__name__
        if isinstance(value, Mapping):
            parts = [(repr(key), each) for key, each in value.items()]
        elif isinstance(value, list | tuple | set | frozenset):
            parts = [(str(place), each) for place, each in enumerate(value)]
        else:
            own = getattr(value, "__dict__", {})
            parts = [(name, each) for name, each in own.items() if _is_data(value, name, each)]
        return (type(value).__name__, [(name, self.of(each, level + 1)) for name, each in parts])


def _is_data(value: object, name: str, part: object) -> bool:
    """Tell whether an attribute is what code may keep there; the parts of a module are watched by themselves."""
    of_module = isinstance(value, torch.nn.Module)
    return not (of_module and (name.startswith("_") or isinstance(part, torch.nn.Module)))
