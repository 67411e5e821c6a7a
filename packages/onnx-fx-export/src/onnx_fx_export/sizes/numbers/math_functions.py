"""Functions of Python's ``math`` of dynamic sizes and numbers, which stay open, and the quotients that Python has.

Python makes a number of the example of what ``__float__`` returns.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from onnx_fx_export.errors import CaptureError
from onnx_fx_export.sizes.numbers.arrays import is_size
from onnx_fx_export.sizes.numbers.torch_private import logarithm_of
from onnx_fx_export.torch_private import is_decided_by_data
from onnxops_core.exporting import original, replaced
from onnxops_decomp.exporting import INTEGER_FUNCTIONS, MATH_FUNCTIONS, math_stand_ins

__all__ = ["math_of_sizes"]

_Noted = Callable[[torch.Tensor, torch.SymFloat], None]


@contextlib.contextmanager
def math_of_sizes(homes: Sequence[ModuleType], note: _Noted) -> Iterator[None]:
    """Let the functions of ``math`` keep symbolic numbers in the body.

    Args:
        homes: The modules of Python that hold the code of the model; functions that they import by name are replaced
            there.
        note: Gets a tensor and the number in it, which is then read from it.
    """
    quotients = [
        (kind, name, _floor_quotient(original(kind, name), reflected=name == "__rfloordiv__"))
        for kind in (torch.SymInt, torch.SymFloat)
        for name in ("__floordiv__", "__rfloordiv__")
    ]
    bits = [
        (torch.SymInt, "bit_length", _bit_length),
        *((torch.SymInt, name, _shift(original(torch.SymInt, name), name)) for name in _SHIFTS),
    ]
    apply = functools.partial(_of_symbols, note)
    stand_ins = math_stand_ins(homes, _is_open, apply, ("isqrt", *_OTHERS))
    with replaced([*stand_ins, *quotients, *bits]):
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


def _bit_length(number: Any) -> Any:
    """Return how many bits an integer has: an odd number is no power of two, near which rounding would matter."""
    return math.floor(math.log2(2 * abs(number) + 1))


_SHIFTS: Mapping[str, Callable[[Any, Any], Any]] = {
    "__lshift__": lambda number, by: number * 2**by,
    "__rlshift__": lambda by, number: number * 2**by,
    "__rshift__": lambda number, by: number // 2**by,
    "__rrshift__": lambda by, number: number // 2**by,
}


def _shift(usual: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a shift for what stands for an integer; torch compares by how many bits with 0, and asks no guard."""

    @functools.wraps(usual)
    def function(self: Any, other: Any) -> Any:
        by = self if name.startswith("__r") and name != "__rshift__" else other
        is_known = not isinstance(by, torch.SymInt) or not isinstance(other, int | torch.SymInt)
        return usual(self, other) if is_known else _SHIFTS[name](self, other)

    return function


def _is_open(value: Any) -> bool:
    """Tell whether it is a number that is not known, or a tensor of one."""
    return is_size(value) or (isinstance(value, torch.Tensor) and not value.dim())


def _of_symbols(note: _Noted, name: str, *given: Any, **options: Any) -> Any:
    """Compute a function of symbolic numbers; those that torch has no symbol for are computed in a tensor."""
    numbers = [number.item() if isinstance(number, torch.Tensor) else number for number in given]
    if not any(map(is_size, numbers)):
        return getattr(math, name)(*numbers, **options)
    if name in ("sqrt", "isqrt"):
        root = torch.sym_sqrt(torch.sym_float(numbers[0]))
        return torch.sym_int(root) if name == "isqrt" else root
    if name == "pow":
        return torch.sym_float(numbers[0]) ** numbers[1]
    if name in INTEGER_FUNCTIONS:
        return functools.reduce(functools.partial(_of_integers, name), numbers[1:], abs(numbers[0]))
    if name == "log" and len(numbers) == 2:
        return math.log(numbers[0]) / math.log(numbers[1])
    if name in _OTHERS:
        return _OTHERS[name](*numbers, **options)
    return _in_tensor(note, name, numbers)


def _in_tensor(note: _Noted, name: str, numbers: list[Any]) -> Any:
    found = MATH_FUNCTIONS[name](*(torch.scalar_tensor(number, dtype=torch.float64) for number in numbers))
    if name in ("log", "log2"):
        with disable_proxy_modes_tracing():
            known = logarithm_of(torch.sym_float(numbers[0]), name)
        if known is not None:
            note(found, known)
    return found.item()


# ---- integers

# Of a number with more divisors a tensor is asked.
_MOST_DIVISORS = 16


def _of_integers(name: str, left: Any, right: Any) -> Any:
    """Return the common divisor, or multiple, of two integers; that of one number and a size stays an expression."""
    known, open_number = (right, left) if is_size(left) else (left, right)
    if not is_size(open_number):
        return getattr(math, name)(left, right)
    divisors = [] if is_size(known) else [one for one in range(1, abs(known) + 1) if known % one == 0]
    if not 0 < len(divisors) <= _MOST_DIVISORS:
        return INTEGER_FUNCTIONS[name](*(torch.scalar_tensor(one, dtype=torch.int64) for one in (left, right))).item()
    # The largest divisor that leaves no rest.
    shared = functools.reduce(
        torch.sym_max, (one * (1 - torch.sym_min(open_number % one, 1)) for one in divisors[1:]), 1
    )
    return shared if name == "gcd" else abs(open_number) // shared * abs(known)


# Of more members a product would be hard to read.
_MOST_FACTORS = 8


def _arrangements(n: Any, k: Any = None) -> Any:
    """Return in how many orders ``k`` of ``n`` members can be: ``n * (n - 1) * ...``."""
    if not isinstance(k, int) or not 0 <= k <= _MOST_FACTORS:
        raise CaptureError("math.perm() and math.comb() of a dynamic size take few members, and a known number.")
    return functools.reduce(operator.mul, (n - place for place in range(k)), 1)


# ---- what numbers are


def _is_of_sizes(number: Any) -> bool:
    """Tell whether a number is finite because it is computed from sizes."""
    return not is_size(number) or isinstance(number, torch.SymInt) or not is_decided_by_data(number.node.expr)


def _asked(name: str, of_sizes: bool) -> Callable[[Any], Any]:
    """Return a question about a number, whose answer is a tensor where data decides it."""

    def ask(number: Any) -> Any:
        if _is_of_sizes(number):
            return of_sizes
        return getattr(torch, name)(torch.scalar_tensor(number, dtype=torch.float64))

    return ask


def _isclose(a: Any, b: Any, *, rel_tol: Any = 1e-9, abs_tol: Any = 0.0) -> Any:
    a, b = torch.sym_float(a), torch.sym_float(b)
    return abs(a - b) <= torch.sym_max(rel_tol * torch.sym_max(abs(a), abs(b)), abs_tol)


def _modf(number: Any) -> tuple[Any, Any]:
    whole = torch.sym_float(math.trunc(number))
    return number - whole, whole


# Functions that are no function of torch.
_OTHERS: Mapping[str, Callable[..., Any]] = {
    "isnan": _asked("isnan", of_sizes=False),
    "isinf": _asked("isinf", of_sizes=False),
    "isfinite": _asked("isfinite", of_sizes=True),
    "isclose": _isclose,
    "modf": _modf,
    "ldexp": lambda number, power: torch.sym_float(number) * 2.0**power,
    "perm": _arrangements,
    "comb": lambda n, k: _arrangements(n, k) // math.factorial(k),
}
