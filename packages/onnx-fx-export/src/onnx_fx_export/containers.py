"""Classes of other libraries that hold tensors: made known to torch's pytrees when an example contains them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.caches import check_cache, register_cache

__all__ = ["register_containers"]


def register_containers(values: Iterable[Any]) -> None:
    """Register the containers among ``values``, and inside them, that torch cannot take apart yet.

    Known are dataclasses, and the caches of transformers. Registration is torch's and lasts for the process, as
    everything that torch.export traces through has to be registered in it.

    Raises:
        InvalidArgumentError: If a container keeps something that is no tensor, as some caches do.
    """
    pending = list(values)
    while pending:
        value = pending.pop()
        if value is None or isinstance(value, torch.Tensor | int | float | str | bool):
            continue
        if (caches := _caches_of(value)) is not None:
            check_cache(caches, value)
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
    if (caches := _caches_of(value)) is not None:
        return register_cache(caches, value)
    if dataclasses.is_dataclass(kind):
        torch.export.register_dataclass(kind)
        return True
    return False


def _caches_of(value: Any) -> Any:
    """Return the module of the caches of transformers if a value is one of them."""
    caches = sys.modules.get("transformers.cache_utils")
    return caches if caches is not None and isinstance(value, caches.Cache) else None
