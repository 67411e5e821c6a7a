"""RotaryEmbedding on NVIDIA GPUs: what the Triton kernel takes, and how it is called.

Kernel modules are imported when the first call needs one, so that importing the package needs no Triton.
"""

from __future__ import annotations

import torch

from onnxops_core.native.declaring.backends import Backend, triton_refuses
from onnxops_core.native.declaring.call import inputs_of
from onnxops_core.native.rotary.calls import RotaryEmbeddingCall

__all__ = ["ROTARY_EMBEDDING"]


def _rotary_refuses(call: RotaryEmbeddingCall) -> str | None:
    return triton_refuses(inputs_of(call))


def _rotary_run(call: RotaryEmbeddingCall) -> torch.Tensor:
    from onnxops_core.native.rotary import triton

    x = call.X
    out = x.new_empty(x.shape)
    source, target = x.contiguous() if x.stride(-1) != 1 else x, out
    if x.dim() == 3:
        shape = (x.shape[0], x.shape[1], call.num_heads, x.shape[2] // call.num_heads)
        source, target = source.reshape(shape).transpose(1, 2), out.view(shape).transpose(1, 2)
    shape4 = (source.shape[0], source.shape[1], source.shape[2], source.shape[3])
    width = call.rotary_embedding_dim or source.shape[3]
    cos, sin = call.cos_cache.contiguous(), call.sin_cache.contiguous()
    triton.launch(source, cos, sin, call.position_ids, target, shape4, call.interleaved, width)
    return out


ROTARY_EMBEDDING = Backend("Triton", _rotary_refuses, _rotary_run)
