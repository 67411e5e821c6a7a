"""What tells calls, and the forms of tensors, from others: equal ones have equal keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from onnx_ts_legacy.shapes.tensor_forms import is_tensor

__all__ = ["call_key", "form_key", "key_of"]

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def key_of(value: Any) -> Any:
    """Return what tells an argument from others; tensors are canonical."""
    if is_tensor(value):
        return ("tensor", id(value))
    if isinstance(value, _SYMBOLIC):
        return value.node.expr
    if isinstance(value, list | tuple):
        return tuple(key_of(item) for item in value)
    return (type(value), value)


def form_key(dtype: torch.dtype, layout: Sequence[Any]) -> Any:
    """Return what tells a tensor from others by its dtype, sizes and strides."""
    return (dtype, tuple(map(key_of, layout)))


def call_key(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what tells a call from others."""
    return (function, key_of(args), tuple((name, key_of(value)) for name, value in kwargs.items()))
