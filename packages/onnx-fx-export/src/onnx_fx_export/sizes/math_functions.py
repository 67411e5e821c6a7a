"""Functions of Python's ``math`` of dynamic sizes and numbers, which stay open, and the quotients that Python has.

Python makes a number of the example of what ``__float__`` returns.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from onnxops_core.exporting import original, replaced
from onnxops_decomp.exporting import MATH_FUNCTIONS, homes_of, math_stand_ins

__all__ = ["math_of_sizes"]


@contextlib.contextmanager
def math_of_sizes(model: torch.nn.Module) -> Iterator[None]:
    """Let the functions of ``math`` keep symbolic numbers in the body.

    Args:
        model: The model; functions that the files of its classes import by name are replaced there.
    """
    quotients = [
        (kind, name, _floor_quotient(original(kind, name), reflected=name == "__rfloordiv__"))
        for kind in (torch.SymInt, torch.SymFloat)
        for name in ("__floordiv__", "__rfloordiv__")
    ]
    with replaced([*math_stand_ins(homes_of(model), _is_symbolic, _of_symbols), *quotients]):
        yield


def _floor_quotient(usual: Callable[..., Any], *, reflected: bool) -> Callable[..., Any]:
    """Return ``//`` for what stands for a number: torch rounds the quotient of reals, Python their exact quotient down.

    ``0.5 // 0.1`` is 4.0, as 0.1 is a little more than a tenth, but ``0.5 / 0.1`` is rounded to 5.0.
    """

    @functools.wraps(usual)
    def function(self: Any, other: Any) -> Any:
        is_real = isinstance(self, torch.SymFloat) or isinstance(other, float | torch.SymFloat)
        if not is_real or not isinstance(other, int | float | torch.SymInt | torch.SymFloat):
            return usual(self, other)
        left, right = map(torch.sym_float, (other, self) if reflected else (self, other))
        # What is left is a whole number but for rounding.
        return torch.sym_float(math.floor((left - left % right) / right + 0.5))

    return function


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, torch.SymInt | torch.SymFloat)


def _of_symbols(name: str, *numbers: Any) -> Any:
    """Compute a function of symbolic numbers; those that torch has no symbol for are computed in a tensor."""
    if name in ("sqrt", "isqrt"):
        root = torch.sym_sqrt(torch.sym_float(numbers[0]))
        return torch.sym_int(root) if name == "isqrt" else root
    if name == "pow":
        return torch.sym_float(numbers[0]) ** numbers[1]
    return MATH_FUNCTIONS[name](*(torch.scalar_tensor(number, dtype=torch.float64) for number in numbers)).item()
