"""ONNX's Attention as its specification states it, in differentiable ATen operators.

Source: https://onnx.ai/onnx/operators/onnx__Attention.html (opsets 23 to 25).
"""

from __future__ import annotations

import dataclasses
import math

import torch

from onnxops_core._torch_private import forward_mode_is_active, is_mapped
from onnxops_core.dtypes import torch_dtype
from onnxops_core.native.attentions.calls import AttentionCall

__all__ = [
    "SplitAttention",
    "attention_composite",
    "attention_reference",
    "contiguous",
    "finish_outputs",
    "split_heads",
]

Outputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclasses.dataclass
class SplitAttention:
    """One call, with heads split and the past joined.

    Attributes:
        q: queries ``(batch, q_num_heads, q_sequence, head_size)``.
        k: keys, the past included, ``(batch, kv_num_heads, total_sequence, head_size)``.
        v: values, the past included, ``(batch, kv_num_heads, total_sequence, v_head_size)``.
        mask: a boolean or float mask that broadcasts to the scores, padded to ``total_sequence``, or None.
        past_length: how many keys come from the past.
        nonpad: the number of valid keys of each batch row, or None.
        flat: whether the inputs were 3-D.
        causal: whether no query attends keys behind its position.
        left: how many keys before its position a query attends; -1 for all.
        right: how many keys behind its position a query attends; -1 for all.
        scale: factor of the scores.
        softcap: bound of the scores; 0 for none.
        precision: the ONNX dtype integer of the softmax, or None.
        mode: which stage of the scores the fourth output holds.
        num_outputs: how many outputs are wanted.
        sink: ``(q_num_heads,)``, a score that takes part in the softmax without a value, or None.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | None
    past_length: int
    nonpad: torch.Tensor | None
    flat: bool
    causal: bool
    left: int
    right: int
    scale: float
    softcap: float
    precision: int | None
    mode: int
    num_outputs: int
    sink: torch.Tensor | None = None

    @property
    def group(self) -> int:
        """How many query heads share a key head."""
        return self.q.shape[1] // self.k.shape[1]


def split_heads(call: AttentionCall) -> SplitAttention:
    """Bring a call's inputs to 4-D, with the past in front of the keys and values."""
    q, k, v, attn_mask = call.Q, call.K, call.V, call.attn_mask
    flat = q.dim() == 3
    if flat:
        q = q.unflatten(2, (call.q_num_heads, q.shape[2] // call.q_num_heads)).transpose(1, 2)
        k = k.unflatten(2, (call.kv_num_heads, k.shape[2] // call.kv_num_heads)).transpose(1, 2)
        v = v.unflatten(2, (call.kv_num_heads, v.shape[2] // call.kv_num_heads)).transpose(1, 2)
    past_length = 0
    if call.past_key is not None and call.past_value is not None:
        past_length = call.past_key.shape[2]
        k = torch.cat((call.past_key, k), 2)
        v = torch.cat((call.past_value, v), 2)
    if attn_mask is not None:
        if attn_mask.dim() == 1:
            attn_mask = attn_mask.unsqueeze(0)  # fused attention wants a dimension of queries
        missing = k.shape[2] - attn_mask.shape[-1]
        if missing != 0:
            outside = False if attn_mask.dtype == torch.bool else -math.inf
            attn_mask = torch.nn.functional.pad(attn_mask, (0, missing), value=outside)
    return SplitAttention(
        q=q,
        k=k,
        v=v,
        mask=attn_mask,
        past_length=past_length,
        nonpad=call.nonpad_kv_seqlen,
        flat=flat,
        causal=call.is_causal,
        left=call.left_window_size,
        right=call.right_window_size,
        scale=1.0 / math.sqrt(q.shape[3]) if call.scale is None else call.scale,
        softcap=call.softcap,
        precision=call.softmax_precision,
        mode=call.qk_matmul_output_mode,
        num_outputs=call.num_outputs,
    )


def contiguous(outputs: Outputs) -> Outputs:
    """Return the outputs laid out without gaps, as the fakes describe them."""
    y, key, value, qk = outputs
    return y.contiguous(), key.contiguous(), value.contiguous(), qk.contiguous()


def finish_outputs(call: SplitAttention, y: torch.Tensor, qk: torch.Tensor | None, copy_present: bool) -> Outputs:
    """Merge heads again where the inputs were 3-D, and leave out what was not asked for."""
    if call.flat:
        y = y.transpose(1, 2).flatten(2)
    key = call.k if call.num_outputs > 1 else call.k.new_empty(0)
    value = call.v if call.num_outputs > 2 else call.v.new_empty(0)
    if copy_present:
        key = key.clone(memory_format=torch.contiguous_format)
        value = value.clone(memory_format=torch.contiguous_format)
    return y.to(call.q.dtype), key, value, call.q.new_empty(0) if qk is None else qk


def allowed_keys(call: SplitAttention) -> torch.Tensor | None:
    """Return which keys each query may attend by position alone, broadcastable to the scores; None for all."""
    bounded = call.causal or call.left >= 0 or call.right >= 0
    if not bounded and call.nonpad is None:
        return None
    device = call.q.device
    keys = torch.arange(call.k.shape[2], device=device)
    allowed = None
    if bounded:
        queries = torch.arange(call.q.shape[2], device=device).unsqueeze(1)
        position = queries + call.past_length
        if call.nonpad is not None:
            position = queries + (call.nonpad - call.q.shape[2])[:, None, None, None]
        rules = []
        if call.causal:
            rules.append(keys <= position)
        if call.left >= 0:
            rules.append(keys >= position - call.left)
        if call.right >= 0:
            rules.append(keys <= position + call.right)
        allowed = rules[0]
        for rule in rules[1:]:
            allowed = allowed & rule
    if call.nonpad is not None:
        valid = keys < call.nonpad[:, None, None, None]
        allowed = valid if allowed is None else allowed & valid
    return allowed


def _bias(call: SplitAttention, dtype: torch.dtype) -> torch.Tensor | None:
    allowed = allowed_keys(call)
    mask = call.mask
    if mask is not None and mask.dtype == torch.bool:
        allowed = mask if allowed is None else allowed & mask
        mask = None
    if allowed is None:
        return None if mask is None else mask.to(dtype)
    bias = torch.zeros((), dtype=dtype, device=allowed.device) if mask is None else mask.to(dtype)
    return torch.where(allowed, bias, -math.inf)


def attention_reference(call: SplitAttention) -> Outputs:
    """Compute all outputs through the whole score matrix; float16 and bfloat16 are accumulated in float32."""
    dtype = torch.promote_types(call.q.dtype, torch.float32)
    root = math.sqrt(call.scale)
    k = call.k.repeat_interleave(call.group, 1) if call.group != 1 else call.k
    v = call.v.repeat_interleave(call.group, 1) if call.group != 1 else call.v
    scores = (call.q.to(dtype) * root) @ (k.to(dtype) * root).transpose(2, 3)
    stages = [scores]
    if call.softcap > 0:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    stages.append(scores)
    bias = _bias(call, dtype)
    if bias is not None:
        scores = scores + bias
    stages.append(scores)
    probabilities = _softmax(call, scores, bias)
    stages.append(probabilities)
    y = probabilities.to(dtype) @ v.to(dtype)
    qk = stages[call.mode].to(call.q.dtype) if call.num_outputs > 3 else None
    return finish_outputs(call, y, qk, call.past_length == 0)


def _softmax(call: SplitAttention, scores: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if call.precision is not None:
        scores = scores.to(torch_dtype(call.precision))
    if call.sink is not None:
        sink = call.sink.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.softmax(torch.cat((scores, sink), -1), -1)[..., :-1]
    if bias is None:
        return torch.softmax(scores, -1)
    # A row whose keys are all masked has probability zero everywhere, and zero gradients: softmax must not
    # see it.
    dead = (bias == -math.inf).all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(dead, 0.0), -1).masked_fill(dead, 0.0)


def sdpa_expresses(call: SplitAttention) -> bool:
    """Tell whether scaled_dot_product_attention computes Y, and Y and the present are all that is wanted."""
    if call.softcap or call.num_outputs > 3 or call.nonpad is not None or call.left >= 0 or call.right >= 0:
        return False
    if call.precision not in (None, 1) or (call.precision == 1 and call.q.dtype == torch.float64):
        return False
    if call.v.dtype != call.q.dtype or call.sink is not None:
        return False
    if call.scale == 0:  # torch's causal kernel makes NaN of it
        return False
    # torch's is_causal counts positions from the first key on and cannot be combined with a mask.
    return not call.causal or (call.past_length == 0 and call.mask is None)


def attention_composite(call: SplitAttention) -> Outputs:
    """Return the reference, or scaled_dot_product_attention where that says the same."""
    # Fused attention has neither a forward-mode derivative nor, on the CPU, a batching rule.
    if not sdpa_expresses(call) or forward_mode_is_active() or any(map(is_mapped, (call.q, call.k, call.v))):
        return attention_reference(call)
    y = torch.nn.functional.scaled_dot_product_attention(
        call.q,
        call.k,
        call.v,
        call.mask,
        is_causal=call.causal,
        scale=call.scale,
        enable_gqa=bool(call.group != 1),
    )
    return finish_outputs(call, y, None, call.past_length == 0)
