"""Sizes are Python numbers to the code of a traced model: by their class, and to Python's functions of numbers.

In a trace a size is a tensor, so that ``isinstance(x.shape[0], int)`` would be false and ``torch.is_tensor`` true. What
``type()`` returns cannot be replaced; where the code asks for that, the trace is compared with the model.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import math
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import torch

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.capture.leaves import leaves_of, with_leaves
from onnx_ts_legacy.graph.parts import is_number_of_trace, mark_number_of_trace
from onnx_ts_legacy.graph.sources import is_library
from onnxops_core.exporting import Replacements, original, replaced
from onnxops_decomp.exporting import INTEGER_FUNCTIONS, MATH_FUNCTIONS, math_stand_in

__all__ = [
    "as_result",
    "converted_number",
    "functions_of_numbers",
    "isinstance_of_numbers",
    "kind_of_number",
    "open_extreme",
    "with_number_dtypes",
]

_STANDARD_LIBRARY = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_NUMPY = f"{os.sep}numpy{os.sep}"
_IS_TENSOR = os.path.join(os.path.dirname(torch.__file__), "__init__.py")


def isinstance_of_numbers(usual: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Return ``isinstance`` for the code of a model that is being traced.

    Args:
        usual: What it is otherwise.
    """
    # All code that runs during a trace asks this.
    kind, tensor, is_traced = type, torch.Tensor, private.traces

    @functools.wraps(usual)
    def function(value: Any, kinds: Any, /) -> bool:
        if (
            kind(value) is tensor
            and is_traced()
            and private.rank_of(value) == 0
            and _is_asked_by_model(sys._getframe(1))
        ):
            number = _number_like(value)
            return usual(value if number is None else number, kinds)
        return usual(value, kinds)

    return function


@contextlib.contextmanager
def functions_of_numbers(homes: Sequence[ModuleType]) -> Iterator[None]:
    """Let Python's functions take sizes for numbers in the traces of the body, and record what they make of them.

    Args:
        homes: The modules of Python that define the model.
    """
    functions, methods = _stand_ins()
    own = [(home, "len", _length) for home in homes if "len" not in vars(home)]
    own += [each for home in homes for each in functions.of_other_names(home)]
    # Each leaves threads alone that record no trace.
    with (
        replaced(functions, in_all_threads=True),
        replaced(methods, in_all_threads=True),
        replaced(own, in_all_threads=True),
    ):
        yield


@functools.cache
def _stand_ins() -> tuple[Replacements, Replacements]:
    """Return what takes the place of functions of numbers in traces: of Python's, and of torch's."""
    of_python = [
        *((owner, name, partial(_recorded, count=count, recorded=how)) for owner, name, count, how in _FUNCTIONS),
        *((math, name, partial(_of_sizes, name)) for name in _OF_MATH),
    ]
    return Replacements(of_python), Replacements(_METHODS)


def _of_sizes(name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of ``math`` that is recorded where it gets sizes."""
    return math_stand_in(name, usual, _is_number, _in_doubles)


def _assigned(name: str, usual: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return what ``+=`` and its like do: a number stays as it is under its other names, a tensor is changed."""

    @functools.wraps(usual)
    def function(value: Any, other: Any) -> Any:
        return usual(value, other) if kind_of_number(value) is None else getattr(value, f"__{name}__")(other)

    return function


def _of_truths(chosen: Callable[[Any, Any], Any], usual: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return ``&``, ``|`` or ``^``, of which a trace can record none where both operands are truth values of Python."""

    @functools.wraps(usual)
    def function(value: Any, other: Any) -> Any:
        if kind_of_number(value) is bool and (isinstance(other, bool) or kind_of_number(other) is bool):
            return chosen(value, other)
        return usual(value, other)

    return function


def _length(value: Any) -> Any:
    """Return the length of a tensor as what its size is in a trace: Python makes a number of what ``__len__`` gives."""
    is_open = isinstance(value, torch.Tensor) and value.dim() and private.traces()
    return value.size(0) if is_open else len(value)


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
        dtype = torch.float64 if float in kinds else torch.int64
        return _marked(functools.reduce(recorded, [_stacked(each, dtype, torch.device("cpu")) for each in found]))

    return function


def _made_of_numbers(place: int, usual: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes a tensor of numbers, of which a trace records those that it computes.

    Args:
        place: Where its arguments have the numbers.
        usual: The function.
    """

    @functools.wraps(usual)
    def function(*args: Any, **kwargs: Any) -> Any:
        data = args[place] if len(args) == place + 1 else None
        is_made = isinstance(data, list | tuple) or kind_of_number(data) is not None
        kinds = _kinds(data) if is_made and private.traces() else None
        if not kinds or not kinds.computed or kwargs.keys() - {"dtype", "device"}:
            return usual(*args, **kwargs)
        likeness = args[0] if place else torch.empty(0, dtype=kinds.dtype)
        dtype = kwargs.get("dtype") or likeness.dtype
        return _stacked(data, dtype, kwargs.get("device") or likeness.device)

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
    kind = kind_of_number(data) or type(data)
    if kind is torch.Tensor and data.dim() == 0:
        return _Kinds(data.dtype, True)
    plain = {bool: torch.bool, int: torch.int64, float: torch.get_default_dtype()}
    return _Kinds(plain[kind], isinstance(data, torch.Tensor)) if kind in plain else None


def _stacked(data: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if isinstance(data, list | tuple):
        return torch.stack([_stacked(part, dtype, device) for part in data])
    number = data if isinstance(data, torch.Tensor) else original(torch, "tensor")(data, dtype=dtype)
    # Without a copy a conversion that changes nothing gives the number itself, which would be this tensor from then on.
    return number.to(device, dtype, copy=True)


def _in_doubles(name: str, *numbers: Any) -> torch.Tensor:
    """Compute a function of sizes, in the precision that Python's numbers have."""
    if name in INTEGER_FUNCTIONS:
        first, *others = (_stacked(number, torch.int64, torch.device("cpu")) for number in numbers)
        return _marked(functools.reduce(INTEGER_FUNCTIONS[name], others, first.abs()))
    doubles = [_stacked(number, torch.float64, torch.device("cpu")) for number in numbers]
    if name == "isqrt":
        return _marked(doubles[0].sqrt().to(torch.int64))
    return _marked(MATH_FUNCTIONS[name](*doubles))


def _marked(number: torch.Tensor) -> torch.Tensor:
    mark_number_of_trace(private.traced_value(number))
    return number


def with_number_dtypes(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a call in the dtypes that Python's numbers take, alone and beside tensors.

    Alone they are doubles. Beside a tensor a number never decides more than the class of the result's dtype, while one
    of a trace is a tensor, which would.

    Args:
        name: What is called, without underscores.
        args: Its arguments by position.
        kwargs: Those by name.
    """
    leaves = leaves_of((*args, *kwargs.values()))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    kinds = [kind_of_number(tensor) for tensor in tensors]
    if not any(kinds) or len(leaves) == 1:
        return args, kwargs
    others = [tensor for tensor, kind in zip(tensors, kinds, strict=True) if kind is None]
    # Python has no such function: what it makes of numbers is a tensor.
    is_choice = name == "where" and bool(others) and others[0] is args[0]
    if is_choice:
        others = others[1:]
    if not others and name in _OF_NUMBERS and not is_choice:
        is_real = name in _DIVISIONS or float in kinds or any(isinstance(leaf, float) for leaf in leaves)
        is_real = is_real or (name in ("pow", "rpow") and _is_negative(leaves[name == "pow"]))
        if name not in _PROMOTING or not is_real:
            return args, kwargs
        change: Callable[[Any], Any] = _double
    else:
        change = partial(_beside, name, others)
    return [with_leaves(change, arg) for arg in args], {key: with_leaves(change, arg) for key, arg in kwargs.items()}


def _is_negative(exponent: Any) -> bool:
    """Tell whether Python makes a fraction of a power of integers. Where sizes decide that, it becomes a condition."""
    return bool(exponent < 0)


def _double(arg: Any) -> Any:
    return arg if kind_of_number(arg) is None or arg.dtype == torch.float64 else _marked(arg.to(torch.float64))


def _beside(name: str, others: Sequence[torch.Tensor], arg: Any) -> Any:
    """Return an argument in the dtype that it is to have beside tensors, if it is a number."""
    kind = kind_of_number(arg)
    if kind is None:
        return arg
    dtype = arg.dtype
    if kind is float and torch.float64 not in {other.dtype for other in others}:
        dtype = torch.get_default_dtype()
    if len(others) == 1 and not others[0].dim() and (kind is float or name in _PROMOTING):
        beside = torch.result_type(others[0], kind(1))
        # The quotient of integers is a real number whatever integers they are.
        dtype = dtype if name in _DIVISIONS and not beside.is_floating_point else beside
    return arg if arg.dtype == dtype else arg.to(dtype)


def converted_number(value: Any, kind: type, dtype: torch.dtype) -> torch.Tensor | None:
    """Return a number of a trace as one of another class, in this dtype; None for anything else."""
    known = kind_of_number(value)
    if known is None:
        return None
    whole = value.trunc() if known is float and kind is int else value
    return whole if whole.dtype == dtype else _marked(whole.to(dtype))


def as_result(value: torch.Tensor) -> torch.Tensor:
    """Return a result of the model: a real number among them has the default dtype, as ``torch.tensor`` gives it."""
    dtype = torch.get_default_dtype()
    return _marked(value.to(dtype)) if kind_of_number(value) is float and value.dtype != dtype else value


_DIVISIONS = frozenset(("div", "rdiv", "divide", "truediv", "rtruediv", "true_divide"))
_PROMOTING = _DIVISIONS | {
    *("add", "radd", "sub", "rsub", "subtract", "mul", "rmul", "multiply", "pow", "rpow", "where", "fmod"),
    *("clamp", "clamp_min", "clamp_max", "clip", "minimum", "maximum"),
    *("eq", "ne", "lt", "le", "gt", "ge"),
    *("floordiv", "rfloordiv", "floor_divide", "mod", "rmod", "remainder"),
    *(f"{start}{name}" for start in ("", "r", "bitwise_") for name in ("and", "or", "xor", "lshift", "rshift")),
}
# What Python's own functions do with numbers, in a trace.
_OF_NUMBERS = _PROMOTING | {"complex", "contains", "format", "round", "to", "type", *MATH_FUNCTIONS, *INTEGER_FUNCTIONS}


def _rounded(how: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda number: _marked(how(number).to(torch.int64))


_ASSIGNMENTS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_LOGICAL: dict[str, Callable[[Any, Any], Any]] = {
    "and": lambda value, other: other if value else False,
    "or": lambda value, other: True if value else other,
    "xor": lambda value, other: not other if value else other,
}
_OF_MATH = (*MATH_FUNCTIONS, *INTEGER_FUNCTIONS, "isqrt")
# With what makes of each what takes its place.
_METHODS: tuple[tuple[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]], ...] = (
    *((torch, name, partial(_made_of_numbers, 0)) for name in ("tensor", "as_tensor", "asarray")),
    (torch.Tensor, "new_tensor", partial(_made_of_numbers, 1)),
    *((torch.Tensor, f"__i{name}__", partial(_assigned, name)) for name in _ASSIGNMENTS),
    *(
        (torch.Tensor, f"__{start}{name}__", partial(_of_truths, chosen))
        for name, chosen in _LOGICAL.items()
        for start in ("", "r")
    ),
)
# With the number of the arguments.
_FUNCTIONS: tuple[tuple[Any, str, int, Callable[..., Any]], ...] = (
    (builtins, "divmod", 2, lambda left, right: (left // right, left % right)),
    (builtins, "round", 1, _rounded(torch.round)),
    (math, "floor", 1, _rounded(torch.floor)),
    (math, "ceil", 1, _rounded(torch.ceil)),
    (math, "trunc", 1, _rounded(torch.trunc)),
)


def _recorded(usual: Callable[..., Any], count: int, recorded: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(usual)
    def function(*args: Any, **kwargs: Any) -> Any:
        is_open = len(args) == count and not kwargs and any(kind_of_number(arg) is not None for arg in args)
        return (recorded if is_open else usual)(*args, **kwargs)

    return function


def kind_of_number(value: Any) -> type | None:
    """Return the class of the Python number that a traced size stands for; None for anything else."""
    # Most of what is compared is no tensor at all.
    if type(value) is not torch.Tensor or private.rank_of(value) or not private.traces():
        return None
    number = _number_like(value)
    return None if number is None else type(number)


def _is_number(value: Any) -> bool:
    return kind_of_number(value) is not None


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
