"""Picking and placing elements by what other tensors hold."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from onnxops_decomp.importing.registry import onnx_op
from onnxops_decomp.importing.values import of_bits, of_strings, ordered, widened


def _positions(indices: Tensor, length: int) -> Tensor:
    """Return indices counted from the front as int64."""
    indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + length, indices)


@onnx_op("Gather")
@of_strings
@of_bits
def gather(data: Tensor, indices: Tensor, axis: int = 0) -> Tensor:
    positions = _positions(indices, data.shape[axis])
    if axis == 0 and data.dim() == 2 and data.is_floating_point():
        return functional.embedding(positions, data)
    axis = axis % data.dim()
    sizes = [*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]]
    return data.index_select(axis, positions.reshape(-1)).reshape(sizes)


@onnx_op("GatherElements")
@of_strings
@of_bits
def gather_elements(data: Tensor, indices: Tensor, axis: int = 0) -> Tensor:
    return torch.gather(data, axis, _positions(indices, data.shape[axis]))


@onnx_op("GatherND")
@of_strings
@of_bits
def gather_nd(data: Tensor, indices: Tensor, batch_dims: int = 0) -> Tensor:
    index: list[Any] = []
    tail = indices.dim() - 1 - batch_dims
    for axis in range(batch_dims):
        steps = torch.arange(data.shape[axis], device=data.device)
        index.append(steps.reshape([-1 if place == axis else 1 for place in range(batch_dims + tail)]))
    # Indexing counts negative positions from the end itself, and refuses those outside.
    index += indices.to(torch.int64).unbind(-1)
    return data[tuple(index)]


_REDUCTIONS = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}


def _scattered(data: Tensor, indices: Tensor, updates: Tensor, axis: int, reduction: str) -> Tensor:
    positions = _positions(indices, data.shape[axis])
    if reduction == "none":
        return torch.scatter(data, axis, positions, updates)
    if data.dtype == torch.bool:
        return _scattered(data.to(torch.int8), indices, updates.to(torch.int8), axis, reduction) != 0
    return torch.scatter_reduce(data, axis, positions, updates, _REDUCTIONS[reduction])


@onnx_op("Scatter")
@onnx_op("ScatterElements")
@of_strings
def scatter_elements(data: Tensor, indices: Tensor, updates: Tensor, axis: int = 0, reduction: str = "none") -> Tensor:
    mapped = {"none": of_bits, "min": ordered, "max": ordered}.get(reduction, widened)
    return mapped(_scattered)(data, indices, updates, axis, reduction)


def _scattered_rows(data: Tensor, indices: Tensor, updates: Tensor, reduction: str) -> Tensor:
    depth = indices.shape[-1]
    if reduction == "none":
        index = indices.to(torch.int64).unbind(-1)
        return torch.index_put(data, index, updates) if depth else updates.reshape(data.shape)
    index = tuple(_positions(each, data.shape[axis]) for axis, each in enumerate(indices.unbind(-1)))
    row = torch.zeros_like(indices[..., 0])
    rows = 1
    for axis, position in enumerate(index):
        row = row * data.shape[axis] + position
        rows = rows * data.shape[axis]
    flat = data.reshape(rows, -1)
    places = row.reshape(-1, 1).expand(-1, flat.shape[1])
    changed = _scattered(flat, places, updates.reshape(places.shape), 0, reduction)
    return changed.reshape(data.shape)


@onnx_op("ScatterND")
@of_strings
def scatter_nd(data: Tensor, indices: Tensor, updates: Tensor, reduction: str = "none") -> Tensor:
    mapped = {"none": of_bits, "min": ordered, "max": ordered}.get(reduction, widened)
    return mapped(_scattered_rows)(data, indices, updates, reduction)


@onnx_op("NonZero")
def non_zero(X: Tensor) -> Tensor:
    return torch.nonzero((X != 0).reshape(1) if X.dim() == 0 else X != 0).t()


@onnx_op("Compress")
@of_strings
@of_bits
def compress(input: Tensor, condition: Tensor, axis: int | None = None) -> Tensor:
    data, axis = (input.reshape(-1), 0) if axis is None else (input, axis)
    return data.index_select(axis, torch.nonzero(condition).reshape(-1))


@onnx_op("OneHot")
@of_strings
def one_hot(indices: Tensor, depth: int, values: Tensor, axis: int = -1) -> Tensor:
    classes = int(depth) if isinstance(depth, float) else depth
    off, on = values.unbind(0)
    whole = indices.to(torch.int64)
    axis = axis % (indices.dim() + 1)
    steps = torch.arange(classes, device=indices.device).reshape([-1] + [1] * (indices.dim() - axis))
    # What lies outside of [-depth, depth - 1] is in no class, which the remainder would not see.
    hit = (_positions(whole, classes).unsqueeze(axis)) == steps
    return torch.where(hit, on, off)
