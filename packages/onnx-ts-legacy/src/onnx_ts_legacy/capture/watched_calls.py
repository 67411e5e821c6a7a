"""Which calls of a program that is traced give Python values, or take tensors as numbers that the trace does not hold.

They are seen however the program calls them: a mode of torch sees functions that were imported by name before, methods
of tensors and operators alike. (A mode of the dispatcher would change the trace: convolutions are left out of it then.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.capture.expanded_numbers import with_lists
from onnx_ts_legacy.capture.leaves import PLAIN, leaves_of
from onnx_ts_legacy.capture.number_classes import with_number_dtypes
from onnx_ts_legacy.capture.parts import number_of_parts
from onnx_ts_legacy.capture.truth_values import with_truth_values
from onnxops_decomp.exporting import defined_for_sizes, unwatched

__all__ = ["WatchedCalls", "may_be_frozen", "name_of"]

Notice = Callable[[str, Any, bool], None]
"""Takes what a Python value is, for a message; the operands that it is made of; and whether their sizes alone."""

_NAMES = {
    "__bool__": "a condition",
    "__int__": "int()",
    "__index__": "a Python integer",
    "__float__": "float()",
    "__complex__": "complex()",
    "__len__": "len()",
    "__contains__": "the operator in",
    "__format__": "a formatted string",
    "__repr__": "a tensor as text",
    "__array__": "a NumPy array",
    "__dlpack__": "memory that another library reads",
}
_OF_SIZES = {
    *("__len__", "is_contiguous", "is_same_size", "nbytes", "nelement", "numel", "size", "storage_offset", "stride"),
    *("sym_numel", "sym_size", "sym_storage_offset", "sym_stride", "len"),
}
# What they answer is the same for all data and sizes.
_OF_MODEL = {
    *("__dlpack_device__", "__hash__", "dim", "element_size", "get_device", "ndimension", "register_hook"),
    *("register_post_accumulate_grad_hook", "sym_is_contiguous", "type", "_is_view"),
}
# They make a new tensor of numbers, and a trace does not hold where these come from.
_CONSTRUCTORS = ("as_tensor", "asarray", "new", "new_tensor", "tensor")
# What a trace puts between a tensor and the operator that takes it as a number.
_CONVERSIONS = {
    f"aten::{kind}{how}" for kind in ("Int", "Float", "Bool", "Scalar", "Complex") for how in ("", "Implicit")
}


_COMPARISONS = frozenset(
    ("eq", "ne", "lt", "le", "gt", "ge", "not_equal", "less", "less_equal", "greater", "greater_equal")
)


class WatchedCalls(TorchFunctionMode):
    """Reports the Python values that calls make of tensors meanwhile, as long as this thread records a trace.

    Args:
        is_size: Tells of a tensor whether it may follow from dynamic sizes.
        lose: Called with each tensor that a call takes as a number which the trace does not hold, if with anything.
        notice: Called with each Python value, in the frame of the call, and with these numbers.
        divide: Called with the parts of a tensor, and with their number as sizes decide it.
        keep: Called with each function and its arguments before it runs, also while nothing is recorded.
    """

    def __init__(
        self,
        is_size: Callable[[Any], bool],
        lose: Callable[[torch.Tensor], None] | None,
        notice: Notice,
        divide: Callable[[torch.Tensor, Sequence[torch.Tensor]], None],
        keep: Callable[[Any, Sequence[Any], Mapping[str, Any]], None],
    ) -> None:
        super().__init__()
        self._keep = keep
        self._divide = divide
        self._is_size = is_size
        self._lose = lose
        self._notice = notice
        # The name of each function that was called, and what is called in its place.
        self._named: dict[Any, tuple[str, Any]] = {}

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self._keep(func, args, kwargs)
        if not private.traces():
            return func(*args, **kwargs)
        named = self._named.get(func)
        if named is None:
            name = name_of(func)
            named = self._named[func] = name, _recorded(name, func)
        name, func = named
        if _may_hold_numbers(args, kwargs):
            if (sized := defined_for_sizes(func, args, kwargs, self._is_size)) is not None:
                return sized
            args, kwargs = with_lists(name, args, kwargs)
            args, kwargs = _with_truth_values(name, args, kwargs)
        else:
            given = args, kwargs
            args, kwargs = _with_truth_values(name, args, kwargs)
            if args is given[0] and kwargs is given[1]:
                result = func(*args, **kwargs)
                is_known = type(result) is torch.Tensor and name not in _CONSTRUCTORS
                return result if is_known or name in _OF_MODEL else self._noted(name, func, result, args, kwargs)
        args, kwargs = with_number_dtypes(name.strip("_"), args, kwargs)
        numbers = [(tensor, _uses(tensor)) for tensor in leaves_of((*args[1:], *kwargs.values())) if _is_number(tensor)]
        result = func(*args, **kwargs)
        return self._noted(name, func, result, args, kwargs, numbers)

    def _noted(
        self,
        name: str,
        func: Any,
        result: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        numbers: Sequence[tuple[torch.Tensor, int]] = (),
    ) -> Any:
        """Return the result of a call, and report what it is and what it lost."""
        if (number := number_of_parts(name, args, kwargs)) is not None:
            self._divide(number, result)
        gives_values = _gives_values(name, func, result)
        if not gives_values and name not in _CONSTRUCTORS:
            self._check(name, [tensor for tensor, uses in numbers if _uses(tensor) == uses])
        else:
            operands = (args, kwargs) if gives_values else _elements((*args, *kwargs.values()))
            self._notice(_spoken(name), operands, gives_values and name in _OF_SIZES)
        return result

    def _check(self, name: str, lost: Sequence[torch.Tensor]) -> None:
        for tensor in lost:
            self._notice(f"a number that {_spoken(name)} takes", tensor, False)
            if self._lose is not None:
                self._lose(tensor)


def _is_same_size(input: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare sizes one by one, as a trace records it."""
    return input.dim() == other.dim() and all(input.size(axis) == other.size(axis) for axis in range(input.dim()))


def _filled(input: torch.Tensor, value: Any) -> torch.Tensor:
    """Fill a copy: a trace records ``torch.fill`` as a ``full_like`` with an overload that does not exist."""
    return input.clone().fill_(value)


_RECORDED: dict[str, Callable[..., Any]] = {
    "fill": _filled,
    **{name: getattr(torch.Tensor, name.removeprefix("sym_")) for name in ("numel", "sym_numel")},
    "is_same_size": _is_same_size,
}
# A trace records these where they are methods of a tensor.
_OPERATORS = {f"{prefix}{name}": getattr(torch.Tensor, name) for prefix in ("", "sym_") for name in ("size", "stride")}


def _recorded(name: str, func: Any) -> Any:
    """Return a function that gives the same Python value of sizes, and that a trace records."""
    known = _RECORDED.get(name)
    if known is None and name in _OPERATORS and isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        known = _OPERATORS[name]
    return known or func


def _spoken(name: str) -> str:
    return _NAMES.get(name, f"{name}()")


def _with_truth_values(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if not any(type(value) is bool for value in (*args, *kwargs.values())):
        return args, kwargs
    if name.strip("_") in _COMPARISONS:
        # torch records no comparison with a truth value.
        args = [int(value) if type(value) is bool else value for value in args]
    return with_truth_values(name, args, kwargs)


def _may_hold_numbers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether a call is given what may be a number of the trace."""
    others: list[Any] = []
    # Each call is asked, and most are given tensors and numbers of Python.
    with unwatched():
        for value in (*args, *kwargs.values()) if kwargs else args:
            kind = type(value)
            if kind is torch.Tensor or kind is torch.nn.Parameter:
                if not value.dim():
                    return True
            elif kind not in PLAIN and not (kind is tuple and PLAIN.issuperset(map(type, value))):
                others.append(value)
    return any(map(_is_number, leaves_of(others))) if others else False


def _is_number(value: Any) -> bool:
    """Tell whether torch may take a value for a number where an operator wants one."""
    kind = type(value)
    is_tensor = kind is torch.Tensor or (kind not in PLAIN and isinstance(value, torch.Tensor))
    return is_tensor and private.rank_of(value) == 0


def name_of(func: Any) -> str:
    """Return what a function is called, without its overload; of the getter of a property its name."""
    if getattr(func, "__name__", "") == "__get__":
        func = func.__self__
    return str(getattr(func, "__name__", func)).partition(".")[0]


def _gives_values(name: str, func: Any, result: Any) -> bool:
    """Tell whether a call gives values of Python that the data or sizes may decide."""
    is_getter = getattr(func, "__name__", "") == "__get__"
    is_property = is_getter or (name.startswith("is_") and name != "is_nonzero")
    if name in _OF_MODEL or (is_property and name not in _OF_SIZES):
        return False
    return any(leaf is not None and not isinstance(leaf, torch.Tensor | torch.dtype) for leaf in leaves_of((result,)))


def may_be_frozen(func: Any, result: Any) -> bool:
    """Tell whether a call of torch that no trace records gives what the data or sizes may decide."""
    name = name_of(func)
    is_tensor = any(isinstance(leaf, torch.Tensor) for leaf in leaves_of((result,)))
    return is_tensor or name == "shape" or _gives_values(name, func, result)


def _elements(operands: Iterable[Any]) -> list[Any]:
    """Return the lists among operands: their elements become constants, while tensors themselves are recorded."""
    return [operand for operand in operands if isinstance(operand, list | tuple)]


def _uses(tensor: torch.Tensor) -> int:
    """Return how many operators of the trace take a tensor, as such or as a number."""
    return _users(private.traced_value(tensor))


def _users(value: Any) -> int:
    users = [use.user for use in value.uses()]
    return sum(_users(user.output()) if str(user.kind()) in _CONVERSIONS else 1 for user in users)
