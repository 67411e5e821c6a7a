"""Sizes are Python numbers to the code of a traced model: by their class, and to Python's functions of numbers.

In a trace a size is a tensor, so that ``isinstance(x.shape[0], int)`` would be false and ``torch.is_tensor`` true. What
``type()`` returns cannot be replaced; where the code asks for that, the trace is compared with the model.
"""

from __future__ import annotations

import builtins
import functools
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.graph.parts import is_number_of_trace, mark_number_of_trace
from onnx_ts_legacy.graph.sources import is_library
from onnxops_core.exporting import original
from onnxops_decomp.exporting import MATH_FUNCTIONS, math_stand_ins

__all__ = ["functions_of_numbers", "isinstance_of_numbers", "kind_of_number", "open_extreme", "with_number_dtypes"]

_STANDARD_LIBRARY = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_NUMPY = f"{os.sep}numpy{os.sep}"
_IS_TENSOR = os.path.join(os.path.dirname(torch.__file__), "__init__.py")


def isinstance_of_numbers(is_traced: Callable[[], bool]) -> Callable[[Any, Any], bool]:
    """Return ``isinstance`` for the code of a model that is being traced.

    Args:
        is_traced: Tells whether this thread records a trace of it.
    """
    usual = original(builtins, "isinstance")

    @functools.wraps(usual)
    def function(value: Any, kinds: Any, /) -> bool:
        if type(value) is torch.Tensor and is_traced() and value.dim() == 0 and _is_asked_by_model(sys._getframe(2)):
            number = _number_like(value)
            return bool(usual(value if number is None else number, kinds))
        return bool(usual(value, kinds))

    return function


def functions_of_numbers() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Yield the replacements of Python's functions that a tensor of a trace, which a size is there, does not know."""
    for name, (count, recorded) in _FUNCTIONS.items():
        yield builtins, name, _recorded(original(builtins, name), count, recorded)
    yield from math_stand_ins((), lambda number: kind_of_number(number) is not None, _in_doubles)
    for home, name in ((torch, "tensor"), (torch, "as_tensor"), (torch, "asarray"), (torch.Tensor, "new_tensor")):
        yield home, name, _made_of_numbers(original(home, name), int(home is torch.Tensor))


def open_extreme(usual: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``min`` or ``max`` with the extreme one of sizes recorded, where all are numbers of one class."""
    recorded = {"min": torch.minimum, "max": torch.maximum}[usual.__name__]

    @functools.wraps(usual)
    def function(*values: Any, **options: Any) -> Any:
        if options or not values:
            return usual(*values, **options)
        found = values if len(values) > 1 else tuple(values[0])
        kinds = {kind_of_number(value) or type(value) for value in found}
        if kinds not in ({int}, {float}) or not any(isinstance(value, torch.Tensor) for value in found):
            return usual(found)
        tensors = [each if isinstance(each, torch.Tensor) else original(torch, "tensor")(each) for each in found]
        return _marked(functools.reduce(recorded, tensors))

    return function


def _made_of_numbers(usual: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Return a function that makes a tensor of numbers, of which a trace records those that it computes.

    Args:
        usual: The function.
        place: Where its arguments have the numbers.
    """

    @functools.wraps(usual)
    def function(*args: Any, **kwargs: Any) -> Any:
        is_list = len(args) == place + 1 and isinstance(args[place], list | tuple)
        kinds = _kinds(args[place]) if is_list and private.traces() else None
        if not kinds or not kinds.computed or kwargs.keys() - {"dtype", "device"}:
            return usual(*args, **kwargs)
        likeness = args[0] if place else torch.empty(0, dtype=kinds.dtype)
        dtype = kwargs.get("dtype") or likeness.dtype
        return _stacked(args[place], dtype, kwargs.get("device") or likeness.device)

    return function


class _Kinds(NamedTuple):
    """Which numbers there are in nested lists: their common dtype, and whether a trace computes some of them."""

    dtype: torch.dtype
    computed: bool


def _kinds(data: Any) -> _Kinds | None:
    """Return which numbers there are in nested lists; None if there is anything else, or nothing."""
    if isinstance(data, list | tuple):
        found = [_kinds(part) for part in data]
        known = [kinds for kinds in found if kinds is not None]
        if not found or len(known) < len(found):
            return None
        dtype = functools.reduce(torch.promote_types, (kinds.dtype for kinds in known))
        return _Kinds(dtype, any(kinds.computed for kinds in known))
    if type(data) is torch.Tensor and data.dim() == 0:
        return _Kinds(data.dtype, True)
    plain = {bool: torch.bool, int: torch.int64, float: torch.get_default_dtype()}
    return _Kinds(plain[type(data)], False) if type(data) in plain else None


def _stacked(data: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if isinstance(data, list | tuple):
        return torch.stack([_stacked(part, dtype, device) for part in data])
    number = data if isinstance(data, torch.Tensor) else original(torch, "tensor")(data, dtype=dtype)
    return number.to(device, dtype)


def _in_doubles(name: str, *numbers: Any) -> torch.Tensor:
    """Compute a function of sizes; the result has the dtype that a quotient of sizes has in a trace."""
    doubles = [_stacked(number, torch.float64, torch.device("cpu")) for number in numbers]
    if name == "isqrt":
        return _marked(doubles[0].sqrt().to(torch.int64))
    return _marked(MATH_FUNCTIONS[name](*doubles).to(torch.get_default_dtype()))


def _marked(number: torch.Tensor) -> torch.Tensor:
    mark_number_of_trace(private.traced_value(number))
    return number


def with_number_dtypes(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a call of arithmetic in the dtypes that Python's numbers take beside tensors.

    Beside a tensor of no dimension a size, which is one of integers in a trace, would decide the dtype of the result.

    Args:
        name: What is called, without underscores.
        args: Its arguments by position.
        kwargs: Those by name.
    """
    if name not in _PROMOTING:
        return args, kwargs
    given = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor)]
    others = [arg for arg in (given[1:] if name == "where" else given) if kind_of_number(arg) is None]
    if len(others) != 1 or others[0].dim():
        return args, kwargs

    def fitted(arg: Any) -> Any:
        kind = kind_of_number(arg)
        dtype = None if kind is None else torch.result_type(others[0], kind(1))
        # The quotient of integers is a real number whatever integers they are.
        is_kept = dtype is None or (name in _DIVISIONS and not dtype.is_floating_point)
        return arg if is_kept else arg.to(dtype)

    return [fitted(arg) for arg in args], {key: fitted(arg) for key, arg in kwargs.items()}


_DIVISIONS = frozenset(("div", "rdiv", "divide", "truediv", "rtruediv", "true_divide"))
_PROMOTING = _DIVISIONS | {
    *("add", "radd", "sub", "rsub", "subtract", "mul", "rmul", "multiply", "pow", "rpow", "where", "fmod"),
    *("clamp", "clamp_min", "clamp_max", "clip"),
    *("floordiv", "rfloordiv", "floor_divide", "mod", "rmod", "remainder"),
    *(f"{start}{name}" for start in ("", "r", "bitwise_") for name in ("and", "or", "xor", "lshift", "rshift")),
}


# With the number of the arguments.
_FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "divmod": (2, lambda left, right: (left // right, left % right)),
    "round": (1, lambda number: _marked(number.round().to(torch.int64))),
}


def _recorded(usual: Callable[..., Any], count: int, recorded: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(usual)
    def function(*args: Any, **kwargs: Any) -> Any:
        is_open = len(args) == count and not kwargs and any(kind_of_number(arg) is not None for arg in args)
        return (recorded if is_open else usual)(*args, **kwargs)

    return function


def kind_of_number(value: Any) -> type | None:
    """Return the class of the Python number that a traced size stands for; None for anything else."""
    # Most of what is compared is no tensor at all.
    if type(value) is not torch.Tensor or value.dim() or not private.traces():
        return None
    number = _number_like(value)
    return None if number is None else type(number)


def _is_asked_by_model(frame: FrameType | None) -> bool:
    """Tell whether code of the user asks, through Python's own libraries or ``torch.is_tensor`` at most."""
    while frame is not None:
        name = frame.f_code.co_filename
        is_standard = name.startswith(_STANDARD_LIBRARY) and "site-packages" not in name
        if not is_standard and _NUMPY not in name and (name != _IS_TENSOR or frame.f_code.co_name != "is_tensor"):
            return not is_library(name) and not name.startswith("<frozen")
        frame = frame.f_back
    return False


def _number_like(tensor: torch.Tensor) -> bool | int | float | None:
    """Return a number of the class that a size, or what follows from sizes, has outside of traces."""
    if not is_number_of_trace(private.traced_value(tensor)):
        return None
    if tensor.dtype == torch.bool:
        return True
    return 1.0 if tensor.is_floating_point() else 1
