"""Symbolic numbers are the Python numbers that they stand for, where the code of a model asks for their class.

``isinstance(x.shape[0], int)`` holds in eager PyTorch, but a symbolic size is no ``int``: the branch would be taken
otherwise, and without a guard. What ``type()`` returns cannot be replaced; where the code asks for that, what was
captured is compared with the model.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from onnx_fx_export.sizes.texts import MACHINERY, asking_frame
from onnxops_core.exporting import original, replaced

__all__ = ["classes_of_numbers", "kind_of_number"]

_CLASSES: Mapping[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


@contextlib.contextmanager
def classes_of_numbers() -> Iterator[list[str]]:
    """Let ``isinstance`` and ``__class__`` take symbolic numbers for those of Python in the code of a model.

    Yields:
        The lines where that code used a symbolic size as a key. Like torch, this raises a TypeError, by which some code
        notices that it is captured and goes another way.
    """
    keys: list[str] = []

    def hashed(self: torch.SymInt) -> int:
        # The frame in between is that of the replacement.
        frame = None if self.node.is_nested_int() else asking_frame(sys._getframe(2))
        if frame is None:
            return int(original(torch.SymInt, "__hash__")(self))
        keys.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        raise TypeError(
            "A dynamic size is the key of a dict, set or cache here. Write int() around it to fix the dimension."
        )

    # Attributes are looked up so often that it matters which thread does not have to be found out.
    classes = [(kind, "__getattribute__", _with_class(kind)) for kind in _CLASSES]
    with replaced(classes, in_all_threads=True), replaced([(torch.SymInt, "__hash__", hashed)]):
        yield keys


def kind_of_number(value: Any) -> type | None:
    """Return the class of the Python number that a symbolic one stands for; None for anything else."""
    return _CLASSES.get(type(value))


def _as_dtype(number: Any, dtype: Any) -> Any:
    """Return a number that a function of NumPy gave as one of another dtype."""
    convert: Callable[[Any], Any] | None = {"i": torch.sym_int, "f": torch.sym_float}.get(np.dtype(dtype).kind)
    if convert is None or np.dtype(dtype).itemsize < _BYTES:
        raise TypeError(f"A dynamic size cannot be made a number of {np.dtype(dtype)}; use int64 or float64.")
    return convert(number)


_BYTES = 8
# What NumPy's numbers have, and Python's have not.
_OF_NUMPY: Mapping[str, Callable[..., Any]] = {"astype": _as_dtype, "item": lambda number: number}


def _with_class(kind: type) -> Callable[[Any, str], Any]:
    usual, number, frame_of = object.__getattribute__, _CLASSES[kind], sys._getframe

    def attribute(self: Any, name: str) -> Any:
        # Mostly torch asks, tens of thousands of times.
        if name in _OF_NUMPY and asking_frame(frame_of(1)):
            return functools.partial(_OF_NUMPY[name], self)
        if name == "__class__" and frame_of(1).f_code.co_filename not in MACHINERY and asking_frame(frame_of(1)):
            return number
        return usual(self, name)

    return attribute
