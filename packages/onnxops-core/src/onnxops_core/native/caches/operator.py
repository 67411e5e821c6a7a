"""TensorScatter (opset 24), the update of a key or value cache, as a torch operator and in place."""

from __future__ import annotations

import torch

from onnxops_core import _torch_private
from onnxops_core.native.c_kernels import library as _cpu
from onnxops_core.native.caches.calls import TensorScatterCall
from onnxops_core.native.caches.gpu import TENSOR_SCATTER, write_cache
from onnxops_core.native.declaring.call import public
from onnxops_core.native.declaring.checks import check_choice, check_same_dtype, invalid
from onnxops_core.native.declaring.declare import declare, like_first_input

__all__ = ["tensor_scatter", "tensor_scatter_"]

_OP = "TensorScatter"


def _check(call: TensorScatterCall) -> None:
    update, starts, axis = call.update, call.write_indices, call.axis
    shape, new = call.past_cache.shape, update.shape
    rank = len(shape)
    place = axis if axis >= 0 else axis + rank
    if not 0 < place < rank:
        raise invalid(_OP, "axis", axis, f"a dimension of past_cache (rank {rank}) other than the batch dimension")
    if call.mode not in ("linear", "circular"):
        check_choice(_OP, "mode", call.mode, ("linear", "circular"))
    if update.dtype != call.past_cache.dtype:
        check_same_dtype(_OP, "update", update, "past_cache", call.past_cache.dtype)
    if len(new) != rank or (*new[:place], shape[place], *new[place + 1 :]) != shape or new[place] > shape[place]:
        raise invalid(_OP, "update", update, f"the shape of past_cache, {tuple(shape)}, but shorter in axis {place}")
    if starts is not None and (starts.dtype != torch.int64 or starts.shape != shape[:1]):
        raise invalid(_OP, "write_indices", starts, f"shape ({shape[0]},) and dtype int64")


def _check_values(call: TensorScatterCall) -> None:
    if call.write_indices is not None and call.mode != "circular":
        _check_starts(call.past_cache, call.update, call.write_indices.tolist(), call.axis)


def _check_starts(past_cache: torch.Tensor, update: torch.Tensor, starts: list[int], axis: int) -> None:
    room = past_cache.shape[axis] - update.shape[axis]
    if starts and not (min(starts) >= 0 and max(starts) <= room):
        raise invalid(_OP, "write_indices", starts, f"numbers from 0 to {room}, so that update fits into past_cache")


def _reference(call: TensorScatterCall) -> torch.Tensor:
    past_cache, update = call.past_cache, call.update
    place = call.axis % past_cache.dim()
    length, size = update.shape[place], past_cache.shape[place]
    rows = torch.arange(length, device=past_cache.device).unsqueeze(0)
    if call.write_indices is not None:
        rows = rows + call.write_indices.unsqueeze(1)
    if call.mode == "circular":
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


def _kernel(call: TensorScatterCall) -> torch.Tensor:
    if call.past_cache.device.type != "cpu":
        return _reference(call).contiguous()
    result = call.past_cache.clone(memory_format=torch.contiguous_format)
    starts = [0] * call.past_cache.shape[0] if call.write_indices is None else call.write_indices.tolist()
    _write(result, call.update, starts, call.axis % result.dim(), call.mode)
    return result


_TENSOR_SCATTER = declare(
    _OP,
    24,
    TensorScatterCall,
    reference=_reference,
    kernel=_kernel,
    fake=like_first_input,
    check=_check,
    check_values=_check_values,
    backends=(TENSOR_SCATTER,),
)


tensor_scatter = public("tensor_scatter", TensorScatterCall, _TENSOR_SCATTER)


def tensor_scatter_(
    cache: torch.Tensor,
    update: torch.Tensor,
    write_indices: torch.Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> torch.Tensor:
    """Write an update into a cache in place; otherwise as :func:`tensor_scatter`.

    Captured graphs hold the functional operator followed by a copy into the cache, which exporters turn into
    a state output.

    Returns:
        ``cache``.

    Raises:
        ValueError: as :func:`tensor_scatter`.
    """
    call = TensorScatterCall(cache, update, write_indices, axis=axis, mode=mode)
    if not torch.compiler.is_compiling() and _torch_private.is_plain_eager((cache, update, write_indices)):
        _TENSOR_SCATTER.calls.checked(call, _TENSOR_SCATTER.parameters.values(call))
        if cache.is_cpu:
            if _cpu.write_cache(cache, update, write_indices, axis % cache.dim(), mode == "circular"):
                return cache
            starts = [0] * cache.shape[0] if write_indices is None else write_indices.tolist()
            if mode == "linear" and write_indices is not None:
                _check_starts(cache, update, starts, axis)
            _write(cache, update, starts, axis % cache.dim(), mode)
            return cache
        if cache.is_contiguous() and TENSOR_SCATTER.refuses(call) is None:
            return write_cache(cache, update, write_indices, axis, mode)
    return cache.copy_(_TENSOR_SCATTER.compute(call))
