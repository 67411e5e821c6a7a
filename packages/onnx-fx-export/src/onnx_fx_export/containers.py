"""Classes of other libraries that hold tensors: made known to torch's pytrees when an example contains them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["register_containers"]


def register_containers(values: Iterable[Any]) -> None:
    """Register the containers among ``values``, and inside them, that torch cannot take apart yet.

    Known are dataclasses, and the caches of transformers. Registration is torch's and lasts for the process, as
    everything that torch.export traces through has to be registered in it.
    """
    pending = list(values)
    while pending:
        value = pending.pop()
        if value is None or isinstance(value, torch.Tensor | int | float | str | bool):
            continue
        children = _children(value)
        if children is None and _register(type(value), value):
            children = _children(value)
        pending.extend(children or ())


def _children(value: Any) -> list[Any] | None:
    """Return what a container holds, or None if torch takes it for a leaf."""
    children, structure = pytree.tree_flatten(value, is_leaf=lambda node: node is not value)
    return None if structure.is_leaf() else children


def _register(kind: type, value: Any) -> bool:
    """Register one class; return whether torch can take it apart now."""
    caches = sys.modules.get("transformers.cache_utils")
    if caches is not None and isinstance(value, caches.Cache):
        return _register_cache(caches, value)
    if dataclasses.is_dataclass(kind):
        torch.export.register_dataclass(kind)
        return True
    return False


def _register_cache(caches: Any, value: Any) -> bool:
    if type(value) is caches.DynamicCache:
        from transformers.integrations import executorch

        register: Callable[[], None] = executorch.register_dynamic_cache_export_support
        register()
        return True
    if type(value) is caches.EncoderDecoderCache:
        pytree.register_pytree_node(
            caches.EncoderDecoderCache,
            lambda cache: ([cache.self_attention_cache, cache.cross_attention_cache], None),
            lambda parts, _: caches.EncoderDecoderCache(*parts),
            serialized_type_name="transformers.cache_utils.EncoderDecoderCache",
            flatten_with_keys_fn=lambda cache: (
                [
                    (pytree.MappingKey("self_attention_cache"), cache.self_attention_cache),
                    (pytree.MappingKey("cross_attention_cache"), cache.cross_attention_cache),
                ],
                None,
            ),
        )
        return True
    return False
