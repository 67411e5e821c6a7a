"""What the builder uses of rooms that are written with it.

It cannot import those rooms: they import it. The package, which knows all its rooms, says here where each part is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from onnxops_decomp.builder.runtime import Runtime

__all__ = ["ADAPTERS", "DEFAULT_RUNTIME", "Part"]

T = TypeVar("T")


class Part(Generic[T]):
    """Something that is loaded when it is first asked for."""

    def __init__(self) -> None:
        self._load: Callable[[], T]
        self._loaded: list[T] = []

    def comes_from(self, load: Callable[[], T]) -> None:
        """Set what loads it."""
        self._load = load

    def get(self) -> T:
        """Return it, loaded once."""
        if not self._loaded:
            self._loaded.append(self._load())
        return self._loaded[0]


ADAPTERS: Part[None] = Part()
"""The modules that register adapters, imported."""

DEFAULT_RUNTIME: Part[Runtime] = Part()
"""The runtime that models are made for where none is given."""
