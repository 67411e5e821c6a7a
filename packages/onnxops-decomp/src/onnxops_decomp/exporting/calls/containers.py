"""Classes that hold tensors: made known to torch's pytrees when an example or a result contains them."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnxops_decomp.exporting.calls.caches import check_cache, check_counts, is_registered, register_cache

__all__ = ["register_containers", "registered_results"]


def register_containers(values: Iterable[Any], *, results: bool = False) -> None:
    """Register the containers among ``values``, and inside them, that torch cannot take apart yet.

    Known are dataclasses, subclasses of list, tuple and dict, and the caches of transformers. Registration is torch's
    and lasts for the process, as everything that torch.export traces through has to be registered in it.

    Args:
        values: Arguments of a model, or what it returns.
        results: Whether it returns them.

    Raises:
        InvalidArgumentError: If a container keeps something that is not a tensor, as some caches do.
    """
    pending = list(values)
    while pending:
        value = pending.pop()
        if value is None or isinstance(value, torch.Tensor | int | float | str | bool):
            continue
        if (caches := _caches_of(value)) is not None:
            check_cache(caches, value)
            if not results:
                check_counts(value)
            if not is_registered(value):
                register_cache(caches, value)
        children = _children(value)
        if children is None and _register(type(value), value):
            children = _children(value)
        pending.extend(children or ())


@contextlib.contextmanager
def registered_results(model: torch.nn.Module) -> Iterator[None]:
    """Register the containers that a module returns as soon as it has done so."""
    handle = model.register_forward_hook(lambda module, args, result: register_containers([result], results=True))
    try:
        yield
    finally:
        handle.remove()


def _children(value: Any) -> list[Any] | None:
    """Return what a container holds, or None if torch takes it for a leaf."""
    children, structure = pytree.tree_flatten(value, is_leaf=lambda node: node is not value)
    return None if structure.is_leaf() else children


def _register(kind: type, value: Any) -> bool:
    """Register one class; return whether torch can take it apart now."""
    if dataclasses.is_dataclass(kind):
        torch.export.register_dataclass(kind, serialized_type_name=_serialized_name(kind))
        return True
    return _register_subclass(kind, value)


def _register_subclass(kind: type, value: Any) -> bool:
    """Register a subclass of a container of Python, with its attributes, unless these hold tensors."""
    attributes = [item for name, item in _attributes(value).items() if name != "data"]
    if not isinstance(value, _BASES) or any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(attributes)):
        return False
    pytree.register_pytree_node(
        kind,
        _flattened,
        lambda items, context: _restored(kind, list(items), *context),
        serialized_type_name=_serialized_name(kind),
        to_dumpable_context=list,
        from_dumpable_context=tuple,
        flatten_with_keys_fn=_flattened_with_keys,
    )
    return True


def _serialized_name(kind: type) -> str:
    """Return the name by which torch.export.save writes of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


_BASES = (list, tuple, dict, collections.UserDict)


def _attributes(value: Any) -> dict[str, Any]:
    return dict(getattr(value, "__dict__", {}))


def _flattened(value: Any) -> tuple[list[Any], Any]:
    attributes = _attributes(value)
    if isinstance(value, list | tuple):
        return list(value), (None, attributes)
    if isinstance(value, collections.UserDict):
        del attributes["data"]
    return list(value.values()), (list(value.keys()), attributes)


def _flattened_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], Any]:
    items, context = _flattened(value)
    keys = context[0]
    entries: Iterable[Any] = (
        map(pytree.SequenceKey, range(len(items))) if keys is None else map(pytree.MappingKey, keys)
    )
    return list(zip(entries, items, strict=True)), context


def _restored(kind: Any, items: list[Any], keys: list[Any] | None, attributes: dict[str, Any]) -> Any:
    """Return a container like one that was taken apart, past its constructor, which may take other arguments."""
    value = tuple.__new__(kind, items) if issubclass(kind, tuple) else kind.__new__(kind)
    if issubclass(kind, list):
        list.extend(value, items)
    elif issubclass(kind, collections.UserDict):
        value.data = dict(zip(keys or (), items, strict=True))
    elif issubclass(kind, dict):
        base = collections.OrderedDict if issubclass(kind, collections.OrderedDict) else dict
        for key, item in zip(keys or (), items, strict=True):
            base.__setitem__(value, key, item)
    if attributes:
        vars(value).update(attributes)
    return value


def _caches_of(value: Any) -> Any:
    """Return the module of the caches of transformers if a value is one of them."""
    caches = sys.modules.get("transformers.cache_utils")
    return caches if caches is not None and isinstance(value, caches.Cache) else None
