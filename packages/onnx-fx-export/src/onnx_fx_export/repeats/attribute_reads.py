"""Which attributes of a module its forward reads, and whether another module has equal ones."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from onnxops_decomp.exporting import is_library

__all__ = ["AttributeReads", "equal", "structure"]

_PRIMITIVES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout)
# Compared as a whole by ``structure``.
_CONTENTS = frozenset(("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "forward"))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")


class AttributeReads:
    """The attributes that a module and those inside it read while :meth:`recorded` is active.

    Args:
        module: The module.
        watches_identity: Whether to note as well that code asks which module it has.

    Attributes:
        pure: False once an attribute was assigned or deleted, or a class does not let itself be watched.
        asks_identity: Whether the model's code asked which module it has: compared it, looked it up, read all it holds.
    """

    def __init__(self, module: torch.nn.Module, *, watches_identity: bool = False) -> None:
        self.pure, self.asks_identity, self._watches_identity = True, False, watches_identity
        self._modules = dict(module.named_modules(remove_duplicate=False))
        self._names: dict[int, set[str]] = {id(each): set() for each in self._modules.values()}

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Watch the modules: their classes are replaced by subclasses of the same name that note every access."""
        before = [(each, type(each)) for each in {id(m): m for m in self._modules.values()}.values()]
        try:
            for module, kind in before:
                try:
                    object.__setattr__(module, "__class__", _watched(cast(Hashable, kind), self._watches_identity))
                except TypeError:
                    self.pure = False
                _ACTIVE[id(module)] = self
            yield
        finally:
            for module, kind in before:
                _ACTIVE.pop(id(module), None)
                object.__setattr__(module, "__class__", kind)

    def read(self, module: torch.nn.Module, name: str) -> None:
        """Note that an attribute was read."""
        self._names[id(module)].add(name)

    def agree(self, other: torch.nn.Module) -> bool:
        """Tell whether every attribute that was read has an equal value in ``other``, a module of equal structure."""
        others = dict(other.named_modules(remove_duplicate=False))
        if not self.pure or others.keys() != self._modules.keys():
            return False
        for path, mine in self._modules.items():
            left, right = vars(mine), vars(others[path])
            for name in self._names[id(mine)] - _CONTENTS:
                if (name in left) != (name in right) or (name in left and not equal(left[name], right[name])):
                    return False
        return True


_ACTIVE: dict[int, AttributeReads] = {}


@functools.cache
def _watched(kind: Any, watches_identity: bool) -> Any:
    """Return a subclass whose instances tell what is read of them; nobody else can tell the two apart by name."""

    def read(self: torch.nn.Module, name: str) -> Any:
        active = _ACTIVE.get(id(self))
        if active is not None and not name.startswith("__"):
            active.read(self, name)
        elif active is not None and name == "__dict__":
            _note_asked(self, sys._getframe(1))
        return kind.__getattribute__(self, name)

    def is_equal(self: torch.nn.Module, other: object) -> Any:
        _note_asked(self, sys._getframe(1))
        return kind.__eq__(self, other)

    def digest(self: torch.nn.Module) -> int:
        _note_asked(self, sys._getframe(1))
        return int(kind.__hash__(self))

    def assign(self: torch.nn.Module, name: str, value: Any) -> None:
        if (active := _ACTIVE.get(id(self))) is not None:
            active.pure = False
        kind.__setattr__(self, name, value)

    def delete(self: torch.nn.Module, name: str) -> None:
        if (active := _ACTIVE.get(id(self))) is not None:
            active.pure = False
        kind.__delattr__(self, name)

    members = {
        "__getattribute__": read,
        "__setattr__": assign,
        "__delattr__": delete,
        **({"__eq__": is_equal, "__hash__": digest} if watches_identity else {}),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
    }
    return type(kind)(kind.__name__, (kind,), members)


def _note_asked(module: torch.nn.Module, frame: types.FrameType) -> None:
    active = _ACTIVE.get(id(module))
    if active is not None and not is_library(frame.f_globals.get("__name__")):
        active.asks_identity = True


def structure(module: torch.nn.Module) -> tuple[Any, ...] | None:
    """Return what two modules need in common to be compared at all, or None for one with hooks."""
    modules = list(module.named_modules(remove_duplicate=False))
    if any(getattr(each, name, None) for _, each in modules for name in _HOOKS):
        return None
    tensors = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    places: dict[int, int] = {}
    return (
        tuple((path, type(each)) for path, each in modules),
        tuple(
            (name, tuple(t.shape), t.stride(), t.dtype, str(t.device), type(t), places.setdefault(id(t), len(places)))
            for name, t in tensors
        ),
    )


def equal(first: Any, second: Any) -> bool:
    """Tell whether two values of attributes or arguments are certainly equal."""
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if isinstance(first, _PRIMITIVES):
        return repr(first) == repr(second)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(equal, first, second))
    if isinstance(first, dict):
        return list(first) == list(second) and all(equal(first[key], second[key]) for key in first)
    if isinstance(first, set | frozenset | pytree.TreeSpec):
        return bool(first == second)
    if isinstance(first, functools.partial):
        return equal((first.func, first.args, first.keywords), (second.func, second.args, second.keywords))
    return False
