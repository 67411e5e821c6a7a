"""RotaryEmbedding by the optional C kernel: what it takes, and how it is called."""

from __future__ import annotations

import struct

import torch

from onnxops_core.native.c_kernels import library
from onnxops_core.native.declaring.backends import Backend, contiguous_or_none
from onnxops_core.native.rotary.calls import RotaryEmbeddingCall

__all__ = ["CPU_ROTARY_EMBEDDING"]

_ROTARY = struct.Struct("17q")


def _rotary_refuses(call: RotaryEmbeddingCall) -> str | None:
    reason = library.refuses(call.X, call.cos_cache, call.sin_cache)
    dense = call.X.stride(-1) == 1 and call.cos_cache.is_contiguous() and call.sin_cache.is_contiguous()
    return reason if reason is not None or dense else "features are not dense"


def _rotary_run(call: RotaryEmbeddingCall) -> torch.Tensor:
    x = call.X
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.dim() == 4:
        batch, heads, length, size = x.shape
        x_batch, x_head, x_token, _ = x.stride()
        out_batch, out_head, out_token = heads * length * size, length * size, size
    else:
        batch, length, width = x.shape
        heads, size = call.num_heads, width // call.num_heads
        (x_batch, x_token, _), x_head = x.stride(), size
        out_batch, out_head, out_token = length * width, size, width
    half = (call.rotary_embedding_dim or size) // 2
    positions = contiguous_or_none(call.position_ids)
    packed = _ROTARY.pack(
        x.data_ptr(),
        call.cos_cache.data_ptr(),
        call.sin_cache.data_ptr(),
        0 if positions is None else positions.data_ptr(),
        out.data_ptr(),
        batch,
        heads,
        length,
        half,
        size - 2 * half,
        call.interleaved,
        x_batch,
        x_head,
        x_token,
        out_batch,
        out_head,
        out_token,
    )
    library.cpu_kernels().onnxops_rotary(packed)
    return out


CPU_ROTARY_EMBEDDING = Backend("C", _rotary_refuses, _rotary_run, "cpu")
