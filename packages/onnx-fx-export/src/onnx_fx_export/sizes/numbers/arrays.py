"""NumPy arrays of a few sizes, which stay open, and the tensors that are made of them."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onnx_fx_export.sizes.texts import asking_frame

__all__ = [
    "NotedNumbers",
    "SizeArray",
    "holds_sizes",
    "is_double",
    "is_size",
    "note_number",
    "noted_numbers",
    "tensor_of_sizes",
]

_KINDS = {"i": torch.sym_int, "f": torch.sym_float}
# A list that is longer holds no sizes by itself.
_MOST_MEMBERS = 64


def is_size(value: Any) -> bool:
    """Tell whether a value is a symbolic number."""
    return isinstance(value, torch.SymInt | torch.SymFloat)


@dataclasses.dataclass(frozen=True)
class NotedNumbers:
    """The numbers that NumPy gave: torch makes tensors of doubles of its floats, and of Python's such of floats.

    Attributes:
        doubles: What stands for floats.
        places: The lines that asked for numbers; what these lines or others compute with them is not noted.
    """

    doubles: list[Any] = dataclasses.field(default_factory=list)
    places: list[str] = dataclasses.field(default_factory=list)


_HERE = str(Path(__file__).parent)
_NUMBERS: contextvars.ContextVar[NotedNumbers | None] = contextvars.ContextVar("numbers", default=None)


@contextlib.contextmanager
def noted_numbers() -> Iterator[NotedNumbers]:
    """Note in the body which symbolic numbers are NumPy's."""
    noted = NotedNumbers()
    token = _NUMBERS.set(noted)
    try:
        yield noted
    finally:
        _NUMBERS.reset(token)


def note_number(number: Any) -> Any:
    """Return a number after it was noted as one of NumPy."""
    noted, frame = _NUMBERS.get(), sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    if noted is not None and is_size(number):
        noted.doubles.extend([number] if isinstance(number, torch.SymFloat) else [])
        asking = asking_frame(frame) or frame
        noted.places.append(f"{asking.f_code.co_filename}:{asking.f_lineno}")
    return number


def is_double(value: Any) -> bool:
    """Tell whether a symbolic number, or one in a list, was noted as one of NumPy."""
    noted = _NUMBERS.get()
    if isinstance(value, list | tuple):
        return any(map(is_double, value))
    return noted is not None and any(value is each for each in noted.doubles)


def holds_sizes(value: Any) -> bool:
    """Tell whether a value is a symbolic number, or a short list or an array with one in it."""
    if isinstance(value, list | tuple):
        return len(value) <= _MOST_MEMBERS and any(map(holds_sizes, value))
    return is_size(value) or isinstance(value, SizeArray)


class SizeArray(np.ndarray[Any, Any]):
    """An array of Python objects that stands for one of integers or doubles, as what it holds says."""

    @classmethod
    def of(cls, members: Any) -> Any:
        """Return an array of objects as such an array, all of one kind; a number as it is."""
        if not isinstance(members, np.ndarray):
            return members
        if any(isinstance(member, float | torch.SymFloat) for member in members.flat):
            members = np.asarray(np.frompyfunc(torch.sym_float, 1, 1)(members), dtype=object)
        for member in members.flat:
            note_number(member)
        return members.view(cls)

    @classmethod
    def made_of(cls, members: Any) -> Any:
        """Return an array of the sizes in lists of lists; None where it would hold something else."""
        if isinstance(members, SizeArray):
            return members.copy()
        array = np.empty(_shape_of(members), dtype=object)
        flat = [*_flat(members)]
        if len(flat) != array.size or not all(is_size(one) or type(one) in (int, float) for one in flat):
            return None
        array.reshape(-1)[:] = flat
        return cls.of(array)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Return what NumPy computed: a number where it reduced an array to one."""
        return note_number(array[()]) if array.ndim == 0 else SizeArray.of(np.asarray(array))

    def max(self, *args: Any, **options: Any) -> Any:
        """Return the largest number, which NumPy would find by questions about sizes."""
        return np.max(self, *args, **options)

    def min(self, *args: Any, **options: Any) -> Any:
        """Return the smallest number."""
        return np.min(self, *args, **options)

    def mean(self, *args: Any, **options: Any) -> Any:
        """Return the mean."""
        return np.mean(self, *args, **options)

    def astype(self, dtype: Any, *args: Any, **options: Any) -> Any:
        """Return the numbers as integers or doubles; another dtype makes numbers of the example of them."""
        wanted = np.dtype(dtype)
        if wanted not in (np.dtype(np.int64), np.dtype(np.float64)):
            return super().astype(dtype, *args, **options)
        return SizeArray.of(np.asarray(np.frompyfunc(_KINDS[wanted.kind], 1, 1)(self), dtype=object))


def _shape_of(members: Any) -> tuple[int, ...]:
    is_list = isinstance(members, list | tuple)
    return (len(members), *(_shape_of(members[0]) if members else ())) if is_list else ()


def _flat(members: Any) -> Any:
    if isinstance(members, list | tuple):
        for member in members:
            yield from _flat(member)
    else:
        yield members


def tensor_of_sizes(array: SizeArray, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
    """Return a tensor of the numbers in an array, of the dtype that the array stands for if none is given."""
    is_real = any(isinstance(member, float | torch.SymFloat) for member in array.flat)
    own = torch.float64 if is_real else torch.int64
    # Not of a list: torch looks for sizes in those of its callers alone.
    members = [torch.scalar_tensor(member, dtype=own) for member in array.flat]
    return torch.stack(members).reshape(array.shape).to(dtype=dtype or own, device=device)
