"""Reductions, scans, and what normalizes over dimensions."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxops_decomp.importing.registry import onnx_op
from onnxops_decomp.importing.values import every_axis, of_bits, of_strings, order_keys, ordered, widened


def _axes(data: Tensor, axes: list[int] | None, noop_with_empty_axes: int) -> list[int] | None:
    """Return the dimensions to reduce over, or None if there is nothing to reduce."""
    if not axes:
        return None if noop_with_empty_axes else every_axis(None, data.dim())
    return every_axis(axes, data.dim())


def _sum(data: Tensor, dims: list[int], keepdims: int) -> Tensor:
    # Without dimensions torch reduces over all of them, and a 0-d tensor has none.
    return torch.sum(data, dims, bool(keepdims), dtype=data.dtype) if dims else data


@onnx_op("ReduceSum")
@widened
def reduce_sum(data: Tensor, axes: list[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    dims = _axes(data, axes, noop_with_empty_axes)
    return data if dims is None else _sum(data, dims, keepdims)


@onnx_op("ReduceSumSquare")
@widened
def reduce_sum_square(
    data: Tensor, axes: list[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    dims = _axes(data, axes, noop_with_empty_axes)
    return data * data if dims is None else _sum(data * data, dims, keepdims)


@onnx_op("ReduceL1")
@widened
def reduce_l1(data: Tensor, axes: list[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    dims = _axes(data, axes, noop_with_empty_axes)
    return torch.abs(data) if dims is None else _sum(torch.abs(data), dims, keepdims)


@onnx_op("ReduceL2")
@widened
def reduce_l2(data: Tensor, axes: list[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    dims = _axes(data, axes, noop_with_empty_axes)
    if data.is_floating_point():
        return torch.abs(data) if dims is None else torch.linalg.vector_norm(data, 2, dims or None, bool(keepdims))
    squares = data.double() ** 2
    return torch.sqrt(squares if dims is None else _sum(squares, dims, keepdims)).to(data.dtype)


@onnx_op("ReduceMean")
@widened
def reduce_mean(
    data: Tensor, axes: list[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    dims = _axes(data, axes, noop_with_empty_axes)
    if not dims:
        return data
    if data.is_floating_point():
        return torch.mean(data, dims, bool(keepdims))
    count = _sum(torch.ones_like(data), dims, keepdims)
    return torch.div(_sum(data, dims, keepdims), count, rounding_mode="trunc")


@onnx_op("ReduceProd")
@widened
def reduce_prod(
    data: Tensor, axes: list[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    dims = _axes(data, axes, noop_with_empty_axes)
    for dim in sorted(dims or [], reverse=True):
        data = torch.prod(data, dim, bool(keepdims), dtype=data.dtype)
    return data


@onnx_op("ReduceLogSum")
def reduce_log_sum(
    data: Tensor, axes: list[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    dims = _axes(data, axes, noop_with_empty_axes)
    summed = data if dims is None else _sum(data, dims, keepdims)
    return torch.log(summed).to(data.dtype)


@onnx_op("ReduceLogSumExp")
def reduce_log_sum_exp(
    data: Tensor, axes: list[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    dims = _axes(data, axes, noop_with_empty_axes)
    if not dims:
        return data
    floats = data if data.is_floating_point() else data.double()
    return torch.logsumexp(floats, dims, bool(keepdims)).to(data.dtype)


def _least(dtype: torch.dtype) -> float | int | bool:
    if dtype == torch.bool:
        return False
    return -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _greatest(dtype: torch.dtype) -> float | int | bool:
    if dtype == torch.bool:
        return True
    return torch.inf if dtype.is_floating_point else torch.iinfo(dtype).max


def _extreme(data: Tensor, dims: list[int], keepdims: int, largest: bool) -> Tensor:
    if any(data.shape[dim] == 0 for dim in dims):
        sizes = [1 if axis in dims else size for axis, size in enumerate(data.shape)]
        kept = [axis for axis in range(data.dim()) if keepdims or axis not in dims]
        value = _least(data.dtype) if largest else _greatest(data.dtype)
        return torch.full([sizes[axis] for axis in kept], value, dtype=data.dtype, device=data.device)
    return (torch.amax if largest else torch.amin)(data, dims, bool(keepdims))


@onnx_op("ReduceMax")
@ordered
def reduce_max(data: Tensor, axes: list[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    dims = _axes(data, axes, noop_with_empty_axes)
    return _extreme(data, dims, keepdims, largest=True) if dims else data


@onnx_op("ReduceMin")
@ordered
def reduce_min(data: Tensor, axes: list[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    dims = _axes(data, axes, noop_with_empty_axes)
    return _extreme(data, dims, keepdims, largest=False) if dims else data


@onnx_op("ArgMax")
def arg_max(data: Tensor, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _position(data, axis, keepdims, select_last_index, largest=True)


@onnx_op("ArgMin")
def arg_min(data: Tensor, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _position(data, axis, keepdims, select_last_index, largest=False)


def _position(data: Tensor, axis: int, keepdims: int, last: int, largest: bool) -> Tensor:
    search, data = torch.argmax if largest else torch.argmin, order_keys(data)
    if not last:
        return search(data, axis, bool(keepdims))
    return data.shape[axis] - 1 - search(torch.flip(data, [axis]), axis, bool(keepdims))


@onnx_op("CumSum")
@widened
def cum_sum(x: Tensor, axis: int, exclusive: int = 0, reverse: int = 0) -> Tensor:
    x = torch.flip(x, [axis]) if reverse else x
    total = torch.cumsum(x, axis, dtype=x.dtype)
    if exclusive:
        # Not total - x, which is neither exact nor finite where an element is not.
        first = torch.zeros_like(total.narrow(axis, 0, min(1, total.shape[axis])))
        total = torch.cat([first, total.narrow(axis, 0, max(total.shape[axis] - 1, 0))], axis)
    return torch.flip(total, [axis]) if reverse else total


@onnx_op("TopK", k="K")
@ordered
def top_k(X: Tensor, K: int, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Tensor, Tensor]:
    # A stable sort keeps the lower index first among equals, as the specification asks; topk does not.
    values, indices = torch.sort(X, stable=True, dim=axis, descending=bool(largest))
    return values.narrow(axis, 0, K), indices.narrow(axis, 0, K)


@onnx_op("Softmax", since=13)
def softmax(input: Tensor, axis: int = -1) -> Tensor:
    return torch.softmax(input, axis)


@onnx_op("LogSoftmax", since=13)
def log_softmax(input: Tensor, axis: int = -1) -> Tensor:
    return torch.log_softmax(input, axis)


@onnx_op("Hardmax", since=13)
def hardmax(input: Tensor, axis: int = -1) -> Tensor:
    first = torch.argmax(input, axis, keepdim=True)
    return torch.zeros_like(input).scatter(axis, first, 1)


def _rows(input: Tensor, axis: int) -> Tensor:
    """Return a tensor as a matrix whose rows are normalized: the form of Softmax before opset 13."""
    return torch.flatten(input.reshape(1, *input.shape), 1 + axis % input.dim()).flatten(0, -2)


@onnx_op("Softmax")
def softmax_of_rows(input: Tensor, axis: int = 1) -> Tensor:
    return torch.softmax(_rows(input, axis), -1).reshape(input.shape)


@onnx_op("LogSoftmax")
def log_softmax_of_rows(input: Tensor, axis: int = 1) -> Tensor:
    return torch.log_softmax(_rows(input, axis), -1).reshape(input.shape)


@onnx_op("Hardmax")
def hardmax_of_rows(input: Tensor, axis: int = 1) -> Tensor:
    return hardmax(_rows(input, axis)).reshape(input.shape)


@onnx_op("Unique")
@of_strings
@of_bits
def unique(X: Tensor, axis: int | None = None, sorted: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    items, inverse, counts = torch.unique(X.detach(), return_inverse=True, return_counts=True, dim=axis)
    flat = inverse.reshape(-1)
    positions = torch.arange(flat.numel(), device=X.device)
    first = torch.full_like(counts, flat.numel()).scatter_reduce(0, flat, positions, "amin")
    if X.requires_grad:
        items = torch.index_select(X.reshape(-1) if axis is None else X, axis or 0, first)
    if sorted:
        return items, first, flat, counts
    order = torch.argsort(first)
    rank = torch.argsort(order)
    return torch.index_select(items, axis or 0, order), first[order], rank[flat], counts[order]
