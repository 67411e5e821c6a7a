"""Classes that stand for ``int`` and ``float`` where code makes numbers of sizes, which are to stay open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["ClassOfNumbers", "class_of_numbers"]


def class_of_numbers(kind: type, symbolic: tuple[type, ...], convert: Callable[[Any], Any]) -> type:
    """Return a class that makes numbers as another one does, but for what stands for a size.

    Python makes a number of what ``__int__`` and ``__float__`` return. The class equals the one that it stands for, and
    has the same instances. What compares by identity, as NumPy and torch do with a ``dtype``, tells them apart.

    Args:
        kind: ``int`` or ``float``.
        symbolic: Classes of what stands for such a number.
        convert: Given the first argument of a call, returns what is made of it; None where ``kind`` is to make it.
    """

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        converted = convert(args[0]) if args else None
        return kind(*args, **kwargs) if converted is None else converted

    return ClassOfNumbers(kind.__name__, (kind,), {"symbolic": symbolic, "__new__": new})


class ClassOfNumbers(type):
    """The class of such a class, which equals the one that it stands for."""

    symbolic: tuple[type, ...]

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (cls.__base__ or object, *cls.symbolic))

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.__base__ or object)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.__base__

    def __hash__(cls) -> int:
        return hash(cls.__base__)
