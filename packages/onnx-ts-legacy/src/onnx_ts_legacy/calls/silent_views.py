"""Calls that give views though their schemas say that the results are new: these views, taken one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from onnx_ts_legacy.state.arguments import frozen
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.values import ListRef, Tensor
from onnx_ts_legacy.views_of_calls import einsum_axes, grid_views

__all__ = ["silent_views"]

aten = torch.ops.aten


def silent_views(
    context: ConversionContext, overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Return the views that a call gives though its schema does not say so, taken one by one; None for other calls."""
    name = overload._schema.name
    tensors = frozen(args[1] if name == "aten::einsum" else args[0] if name == "aten::meshgrid" else None)
    if not isinstance(tensors, list | tuple) or not all(isinstance(each, Tensor) for each in tensors):
        return None
    if name == "aten::einsum":
        return _einsum_view(context, args[0], tensors[0]) if len(tensors) == 1 else None
    grids = grid_views(
        tensors,
        [each.fake.shape[0] if each.fake.dim() else 1 for each in tensors],
        kwargs.get("indexing", "ij"),
        lambda tensor, shape: context.call(aten.view.default, [tensor, shape], {}),
        lambda tensor, sizes: context.call(aten.expand.default, [tensor, sizes], {}),
    )
    return ListRef(context.heap, tuple(grids))


def _einsum_view(context: ConversionContext, equation: str, tensor: Tensor) -> Tensor | None:
    """Return what ``einsum`` of one tensor gives if that is a view, as it is where nothing is added up."""
    axes = einsum_axes(equation, tensor.fake.dim())
    if axes is None:
        return None
    diagonals, order = axes
    for first, second in diagonals:
        tensor = context.call(aten.diagonal.default, [tensor, 0, first, second], {})
    view: Tensor = context.call(aten.permute.default, [tensor, order], {})
    return view
