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
from onnxops_decomp.exporting import INTEGER_FUNCTIONS, MATH_FUNCTIONS, homes_of, math_stand_ins

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
    if name in INTEGER_FUNCTIONS:
        return functools.reduce(functools.partial(_of_integers, name), numbers[1:], abs(numbers[0]))
    return MATH_FUNCTIONS[name](*(torch.scalar_tensor(number, dtype=torch.float64) for number in numbers)).item()


# Of a number with more divisors a tensor is asked.
_MOST_DIVISORS = 16


def _of_integers(name: str, left: Any, right: Any) -> Any:
    """Return the common divisor, or multiple, of two integers; that of one number and a size stays an expression."""
    known, open_number = (right, left) if _is_symbolic(left) else (left, right)
    if not _is_symbolic(open_number):
        return getattr(math, name)(left, right)
    divisors = [] if _is_symbolic(known) else [one for one in range(1, abs(known) + 1) if known % one == 0]
    if not 0 < len(divisors) <= _MOST_DIVISORS:
        return INTEGER_FUNCTIONS[name](*(torch.scalar_tensor(one, dtype=torch.int64) for one in (left, right))).item()
    # The largest divisor that leaves no rest.
    shared = functools.reduce(
        torch.sym_max, (one * (1 - torch.sym_min(open_number % one, 1)) for one in divisors[1:]), 1
    )
    return shared if name == "gcd" else abs(open_number) // shared * abs(known)
