"""Python's ``len``, ``min``, ``max`` and ``divmod`` of tensors and sizes, whose results stay open.

Python makes a number of what ``__len__`` returns. torch.export keeps the least and the greatest of two sizes open by
itself, but not those of more sizes, or of quotients of sizes; what it has for a size knows no ``divmod``.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch

from onnxops_core.exporting import original, replaced

__all__ = ["built_ins_of_sizes"]

_NUMBERS = ((int, torch.SymInt), (float, torch.SymFloat))


@contextlib.contextmanager
def built_ins_of_sizes(homes: Sequence[ModuleType]) -> Iterator[None]:
    """Let the functions give symbolic numbers for symbolic numbers in the body, ``len`` in the code of a model alone.

    Args:
        homes: The modules of Python that hold the code of the model.
    """
    functions = {"min": torch.sym_min, "max": torch.sym_max}
    extremes = [(builtins, name, _open(name, symbolic)) for name, symbolic in functions.items()]
    lengths = [(home, "len", _length) for home in homes if "len" not in vars(home)]
    with replaced([*extremes, (builtins, "divmod", _divmod), *lengths]):
        yield


def _length(value: Any) -> int | torch.SymInt:
    if isinstance(value, torch.Tensor) and value.dim() and isinstance(value.shape[0], torch.SymInt):
        return value.shape[0]
    return len(value)


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
