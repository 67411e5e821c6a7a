"""Masks of dtype uint8, which torch still takes for booleans in some operators, but not without data."""

from __future__ import annotations

from typing import Any

import torch

from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.values import ListRef, Tensor

__all__ = ["with_boolean_masks"]

aten = torch.ops.aten

# Position of the masks among the operands.
_TAKEN = {"where": 0} | dict.fromkeys(("index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"), 1)


def with_boolean_masks(context: ConversionContext, overload: torch._ops.OpOverload, args: list[Any]) -> list[Any]:
    """Return the arguments of a call with masks of dtype uint8 as booleans."""
    place = _TAKEN.get(overload._schema.name.removeprefix("aten::"))
    if place is None:
        return args
    given = args[place]
    if isinstance(given, ListRef) and isinstance(given.state, tuple):
        given = list(given.items)
    masks = given if isinstance(given, list) else [given]
    if not any(map(_is_old_mask, masks)):
        return args
    found = [context.call(aten.to.dtype, [m, torch.bool], {}) if _is_old_mask(m) else m for m in masks]
    return [*args[:place], found if isinstance(given, list) else found[0], *args[place + 1 :]]


def _is_old_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.fake.dtype == torch.uint8
