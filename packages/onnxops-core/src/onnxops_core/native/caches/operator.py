"""TensorScatter (opset 24), the update of a key or value cache, as a torch operator and in place."""

from __future__ import annotations

import torch

from onnxops_core import _torch_private
from onnxops_core.native.c_kernels import library as _cpu
from onnxops_core.native.caches.gpu import TENSOR_SCATTER, write_cache
from onnxops_core.native.declaring.checks import check_choice, check_same_dtype, invalid
from onnxops_core.native.declaring.declare import declare

__all__ = ["tensor_scatter", "tensor_scatter_"]

_OP = "TensorScatter"


def _check(
    past_cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> None:
    shape, new = past_cache.shape, update.shape
    rank = len(shape)
    place = axis if axis >= 0 else axis + rank
    if not 0 < place < rank:
        raise invalid(_OP, "axis", axis, f"a dimension of past_cache (rank {rank}) other than the batch dimension")
    if mode not in ("linear", "circular"):
        check_choice(_OP, "mode", mode, ("linear", "circular"))
    if update.dtype != past_cache.dtype:
        check_same_dtype(_OP, "update", update, "past_cache", past_cache.dtype)
    if len(new) != rank or (*new[:place], shape[place], *new[place + 1 :]) != shape or new[place] > shape[place]:
        raise invalid(_OP, "update", update, f"the shape of past_cache, {tuple(shape)}, but shorter in axis {place}")
    if write_indices is not None and (write_indices.dtype != torch.int64 or write_indices.shape != shape[:1]):
        raise invalid(_OP, "write_indices", write_indices, f"shape ({shape[0]},) and dtype int64")


def _check_values(
    past_cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> None:
    if write_indices is not None and mode != "circular":
        _check_starts(past_cache, update, write_indices.tolist(), axis)


def _check_starts(past_cache: torch.Tensor, update: torch.Tensor, starts: list[int], axis: int) -> None:
    room = past_cache.shape[axis] - update.shape[axis]
    if starts and not (min(starts) >= 0 and max(starts) <= room):
        raise invalid(_OP, "write_indices", starts, f"numbers from 0 to {room}, so that update fits into past_cache")


def _reference(
    past_cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> torch.Tensor:
    place = axis % past_cache.dim()
    length, size = update.shape[place], past_cache.shape[place]
    rows = torch.arange(length, device=past_cache.device).unsqueeze(0)
    if write_indices is not None:
        rows = rows + write_indices.unsqueeze(1)
    if mode == "circular":
        rows = rows.remainder(size)
    batch = torch.arange(past_cache.shape[0], device=past_cache.device).unsqueeze(1)
    dtype = past_cache.dtype
    if dtype.itemsize == 1 and dtype.is_floating_point:
        past_cache, update = past_cache.view(torch.uint8), update.view(torch.uint8)
    cache = past_cache.movedim(place, 1)
    written = torch.index_put(cache, (batch, rows.expand(past_cache.shape[0], length)), update.movedim(place, 1))
    result = written.movedim(1, place)
    return result if result.dtype == dtype else result.contiguous().view(dtype)


def _write(cache: torch.Tensor, update: torch.Tensor, starts: list[int], place: int, mode: str) -> None:
    length, size = update.shape[place], cache.shape[place]
    if len(starts) == 1 or (starts and starts == starts[:1] * len(starts)):
        _write_at(cache, update, starts[0], place, length, size, mode)
        return
    for row, start in enumerate(starts):
        _write_at(cache[row], update[row], start, place - 1, length, size, mode)


def _write_at(
    cache: torch.Tensor, update: torch.Tensor, start: int, place: int, length: int, size: int, mode: str
) -> None:
    if mode == "circular" and size:
        start %= size
    first = min(length, size - start)
    cache.narrow(place, start, first).copy_(update if first == length else update.narrow(place, 0, first))
    if first < length:
        cache.narrow(place, 0, length - first).copy_(update.narrow(place, first, length - first))


def _kernel(
    past_cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> torch.Tensor:
    if past_cache.device.type != "cpu":
        return _reference(past_cache, update, write_indices, axis=axis, mode=mode).contiguous()
    result = past_cache.clone(memory_format=torch.contiguous_format)
    starts = [0] * past_cache.shape[0] if write_indices is None else write_indices.tolist()
    _write(result, update, starts, axis % result.dim(), mode)
    return result


def _fake(past_cache: torch.Tensor, *args: object, **attributes: object) -> torch.Tensor:
    return past_cache.new_empty(past_cache.shape)


_TENSOR_SCATTER = declare(
    _OP,
    24,
    "(Tensor past_cache, Tensor update, Tensor? write_indices=None, *, int axis=-2, str mode='linear') -> Tensor",
    reference=_reference,
    kernel=_kernel,
    fake=_fake,
    check=_check,
    check_values=_check_values,
    backends=(TENSOR_SCATTER,),
)


def tensor_scatter(
    past_cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> torch.Tensor:
    """ONNX TensorScatter: a copy of a cache with an update written at one position per batch row.

    Args:
        past_cache: ``(batch, ..., max_sequence, ...)`` of any dtype.
        update: ``(batch, ..., sequence, ...)``, not longer than the cache, of its dtype.
        write_indices: ``(batch,)`` int64, where each row's update starts; zeros if None.
        axis: the sequence dimension; not 0.
        mode: ``"linear"``, or ``"circular"`` to wrap around at the cache's end.

    Returns:
        The updated cache, of ``past_cache``'s shape and dtype.

    Raises:
        ValueError: shapes, dtypes, attributes or positions that the specification forbids.

    Source: https://onnx.ai/onnx/operators/onnx__TensorScatter.html
    """
    result: torch.Tensor = _TENSOR_SCATTER(past_cache, update, write_indices, axis=axis, mode=mode)
    return result


def tensor_scatter_(
    cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> torch.Tensor:
    """Writes an update into a cache in place; otherwise as :func:`tensor_scatter`.

    Captured graphs hold the functional operator followed by a copy into the cache, which exporters turn into
    a state output.

    Returns:
        ``cache``.

    Raises:
        ValueError: as :func:`tensor_scatter`.
    """
    arguments = (cache, update, write_indices)
    plain = not torch.compiler.is_compiling() and _torch_private.is_plain_eager(arguments)
    if plain:
        _TENSOR_SCATTER.calls.check(arguments, {"axis": axis, "mode": mode})
        if cache.is_cpu:
            if _cpu.write_cache(cache, update, write_indices, axis % cache.dim(), mode == "circular"):
                return cache
            starts = [0] * cache.shape[0] if write_indices is None else write_indices.tolist()
            if mode == "linear" and write_indices is not None:
                _check_starts(cache, update, starts, axis)
            _write(cache, update, starts, axis % cache.dim(), mode)
            return cache
        if cache.is_contiguous() and TENSOR_SCATTER.refuses(*arguments) is None:
            return write_cache(cache, update, write_indices, axis, mode)
    return cache.copy_(tensor_scatter(cache, update, write_indices, axis=axis, mode=mode))
