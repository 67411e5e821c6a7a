"""How an operator of a newer opset is written in an older one.

An adapter belongs to one change of one operator: ``@adapter("ReduceMean", below=18)`` is what opset 18 changed. It gets
a builder that speaks the dialect just below the change, so older changes apply on top of it by themselves::

    @adapter("ReduceMean", below=18)
    def reduce_mean(op, data, axes=None, *, keepdims=1, noop_with_empty_axes=0): ...

A change that only widened the allowed dtypes needs no adapter: the builder casts where the older form lacks a dtype.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["Adapter", "adapter", "find_adapter"]

Adapter = Callable[..., Any]

_ADAPTERS: dict[str, dict[int, Adapter]] = {}
_loaded = False


def adapter(*op_types: str, below: int) -> Callable[[Adapter], Adapter]:
    """Register a function as the form of ``op_types`` below opset ``below``.

    The function is called as ``function(op, *inputs, **attributes)`` with the operands of the newer form; where the
    caller asked for more outputs than the operator always has, ``_outputs`` says how many. It returns the values that
    stand for the node's outputs, or raises :class:`~onnxops_decomp.errors.UnsupportedOpsetError`.
    """

    def register(function: Adapter) -> Adapter:
        for op_type in op_types:
            changes = _ADAPTERS.setdefault(op_type, {})
            if below in changes:
                raise ValueError(f"{op_type} already has an adapter below opset {below}.")
            changes[below] = function
        return function

    return register


def find_adapter(op_type: str, opset: int, dialect: int) -> tuple[int, Adapter] | None:
    """Return the newest change between ``opset`` and ``dialect`` with its adapter, or None if there is none."""
    global _loaded
    if not _loaded:
        for family in _families():
            importlib.import_module(f"onnxops_decomp.adapters.{family}")
        _loaded = True
    changes = _ADAPTERS.get(op_type)
    if changes is None:
        return None
    below = max((version for version in changes if opset < version <= dialect), default=None)
    return None if below is None else (below, changes[below])


def _families() -> tuple[str, ...]:
    import pkgutil

    import onnxops_decomp.adapters as package

    return tuple(m.name for m in pkgutil.iter_modules(package.__path__) if m.name != "registry")
