"""``min``, ``max`` and ``divmod`` of numbers made of sizes, which stay open where Python's would not.

torch.export keeps the least and the greatest of two sizes open by itself, but not those of more sizes, or of quotients
of sizes; what it has for a size knows no ``divmod``.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from onnxops_core.exporting import original, replaced

__all__ = ["open_extremes"]

_NUMBERS = ((int, torch.SymInt), (float, torch.SymFloat))


@contextlib.contextmanager
def open_extremes() -> Iterator[None]:
    """Let the smallest and the largest one of symbolic numbers be symbolic in the body, and what ``divmod`` gives."""
    functions = {"min": torch.sym_min, "max": torch.sym_max}
    extremes = [(builtins, name, _open(name, symbolic)) for name, symbolic in functions.items()]
    with replaced([*extremes, (builtins, "divmod", _divmod)]):
        yield


def _divmod(left: Any, right: Any, /) -> Any:
    if any(isinstance(number, torch.SymInt | torch.SymFloat) for number in (left, right)):
        return left // right, left % right
    return original(builtins, "divmod")(left, right)


def _open(name: str, symbolic: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def extreme(*values: Any, **options: Any) -> Any:
        usual = original(builtins, name)
        if options or not values:
            return usual(*values, **options)
        found = values if len(values) > 1 else tuple(values[0])
        return functools.reduce(symbolic, found) if _are_numbers_of_a_kind(found) else usual(found)

    return extreme


def _are_numbers_of_a_kind(values: tuple[Any, ...]) -> bool:
    """Tell whether there is something to keep open, and the kind of the result is known: 2 is not 2.0 for a dtype."""
    kinds = {type(value) for value in values}
    return any(symbolic in kinds and kinds <= {plain, symbolic} for plain, symbolic in _NUMBERS)
