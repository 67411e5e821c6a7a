"""The leaves of what calls are given and give, at little cost: each call of a traced model is asked for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["PLAIN", "leaves_of", "with_leaves"]

#: Leaves of which the class tells that they are no tensors.
PLAIN = frozenset((bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.memory_format))
_LEAVES = PLAIN | {torch.Tensor, torch.nn.Parameter}


def leaves_of(values: Iterable[Any]) -> list[Any]:
    """Return the leaves of some values, in the order that ``torch.utils._pytree`` gives them in.

    Lists, tuples and what is mostly in them are told by their class: in a trace ``isinstance`` is another function.
    """
    found: list[Any] = []
    for value in values:
        kind = type(value)
        if kind in _LEAVES:
            found.append(value)
        elif kind is list or kind is tuple:
            found.extend(leaves_of(value))
        else:
            found.extend(pytree.tree_leaves(value))
    return found


def with_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """Return a value with something else for each of its leaves.

    Args:
        change: Returns it.
        value: The value, which mostly is a leaf.
    """
    return change(value) if type(value) in _LEAVES else pytree.tree_map(change, value)
