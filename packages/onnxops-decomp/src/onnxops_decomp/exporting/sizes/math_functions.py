"""Functions of Python's ``math`` on numbers that stand for sizes, of which Python would make those of the example."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

__all__ = ["INTEGER_FUNCTIONS", "MATH_FUNCTIONS", "math_stand_in", "math_stand_ins"]


def _log(x: torch.Tensor, base: torch.Tensor | None = None) -> torch.Tensor:
    return torch.log(x) if base is None else torch.log(x) / torch.log(base)


#: By their names, on tensors of one double.
MATH_FUNCTIONS: Mapping[str, Callable[..., torch.Tensor]] = {
    "log": _log,
    **{name: getattr(torch, name) for name in ("sqrt", "pow", "exp", "exp2", "expm1", "log2", "log10", "log1p")},
    **{name: getattr(torch, name) for name in ("sin", "cos", "tan", "asin", "acos", "atan", "atan2")},
    **{name: getattr(torch, name) for name in ("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc")},
    **{name: getattr(torch, name) for name in ("fmod", "copysign")},
    "fabs": torch.abs,
    "hypot": lambda *sides: functools.reduce(torch.hypot, sides, torch.zeros((), dtype=torch.float64)),
    "degrees": torch.rad2deg,
    "radians": torch.deg2rad,
}
#: By their names, on two tensors of one integer; Python's take any number of them.
INTEGER_FUNCTIONS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "gcd": torch.gcd,
    "lcm": torch.lcm,
}


def math_stand_ins(
    homes: Sequence[Any],
    stands_for_number: Callable[[Any], bool],
    apply: Callable[..., Any],
    others: Sequence[str] = ("isqrt",),
) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Yield what takes the place of the functions of ``math``: the place, the name, and a function.

    Args:
        homes: The modules of Python that define a model; functions that these import by name are replaced there too.
        stands_for_number: Tells whether an argument is what a size becomes.
        apply: Computes a function, given its name and its arguments, if one of these is.
        others: The names of further functions; ``isqrt`` gives an integer.
    """
    stand_ins: dict[int, Callable[..., Any]] = {}
    for name in (*MATH_FUNCTIONS, *INTEGER_FUNCTIONS, *others):
        usual = getattr(math, name)
        stand_in = math_stand_in(name, usual, stands_for_number, apply)
        yield math, name, stand_in
        stand_ins[id(usual)] = stand_in
    # What takes the place of a function keeps it alive, so that its id is its own.
    for home in homes:
        yield from ((home, key, stand_ins[id(value)]) for key, value in [*vars(home).items()] if id(value) in stand_ins)


def math_stand_in(
    name: str, usual: Callable[..., float], stands_for_number: Callable[[Any], bool], apply: Callable[..., Any]
) -> Callable[..., Any]:
    """Return what takes the place of one function of ``math``; see :func:`math_stand_ins`."""

    @functools.wraps(usual)
    def function(*args: Any, **options: Any) -> Any:
        return apply(name, *args, **options) if any(map(stands_for_number, args)) else usual(*args, **options)

    return function
