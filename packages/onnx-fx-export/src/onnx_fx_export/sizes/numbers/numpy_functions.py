"""Functions of NumPy of dynamic sizes, which stay open: of a size, of several of them, and of arrays of sizes.

NumPy has no functions of what stands for a size, or makes a number of it. Those that compute one number of a few are
computed as ``math`` and Python do; whether that is an integer is what NumPy itself says of the sizes of the example.
Arrays as large as a size stay NumPy's.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from onnx_fx_export.sizes.numbers.arrays import SizeArray, holds_sizes, is_size, note_number
from onnx_fx_export.torch_private import hint_of
from onnxops_core.exporting import original, replaced
from onnxops_decomp.exporting import code_names

__all__ = ["computes_with_numpy", "numpy_of_sizes"]


@contextlib.contextmanager
def numpy_of_sizes(homes: Sequence[types.ModuleType]) -> Iterator[None]:
    """Let the functions of NumPy keep symbolic numbers in the body.

    Args:
        homes: The modules of Python that hold the code of the model; functions that they import by name are replaced
            there.
    """
    # By identity, as what modules hold may have no hash.
    usual = {id(original(np, name)): function for name, function in _STAND_INS.items()}
    places: list[tuple[Any, str, Any]] = [(np, name, function) for name, function in _STAND_INS.items()]
    for home in homes:
        places += [(home, key, usual[id(value)]) for key, value in [*vars(home).items()] if id(value) in usual]
    # They leave alone what is no size, in whatever thread.
    with replaced(places, in_all_threads=True):
        yield


def computes_with_numpy(model: torch.nn.Module) -> bool:
    """Tell whether the code of a model names NumPy: its methods, and what these call by name."""
    waiting = [getattr(module, "function", None) for module in model.modules()]
    waiting += [value for kind in {*map(type, model.modules())} for value in vars(kind).values()]
    seen: set[int] = set()
    while waiting:
        function = waiting.pop()
        if id(function) in seen or not isinstance(function, types.FunctionType):
            continue
        seen.add(id(function))
        found = [function.__globals__.get(name) for name in code_names(function.__code__)]
        if any(value is np for value in found):
            return True
        waiting += [value for value in found if isinstance(value, types.FunctionType)]
    return False


class _StandIn:
    """A function in place of one of NumPy, with the attributes of that one.

    Args:
        name: Its name.
        compute: Computes it of sizes and numbers; None for those that it leaves alone.
    """

    def __init__(self, name: str, compute: Callable[..., Any]) -> None:
        self._name, self._compute = name, compute
        functools.update_wrapper(self, getattr(np, name), updated=())

    def __getattr__(self, name: str) -> Any:
        return getattr(original(np, self.__dict__["_name"]), name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Compute the function; NumPy does where no size is symbolic."""
        usual = original(np, self._name)
        if not any(map(holds_sizes, args)):
            return usual(*args, **options)
        found = None if options else self._compute(*args)
        return usual(*args, **options) if found is None else found


class _OfNumbers(_StandIn):
    """A function of a few numbers, which takes those of arrays one by one."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Compute the function of numbers, or of each of those in arrays."""
        if not options and any(isinstance(argument, SizeArray) for argument in args):
            return SizeArray.of(np.frompyfunc(self, len(args), 1)(*args))
        return super().__call__(*args, **options)


def _of_kind(name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of sizes and numbers whose result is an integer where NumPy says so of the example's."""

    def function(*numbers: Any) -> Any:
        usual = original(np, name)
        are_known = all(is_size(number) or isinstance(number, int | float) for number in numbers)
        found = compute(*numbers) if are_known and len(numbers) == getattr(usual, "nin", len(numbers)) else None
        if found is None:
            return None
        with np.errstate(all="ignore"):
            kind = np.asarray(usual(*map(_example_of, numbers))).dtype.kind
        to_kind: Callable[[Any], Any] | None = {"f": torch.sym_float, "i": torch.sym_int}.get(kind)
        return note_number(found if to_kind is None else to_kind(found))

    return function


def _example_of(number: Any) -> Any:
    """Return a number that NumPy takes, of the same kind."""
    hint = hint_of(number) if is_size(number) else number
    return (2 if isinstance(number, torch.SymInt) else 2.0) if hint is None else hint


def _over_members(compute: Callable[[Sequence[Any]], Any]) -> Callable[..., Any]:
    """Return a function of the sizes in a list."""

    def function(members: Any) -> Any:
        numbers = [*members.flat] if isinstance(members, np.ndarray) else members
        if not isinstance(numbers, list | tuple) or not all(is_size(n) or isinstance(n, int | float) for n in numbers):
            return None
        is_real = any(isinstance(number, float | torch.SymFloat) for number in numbers)
        return note_number(compute([torch.sym_float(number) for number in numbers] if is_real else numbers))

    return function


def _accumulated(name: str) -> Callable[..., Any]:
    def function(members: Any) -> Any:
        array = SizeArray.made_of(members)
        return None if array is None else SizeArray.of(original(np, name)(array))

    return function


def _clip(number: Any, least: Any, most: Any) -> Any:
    return torch.sym_min(torch.sym_max(number, least), most)


def _sign(number: Any) -> Any:
    return torch.sym_max(torch.sym_min(number, 1), -1) if isinstance(number, torch.SymInt) else None


def _isclose(a: Any, b: Any) -> Any:
    """Return whether two numbers differ by little of the second one."""
    return abs(torch.sym_float(a) - torch.sym_float(b)) <= 1e-8 + 1e-5 * abs(torch.sym_float(b))


_MATH_NAMES = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "arcsinh": "asinh", "arctan2": "atan2"}
_OF_MATH = (
    *("sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh"),
    *("arcsin", "arccos", "arctan", "arcsinh", "arctan2", "hypot", "fabs", "degrees", "radians", "gcd", "lcm"),
    *("isnan", "isinf", "isfinite"),
)


def _of_math(name: str) -> Callable[..., Any]:
    # Looked up when it is called: while a model is captured, those of ``math`` keep sizes open.
    return lambda *numbers: getattr(math, _MATH_NAMES.get(name, name))(*numbers)


_OF_NUMBERS: Mapping[str, Callable[..., Any]] = {
    **{name: _of_math(name) for name in _OF_MATH},
    "deg2rad": _of_math("radians"),
    "rad2deg": _of_math("degrees"),
    "ceil": lambda number: math.ceil(number),
    "floor": lambda number: math.floor(number),
    **dict.fromkeys(("trunc", "fix"), lambda number: math.trunc(number)),
    # NumPy rounds halves to even numbers, as Python does.
    **dict.fromkeys(("rint", "round", "around"), lambda number, digits=0: None if digits else round(number)),
    **dict.fromkeys(("maximum", "fmax"), torch.sym_max),
    **dict.fromkeys(("minimum", "fmin"), torch.sym_min),
    "clip": _clip,
    **dict.fromkeys(("abs", "absolute"), abs),
    "sign": _sign,
    "isclose": _isclose,
    "square": lambda number: number * number,
    "negative": operator.neg,
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    **dict.fromkeys(("divide", "true_divide"), operator.truediv),
    "floor_divide": operator.floordiv,
    **dict.fromkeys(("mod", "remainder"), operator.mod),
    "power": operator.pow,
    "float_power": lambda base, exponent: torch.sym_float(base) ** torch.sym_float(exponent),
    "left_shift": operator.lshift,
    "right_shift": operator.rshift,
}
_OF_MEMBERS: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "prod": lambda numbers: functools.reduce(operator.mul, numbers, 1),
    "sum": lambda numbers: functools.reduce(operator.add, numbers, 0),
    **dict.fromkeys(("max", "amax"), lambda numbers: functools.reduce(torch.sym_max, numbers)),
    **dict.fromkeys(("min", "amin"), lambda numbers: functools.reduce(torch.sym_min, numbers)),
    "mean": lambda numbers: torch.sym_float(functools.reduce(operator.add, numbers)) / len(numbers),
}
_STAND_INS: Mapping[str, _StandIn] = {
    **{name: _OfNumbers(name, _of_kind(name, compute)) for name, compute in _OF_NUMBERS.items()},
    **{name: _StandIn(name, _over_members(compute)) for name, compute in _OF_MEMBERS.items()},
    **{name: _StandIn(name, SizeArray.made_of) for name in ("array", "asarray")},
    **{name: _StandIn(name, _accumulated(name)) for name in ("cumsum", "cumprod")},
}
