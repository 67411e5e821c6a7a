"""Attention on NVIDIA GPUs: what torch's fused attention and the Triton kernel take, and how they are called.

Kernel modules are imported when the first call needs one, so that importing the package needs no Triton.
"""

from __future__ import annotations

import math

import torch

from onnxops_core.native.attentions.reference import (
    Outputs,
    SplitAttention,
    contiguous,
    finish_outputs,
    sdpa_expresses,
)
from onnxops_core.native.declaring.backends import contiguous_or_none, triton_refuses

__all__ = [
    "attention_on_gpu",
    "fused_attention",
    "fused_attention_refuses",
    "triton_attention",
    "triton_attention_refuses",
]

_LARGEST_HEAD = 256


def fused_attention_refuses(call: SplitAttention) -> str | None:
    """Say why torch's fused attention cannot compute a call."""
    if call.num_outputs > 3:
        return "the score matrix is wanted"
    if not sdpa_expresses(call):
        return "a soft cap, window, length, precision, or causal with a past or mask is beyond fused attention"
    if call.group != 1 and (call.mask is not None or call.q.dtype not in (torch.float16, torch.bfloat16)):
        return "grouped heads with a mask, or in float32, would go through the score matrix"
    if call.k.shape[2] == 0:
        return "there are no keys"
    return None


def fused_attention(call: SplitAttention) -> Outputs:
    """Compute a call with torch's fused attention, which picks among flash, cuDNN and memory-efficient kernels."""
    mask = call.mask
    y = torch.nn.functional.scaled_dot_product_attention(
        call.q, call.k, call.v, mask, 0.0, call.causal, scale=call.scale, enable_gqa=call.group != 1
    )
    if mask is not None:
        # What a query without any key gets is not the same in all of torch's kernels.
        allowed = mask if mask.dtype == torch.bool else mask != -math.inf
        y = y.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
    return contiguous(finish_outputs(call, y, None, call.past_length == 0))


def triton_attention_refuses(call: SplitAttention) -> str | None:
    """Say why the tiled kernel cannot compute a call."""
    if call.num_outputs > 3:
        return "the score matrix is wanted"
    if call.precision not in (None, 1):
        return "the softmax is computed in float32"
    if call.sink is not None:
        return "a score without a value takes part in the softmax"
    if call.v.dtype != call.q.dtype:
        return "Q and V have different dtypes"
    if max(call.q.shape[3], call.v.shape[3]) > _LARGEST_HEAD:
        return f"a head is larger than {_LARGEST_HEAD}"
    return triton_refuses((call.q, call.k, call.v, call.mask, call.nonpad))


def triton_attention(call: SplitAttention) -> Outputs:
    """Compute a call tile by tile with an online softmax."""
    from onnxops_core.native.attentions import triton

    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (call.q, call.k, call.v))
    y = triton.attend(
        q,
        k,
        v,
        call.mask,
        contiguous_or_none(call.nonpad),
        past=call.past_length,
        causal=call.causal,
        left=call.left,
        right=call.right,
        scale=call.scale,
        softcap=call.softcap,
    )
    return contiguous(finish_outputs(call, y, None, call.past_length == 0))


def attention_on_gpu(call: SplitAttention) -> Outputs | None:
    """Compute a CUDA call by the first implementation that takes it; None if none does."""
    if fused_attention_refuses(call) is None:
        return fused_attention(call)
    if triton_attention_refuses(call) is not None:
        return None
    with torch.cuda.device_of(call.q):
        return triton_attention(call)
