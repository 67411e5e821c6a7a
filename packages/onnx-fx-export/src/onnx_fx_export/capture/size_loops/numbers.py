"""What Python computes of numbers, of those that are tensors as well: a scan counts its steps in one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["all_of", "any_of", "computed", "is_not", "truth_of"]


def all_of(*parts: Callable[[], Any]) -> Any:
    """Return ``a and b``, of which all parts are computed where a tensor or a size decides."""
    return _joined(parts, torch.logical_and, ends=False)


def any_of(*parts: Callable[[], Any]) -> Any:
    """Return ``a or b``, of which all parts are computed where a tensor or a size decides."""
    return _joined(parts, torch.logical_or, ends=True)


def _joined(parts: tuple[Callable[[], Any], ...], join: Callable[..., torch.Tensor], *, ends: bool) -> Any:
    truths: list[torch.Tensor] = []
    found: Any = not ends
    for part in parts:
        found = part()
        if isinstance(found, torch.Tensor | torch.SymBool):
            truths.append(truth_of(found))
        elif bool(found) is ends:
            # What comes before decides nothing any more, and what comes behind is not asked for.
            return found
    return functools.reduce(join, truths) if truths else found


def is_not(value: Any) -> Any:
    """Return ``not value``, of a tensor and of what a size decides as well."""
    return truth_of(value).logical_not() if isinstance(value, torch.Tensor | torch.SymBool) else not value


def truth_of(value: torch.Tensor | torch.SymBool) -> torch.Tensor:
    """Return whether something is true as a tensor without dimensions; a tensor has to be of one element."""
    return (value if isinstance(value, torch.Tensor) else torch.full((), torch.sym_ite(value, 1, 0))).reshape(()) != 0


def computed(name: str, function: Callable[..., Any], *values: Any) -> Any:
    """Call a function of numbers; where one of them is a tensor, do what it means for tensors.

    Args:
        name: What the function is called: ``"max"``, ``"math.sin"``.
        function: The function, one of those built in or of :mod:`math`, or what stands for it.
        values: Its arguments.
    """
    if name not in _KNOWN or not any(map(_is_number, values)) or not all(map(_is_scalar, values)):
        return function(*values)
    tensors = [value if isinstance(value, torch.Tensor) else torch.full((), value) for value in values]
    if name in ("max", "min"):
        return functools.reduce(torch.maximum if name == "max" else torch.minimum, tensors)
    if name in _WHOLE:
        return tensors[0] if not tensors[0].is_floating_point() else _WHOLE[name](tensors[0]).to(torch.int64)
    real = [tensor.to(torch.float64) for tensor in tensors]
    if name == "float":
        return real[0]
    if name == "math.log" and len(real) > 1:
        return real[0].log() / real[1].log()
    return getattr(torch, name.removeprefix("math."))(*real)


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 0


def _is_scalar(value: Any) -> bool:
    return _is_number(value) or isinstance(value, int | float | torch.SymInt | torch.SymFloat)


_WHOLE = {"int": torch.trunc, "math.ceil": torch.ceil, "math.floor": torch.floor, "math.trunc": torch.trunc}
_REAL = ("acos", "asin", "atan", "atan2", "cos", "cosh", "erf", "exp", "expm1", "log", "log10", "log1p", "log2", "pow")
_KNOWN = {"float", "max", "min", *_WHOLE} | {f"math.{name}" for name in (*_REAL, "sin", "sinh", "sqrt", "tan", "tanh")}
