"""Attention (opsets 23, 24, 25) as a torch operator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from onnxops_core._torch_private import is_plain_eager
from onnxops_core.native.attentions.calls import AttentionCall
from onnxops_core.native.attentions.checks import check_attention, check_attention_values
from onnxops_core.native.attentions.gpu import (
    fused_attention,
    fused_attention_refuses,
    triton_attention,
    triton_attention_refuses,
)
from onnxops_core.native.attentions.kernel import attention_kernel
from onnxops_core.native.attentions.one_query import attend_one_query
from onnxops_core.native.attentions.reference import (
    Outputs,
    SplitAttention,
    attention_composite,
    attention_reference,
    split_heads,
)
from onnxops_core.native.declaring.backends import Backend
from onnxops_core.native.declaring.call import public
from onnxops_core.native.declaring.declare import NativeOp, declare

__all__ = ["attention"]

Result = TypeVar("Result")
Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _on_split(implementation: Callable[[SplitAttention], Result]) -> Callable[[AttentionCall], Result]:
    """Make an implementation of the operator of one that takes split heads."""

    def run(call: AttentionCall) -> Result:
        return implementation(split_heads(call))

    return run


def _check_values(call: AttentionCall) -> None:
    if call.nonpad_kv_seqlen is not None:
        check_attention_values(call.K, call.nonpad_kv_seqlen)


def _fake(call: SplitAttention) -> Outputs:
    batch, heads, length, _ = call.q.shape
    size = call.v.shape[3]
    total = call.k.shape[2]
    y = call.q.new_empty((batch, length, heads * size) if call.flat else (batch, heads, length, size))
    key = call.k.new_empty(call.k.shape if call.num_outputs > 1 else (0,))
    value = call.v.new_empty(call.v.shape if call.num_outputs > 2 else (0,))
    qk = call.q.new_empty((batch, heads, length, total) if call.num_outputs > 3 else (0,))
    return y, key, value, qk


_BACKENDS = (
    Backend("torch's fused attention", _on_split(fused_attention_refuses), _on_split(fused_attention)),
    Backend("Triton", _on_split(triton_attention_refuses), _on_split(triton_attention)),
)


def _declare_version(version: int, *left_out: str) -> NativeOp:
    return declare(
        "Attention",
        version,
        AttentionCall,
        returns=("Y", "present_key", "present_value", "qk_matmul_output"),
        left_out=left_out,
        reference=_on_split(attention_reference),
        composite=_on_split(attention_composite),
        kernel=_on_split(attention_kernel),
        backends=_BACKENDS,
        dispatch=False,
        fake=_on_split(_fake),
        check=functools.partial(check_attention, strict_heads=version >= 25),
        check_values=_check_values,
        not_attributes=("num_outputs",),
    )


_WINDOWS = ("left_window_size", "right_window_size")
_ATTENTION_23 = _declare_version(23, "nonpad_kv_seqlen", *_WINDOWS)
_ATTENTION_24 = _declare_version(24, *_WINDOWS)
_ATTENTION_25 = _declare_version(25)


def _at_once(call: AttentionCall) -> Three | None:
    """Compute Y and the present of a checked 4-D call by one call of fused attention, if that says the same.

    Only what matters in a decoding step and in a plain prompt is recognised; the kernel knows more.
    """
    q, k, v, mask, nonpad = call.Q, call.K, call.V, call.attn_mask, call.nonpad_kv_seqlen
    past_key, past_value, is_causal, scale = call.past_key, call.past_value, call.is_causal, call.scale
    length, total = q.shape[2], k.shape[2]
    if nonpad is not None:
        counts = check_attention_values(k, nonpad)
        total = counts[0] if counts else 0
        if mask is not None or total == 0 or (len(counts) > 1 and counts != counts[:1] * len(counts)):
            return None
        if is_causal and length > 1 and total != length:
            return None
        is_causal = is_causal and length > 1
    elif past_key is not None and past_value is not None:
        if is_causal and (length > 1 or total > 1 or mask is not None):
            return None
        k, v = torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)
        total = k.shape[2]
        is_causal = False
    elif is_causal:
        if mask is not None:
            return None
        is_causal = total > 1
    if mask is not None and (mask.dim() < 2 or mask.shape[-1] != total):
        return None
    if length == 1 and mask is None and not is_causal:
        return attend_one_query(q, k, v, total, scale).contiguous(), k, v
    if total != k.shape[2]:
        k, v = k[:, :, :total], v[:, :, :total]
    y = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, mask, 0.0, is_causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return y.contiguous(), k, v


def _quick(call: AttentionCall) -> Three | None:
    """Compute the common call without the dispatcher and the general kernel; None for any other call.

    At one token the overhead of either is as much as the computation. After a larger computation, every Python
    function has left the processor's caches and costs several times what it does in a loop.
    """
    if call.num_outputs != 1 and (call.num_outputs != 3 or call.past_key is None):
        return None
    if call.softcap != 0 or call.softmax_precision is not None or _version(call) is _ATTENTION_25:
        return None
    values = _ATTENTION_24.parameters.values(call)
    if not is_plain_eager(values):
        return None
    call = _ATTENTION_24.calls.checked(call, values)
    q = call.Q
    if not q.is_cpu or q.dim() != 4 or q.dtype != call.V.dtype or call.scale == 0:
        return None
    return _at_once(call)


def _check_kinds(call: AttentionCall) -> None:
    """Check the attributes that are looked at before an operator is chosen, which checks them all."""
    kinds = (type(call.softcap), type(call.left_window_size), type(call.right_window_size), type(call.num_outputs))
    if kinds != (float, int, int, int):
        values = _ATTENTION_25.parameters.values(call)
        _ATTENTION_25.kinds.check(_ATTENTION_25.kinds.converted(values))


def _version(call: AttentionCall) -> NativeOp:
    """Return the oldest version of the operator that has what a call uses."""
    if call.left_window_size != -1 or call.right_window_size != -1:
        return _ATTENTION_25
    return _ATTENTION_23 if call.nonpad_kv_seqlen is None else _ATTENTION_24


def _attend(*args: Any, **kwargs: Any) -> Any:
    call = AttentionCall(*args, **kwargs)
    if not torch.compiler.is_compiling():
        _check_kinds(call)
        found = _quick(call)
        if found is not None:
            return found
    return _version(call).compute(call)


attention = public("attention", AttentionCall, _attend)
