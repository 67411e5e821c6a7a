"""State in objects of Python's library and of numpy, which only they know: read as a value, and put back."""

from __future__ import annotations

import array
import contextvars
import copy
import io
import itertools
import operator
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from onnxops_decomp.torch_private import real_tensors

__all__ = [
    "GLOBAL_GENERATORS",
    "RESTORABLE",
    "Replayed",
    "contents_of",
    "is_iterator",
    "memory_of",
    "restore_contents",
]

_owner = operator.attrgetter("__self__")
#: The generators behind the functions of these modules.
GLOBAL_GENERATORS = {"random": _owner(random.seed), "numpy.random": _owner(np.random.get_state)}

_UNSET: Any = object()


class Replayed(Iterator[Any]):
    """Gives what an iterator gives, and can be set back.

    Args:
        source: The iterator, which is read through this one from now on.
    """

    def __init__(self, source: Iterator[Any]) -> None:
        self._source, self._rest = copy.copy(source) if isinstance(source, _COPIED) else source, source
        self._given: list[Any] = []
        self.position = 0

    def __next__(self) -> Any:
        """Return the next item."""
        if self.position == len(self._given):
            # The user's code reads it, too, when the capture is over.
            with real_tensors():
                self._given.append(next(self._source))
        self.position += 1
        return self._given[self.position - 1]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the iterator, which may change it.

        Raises:
            TypeError: If it hands a value to a generator, whose variables cannot be set back after that.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _FEEDING:
            raise TypeError(
                f"the model calls {name}() on a generator that it stores, which an export cannot undo: create the "
                "generator in forward, or accumulate its values in a buffer"
            )
        self.position += 1
        return getattr(self._source, name)

    def unread(self) -> Iterator[Any]:
        """Return an iterator that gives all that the source would have given: itself if it was not read, or a chain."""
        if self._given and self._rest is self._source:
            self._rest = itertools.chain(self._given, self._source)
        return self._rest


# Methods that change the variables of a generator.
_FEEDING = ("close", "send", "throw")
# The iterators of which a copy is independent.
_COPIED: tuple[type, ...] = (itertools.count, type(iter([])), type(iter(())), type(iter(range(0))), type(iter("")))


def is_iterator(kind: type) -> bool:
    """Tell whether a class is one of Python's own iterators, such as generators."""
    return kind.__module__ in ("builtins", "itertools") and issubclass(kind, Iterator)


def contents_of(value: Any) -> Any:
    """Return what an object holds, as a value that can be compared."""
    return _kind(type(value))[0](value)


def restore_contents(value: Any, contents: Any) -> None:
    """Let an object hold what it did when :func:`contents_of` gave these contents."""
    _kind(type(value))[1](value, contents)


def memory_of(value: Any) -> tuple[int, int]:
    """Return where the memory of an array begins and ends; of what has none that a tensor may show, an empty range."""
    if isinstance(value, bytearray | array.array) and value:
        value = np.frombuffer(value, np.uint8)
    while isinstance(getattr(value, "base", None), np.ndarray):
        value = value.base
    if not isinstance(value, np.ndarray):
        return 0, 0
    return value.ctypes.data, value.ctypes.data + value.nbytes


def _kind(kind: type) -> tuple[Callable[[Any], Any], Callable[[Any, Any], None]]:
    return _KINDS.get(kind) or next(pair for base, pair in _KINDS.items() if issubclass(kind, base))


class _Array(NamedTuple):
    shape: tuple[int, ...]
    dtype: Any
    data: bytes | list[Any]


def _frozen(value: Any) -> Any:
    """Return a value with arrays as bytes, by which it can be compared."""
    if isinstance(value, np.ndarray):
        return _Array(value.shape, value.dtype, value.tolist() if value.dtype.hasobject else value.tobytes())
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, tuple) else value


def _thawed(value: Any) -> Any:
    if isinstance(value, _Array):
        flat = np.frombuffer(value.data, value.dtype) if isinstance(value.data, bytes) else np.array(value.data)
        return flat.reshape(value.shape)
    if isinstance(value, dict):
        return {key: _thawed(item) for key, item in value.items()}
    return tuple(map(_thawed, value)) if isinstance(value, tuple) else value


def _write_array(target: np.ndarray[Any, Any], contents: Any) -> None:
    if target.flags.writeable:
        target[...] = _thawed(contents)


def _read_variable(variable: contextvars.ContextVar[Any]) -> Any:
    try:
        return variable.get()
    except LookupError:
        return _UNSET


def _write_variable(variable: contextvars.ContextVar[Any], value: Any) -> None:
    if value is not _UNSET:
        variable.set(value)


def _write_stream(target: Any, contents: tuple[Any, int]) -> None:
    target.seek(0)
    target.truncate()
    target.write(contents[0])
    target.seek(contents[1])


def _read_random(target: random.Random) -> Any:
    """Return the state of a generator, of Python's own with its hundreds of numbers as bytes."""
    state = target.getstate()
    if type(target) is not random.Random:
        return state
    version, numbers, normal = state
    return version, array.array("L", numbers).tobytes(), normal


def _write_random(target: random.Random, contents: Any) -> None:
    if type(target) is random.Random:
        version, data, normal = contents
        contents = version, tuple(array.array("L", data)), normal
    target.setstate(contents)


def _write_bit_generator(target: Any, contents: Any) -> None:
    target.state = _thawed(contents)


_KINDS: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], None]]] = {
    Replayed: (lambda x: x.position, lambda x, position: setattr(x, "position", position)),
    random.Random: (_read_random, _write_random),
    np.random.Generator: (
        lambda x: _frozen(x.bit_generator.state),
        lambda x, state: _write_bit_generator(x.bit_generator, state),
    ),
    np.random.BitGenerator: (lambda x: _frozen(x.state), _write_bit_generator),
    np.random.RandomState: (lambda x: _frozen(x.get_state()), lambda x, state: x.set_state(_thawed(state))),
    np.ndarray: (_frozen, _write_array),
    bytearray: (bytes, lambda x, data: x.__setitem__(slice(None), data)),
    array.array: (lambda x: x.tolist(), lambda x, items: x.__setitem__(slice(None), array.array(x.typecode, items))),
    io.StringIO: (lambda x: (x.getvalue(), x.tell()), _write_stream),
    io.BytesIO: (lambda x: (x.getvalue(), x.tell()), _write_stream),
    contextvars.ContextVar: (_read_variable, _write_variable),
    torch.Generator: (lambda x: x.get_state(), lambda x, state: x.set_state(state)),
}
#: The classes that :func:`contents_of` knows.
RESTORABLE = tuple(_KINDS)
