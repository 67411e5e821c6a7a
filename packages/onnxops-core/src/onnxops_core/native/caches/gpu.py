"""Writes into a cache on NVIDIA GPUs: what the Triton kernel takes, and how it is called.

Kernel modules are imported when the first call needs one, so that importing the package needs no Triton.
"""

from __future__ import annotations

import torch

from onnxops_core.native.caches.calls import TensorScatterCall
from onnxops_core.native.declaring.backends import Backend, triton_refuses
from onnxops_core.native.declaring.call import inputs_of

__all__ = ["TENSOR_SCATTER", "write_cache"]


def _scatter_refuses(call: TensorScatterCall) -> str | None:
    # Bits are moved, nothing is computed, so that float64 is as good as any dtype; 16-byte numbers have no
    # carrier.
    if call.past_cache.is_complex():
        return "complex numbers have no integer of their width"
    return triton_refuses(tensor for tensor in inputs_of(call) if tensor is None or tensor.dtype != torch.float64)


def write_cache(
    cache: torch.Tensor, update: torch.Tensor, starts: torch.Tensor | None, axis: int, mode: str
) -> torch.Tensor:
    """Write an update into a contiguous CUDA cache in place."""
    from onnxops_core.native.caches import triton

    with torch.cuda.device_of(cache):
        triton.write_update(cache, update.contiguous(), starts, axis % cache.dim(), mode == "circular")
    return cache


def _scatter_run(call: TensorScatterCall) -> torch.Tensor:
    cache = call.past_cache.clone(memory_format=torch.contiguous_format)
    return write_cache(cache, call.update, call.write_indices, call.axis, call.mode)


TENSOR_SCATTER = Backend("Triton", _scatter_refuses, _scatter_run)
