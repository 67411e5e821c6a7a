"""``int`` and ``float`` of sizes, which stay open where Python's would make numbers of the example."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from onnx_fx_export.sizes.lengths import homes_of
from onnxops_core.exporting import replaced

__all__ = ["open_conversions"]


@contextlib.contextmanager
def open_conversions(model: torch.nn.Module) -> Iterator[None]:
    """Let ``int`` and ``float`` keep symbolic numbers in the body, where the classes of a model are defined.

    Python makes numbers of what ``__int__`` and ``__float__`` return. What stands in their place is a class as well,
    which differs from them where the code compares it by ``is``.

    Args:
        model: The model; the files that define its modules, and the classes that these extend, are its code.
    """
    places = [
        (home, kind.__name__, stand_in)
        for home in homes_of(model)
        for kind, stand_in in ((int, _Int), (float, _Float))
        if kind.__name__ not in vars(home)
    ]
    # What dispatches by thread would be a function and no class; other numbers than symbolic ones it leaves alone.
    with replaced(places, in_all_threads=True):
        yield


class _OfNumbers(type):
    """What makes a class stand for the class of numbers that it extends."""

    symbolic: tuple[type, ...]

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (cls.__base__ or object, *cls.symbolic))

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.__base__ or object)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.__base__

    def __hash__(cls) -> int:
        return hash(cls.__base__)


class _Int(int, metaclass=_OfNumbers):
    symbolic = (torch.SymInt, torch.SymBool)

    def __new__(cls, value: Any = 0, *base: Any) -> Any:
        return torch.sym_int(value) if isinstance(value, torch.SymInt | torch.SymFloat) else int(value, *base)


class _Float(float, metaclass=_OfNumbers):
    symbolic = (torch.SymFloat,)

    def __new__(cls, value: Any = 0.0) -> Any:
        return torch.sym_float(value) if isinstance(value, torch.SymInt | torch.SymFloat) else float(value)
