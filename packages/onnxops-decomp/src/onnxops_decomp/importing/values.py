"""What the functions of operators share: element types, broadcasting, and the unsigned integers that torch lacks."""

from __future__ import annotations

import functools
import keyword
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from onnxops_core.exporting import torch_dtype

__all__ = [
    "carrier",
    "every_axis",
    "identifier",
    "in_float",
    "is_sub_byte",
    "number",
    "numbers",
    "of_bits",
    "of_strings",
    "order_keys",
    "ordered",
    "paired",
    "symmetric",
    "to_tensor",
    "widened",
]

F = TypeVar("F", bound=Callable[..., Any])

SUB_BYTE = {21: torch.uint8, 22: torch.int8, 25: torch.uint8, 26: torch.int8}
"""4-bit and 2-bit integers are held one per element, as the native operators of onnxops-core hold them."""
MINIFLOATS = frozenset({23, 27, 28})
"""Floats of 4 and 6 bits are held one per float32."""
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_FLIP = -(2**63)


def identifier(name: str) -> str:
    """Return a name of a file as one that Python takes."""
    cleaned = re.sub(r"\W", "_", name, flags=re.ASCII) or "value"
    if keyword.iskeyword(cleaned) or cleaned == "self":
        return f"{cleaned}_"
    return f"_{cleaned}" if cleaned[0].isdigit() else cleaned


def carrier(number: int) -> torch.dtype:
    """Return the torch dtype that holds one element of an ONNX element type."""
    if number in SUB_BYTE:
        return SUB_BYTE[number]
    return torch.float32 if number in MINIFLOATS else torch_dtype(number)


def is_sub_byte(number: int) -> bool:
    """Tell whether values of an ONNX element type are held in a wider torch dtype."""
    return number in SUB_BYTE or number in MINIFLOATS


def to_tensor(value: Any, dtype: torch.dtype) -> Tensor:
    """Return Python numbers, which may be symbolic, as a tensor."""
    if not isinstance(value, list):
        return torch.scalar_tensor(value, dtype=dtype)
    if all(isinstance(each, int | float) for each in value):
        return torch.tensor(value, dtype=dtype)
    return torch.stack([torch.scalar_tensor(each, dtype=dtype) for each in value])


def numbers(value: Tensor) -> Any:
    """Return the elements of a tensor as a list of Python numbers."""
    return value.reshape(-1).tolist()


def number(value: Any) -> Any:
    """Return the one element of a tensor, or the one number of a list; a number is returned as it is."""
    if isinstance(value, Tensor):
        return value.item()
    if not isinstance(value, list):
        return value
    (only,) = value
    return only


def _mapped(function: F, there: Callable[[Tensor], Tensor], back: Callable[[Tensor, torch.dtype], Tensor]) -> F:
    def result(value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, tuple):
            return back(value[0], dtype), *value[1:]  # what follows are positions
        return back(value, dtype)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        dtype = next((a.dtype for a in given if isinstance(a, Tensor) and a.dtype in _SIGNED), None)
        if dtype is None:
            return function(*args, **kwargs)
        mapped = [there(a) if isinstance(a, Tensor) and a.dtype in _SIGNED else a for a in given]
        named = dict(zip(kwargs, mapped[len(args) :], strict=True))
        return result(function(*mapped[: len(args)], **named), dtype)

    return cast(F, wrapper)


def widened(function: F) -> F:
    """Compute in int64 what torch has no kernel for in uint16, uint32 and uint64: sums and products are exact."""

    def there(value: Tensor) -> Tensor:
        return value.view(torch.int64) if value.dtype == torch.uint64 else value.to(torch.int64)

    def back(value: Tensor, dtype: torch.dtype) -> Tensor:
        if value.dtype != torch.int64:
            return value
        return value.view(dtype) if dtype == torch.uint64 else value.to(dtype)

    return _mapped(function, there, back)


def ordered(function: F) -> F:
    """Compute in int64, in the order of the unsigned integers, what compares and torch has no kernel for."""

    def back(value: Tensor, dtype: torch.dtype) -> Tensor:
        if value.dtype != torch.int64:
            return value
        return (value ^ _FLIP).view(dtype) if dtype == torch.uint64 else value.to(dtype)

    return _mapped(function, order_keys, back)


def order_keys(value: Tensor) -> Tensor:
    """Return numbers that have the order of the elements, in a dtype that torch compares."""
    if value.dtype == torch.uint64:
        return value.view(torch.int64) ^ _FLIP
    return value.to(torch.int64) if value.dtype in _SIGNED else value


def of_bits(function: F) -> F:
    """Compute what only moves elements on the signed integers of the same size."""

    def there(value: Tensor) -> Tensor:
        return value.view(_SIGNED[value.dtype])

    def back(value: Tensor, dtype: torch.dtype) -> Tensor:
        return value.view(dtype) if value.dtype == _SIGNED[dtype] else value

    return _mapped(function, there, back)


def _each(value: Any, kind: type[Any], change: Callable[[Any], Any]) -> Any:
    """Return a value, or the lists in it, with each item of a kind changed."""
    if isinstance(value, list | tuple):
        return type(value)([_each(each, kind, change) for each in value])
    return change(value) if isinstance(value, kind) else value


def of_strings(function: F) -> F:
    """Compute what moves or orders elements on the places that strings have in the order of all that are given.

    Strings are arrays of NumPy. Places are int32, by which results that are strings are known: positions are int64.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        arrays: list[Any] = []
        _each([*args, *kwargs.values()], np.ndarray, arrays.append)
        if not arrays:
            return function(*args, **kwargs)
        # The empty string, with which gaps are filled, has the place 0.
        words = sorted({"", *(word for array in arrays for word in array.reshape(-1).tolist())})
        places = {word: place for place, word in enumerate(words)}

        def there(array: Any) -> Tensor:
            flat = [places[word] for word in array.reshape(-1).tolist()]
            return torch.tensor(flat, dtype=torch.int32).reshape(array.shape)

        def back(tensor: Tensor) -> Any:
            if tensor.dtype != torch.int32:
                return tensor
            return np.array([words[place] for place in tensor.reshape(-1).tolist()], object).reshape(tensor.shape)

        named = {name: _each(value, np.ndarray, there) for name, value in kwargs.items()}
        return _each(function(*_each(args, np.ndarray, there), **named), Tensor, back)

    return cast(F, wrapper)


def in_float(value: Tensor) -> Tensor:
    """Return a tensor of half precision as float32, in which ONNX's formulas are computed; others as they are."""
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def every_axis(axes: Sequence[int] | None, rank: int) -> list[int]:
    """Return axes counted from the front; None means all of them."""
    return list(range(rank)) if axes is None else [axis % rank if rank else 0 for axis in axes]


def paired(pads: Sequence[int]) -> list[int]:
    """Return ONNX's paddings (all begins, then all ends) in torch's order: last dimension first, begin and end."""
    half = len(pads) // 2
    return [size for axis in reversed(range(half)) for size in (pads[axis], pads[axis + half])]


def symmetric(pads: Sequence[int]) -> bool:
    """Tell whether every dimension is padded alike on both sides, whatever its size."""
    half = len(pads) // 2
    if any(isinstance(each, torch.SymInt) for each in pads):
        return False
    return list(pads[:half]) == list(pads[half:])
