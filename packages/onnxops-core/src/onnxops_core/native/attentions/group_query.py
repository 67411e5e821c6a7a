"""GroupQueryAttention of the com.microsoft domain as a torch operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any

import torch

from onnxops_core.native.attentions.contrib import Attend, Three, broadcasts, new_call, split_heads
from onnxops_core.native.attentions.kernel import attention_kernel
from onnxops_core.native.attentions.reference import attention_reference
from onnxops_core.native.declaring.call import Call, Size, operator_call, public
from onnxops_core.native.declaring.checks import (
    check_choice,
    check_float,
    check_not_negative,
    check_same_dtype,
    invalid,
)
from onnxops_core.native.declaring.declare import declare
from onnxops_core.native.rotary.calls import RotaryEmbeddingCall
from onnxops_core.native.rotary.operator import rotary_reference

__all__ = ["group_query_attention"]

_GQA = "GroupQueryAttention"


@operator_call
class GroupQueryAttentionCall(Call[Any]):
    """com.microsoft GroupQueryAttention: causal attention of grouped heads with a cache and rotary embedding.

    Args:
        query: ``(batch, sequence, num_heads * head_size)``, or without key and value all three packed,
            ``(batch, sequence, (num_heads + 2 * kv_num_heads) * head_size)``. float16, bfloat16 or float32,
            and beyond ONNX Runtime float64.
        key: ``(batch, sequence, kv_num_heads * head_size)`` or None.
        value: as ``key``.
        past_key: ``(batch, kv_num_heads, cache_length, head_size)`` or None.
        past_value: as ``past_key``.
        seqlens_k: ``(batch,)`` int32, each row's total length (past and new) less one.
        total_sequence_length: the largest total length; equal to the sequence length for a first prompt. A
            number or a one-element tensor.
        cos_cache: ``(positions, rotary_dim / 2)``, for ``do_rotary``.
        sin_cache: as ``cos_cache``.
        position_ids: ``(batch, sequence)`` int64; by default positions go on from each row's past.
        attention_bias: ``(batch or 1, num_heads or 1, sequence, total_sequence_length)``, added to the
            scores.
        head_sink: ``(num_heads,)``, a score that takes part in each softmax without a value.
        k_scale: of a quantized cache; must be None.
        v_scale: of a quantized cache; must be None.
        q_norm_weight: ``(head_size,)``, the scale of an RMS normalization of each query head before it is
            rotated; together with ``k_norm_weight``.
        k_norm_weight: as ``q_norm_weight``, for the heads of new keys.
        num_heads: the number of query heads, a multiple of ``kv_num_heads``.
        kv_num_heads: the number of key heads.
        causal: whether a query may not attend keys behind its own position.
        k_quant_type: must be ``"NONE"``, as quantized caches are not supported.
        kv_cache_bit_width: must be 0, as quantized caches are not supported.
        do_rotary: whether queries and keys are rotated first.
        local_window_size: how many keys a query attends, its own included; -1 for all.
        qk_norm_epsilon: added to the mean squares of the normalizations.
        qk_output: must be 0: the scores are not an output.
        rotary_interleaved: whether rotated pairs are neighbours.
        scale: factor of the scores; 0 stands for ``1 / sqrt(head_size)``.
        sliding_window_cache: must be False: the cache holds the whole sequence.
        smooth_softmax: whether a score of zero takes part in each softmax without a value.
        softcap: scores become ``softcap * tanh(scores / softcap)`` if it is positive.
        v_quant_type: as ``k_quant_type``.
        num_outputs: how many outputs are wanted.

    Returns:
        ``(output, present_key, present_value)``, or the first ``num_outputs`` of them; the output alone for
        1. The output is ``(batch, sequence, num_heads * head_size)``, the present has the larger of the cache
        length and
        ``total_sequence_length``.

    Raises:
        ValueError: shapes, dtypes, lengths or attributes that the operator does not take.

    Source:
        https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.GroupQueryAttention
    """

    query: torch.Tensor
    key: torch.Tensor | None
    value: torch.Tensor | None
    past_key: torch.Tensor | None
    past_value: torch.Tensor | None
    seqlens_k: torch.Tensor
    total_sequence_length: Size
    cos_cache: torch.Tensor | None = None
    sin_cache: torch.Tensor | None = None
    position_ids: torch.Tensor | None = None
    attention_bias: torch.Tensor | None = None
    head_sink: torch.Tensor | None = None
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None
    q_norm_weight: torch.Tensor | None = None
    k_norm_weight: torch.Tensor | None = None
    _: KW_ONLY
    num_heads: int
    kv_num_heads: int
    causal: bool = True
    do_rotary: bool = False
    k_quant_type: str = "NONE"
    kv_cache_bit_width: int = 0
    local_window_size: int = -1
    qk_norm_epsilon: float = 1e-6
    qk_output: int = 0
    rotary_interleaved: bool = False
    scale: float = 0.0
    sliding_window_cache: bool = False
    smooth_softmax: bool = False
    softcap: float = 0.0
    v_quant_type: str = "NONE"
    num_outputs: int = 3


def _gqa_shapes(call: GroupQueryAttentionCall) -> tuple[int, int, int]:
    """Return batch, sequence length and head size."""
    query, key, value, heads, kv_heads = call.query, call.key, call.value, call.num_heads, call.kv_num_heads
    if heads <= 0 or kv_heads <= 0 or heads % kv_heads:
        raise invalid(_GQA, "num_heads", heads, f"a positive multiple of kv_num_heads, {kv_heads}")
    if query.dim() != 3:
        raise invalid(_GQA, "query", query, "rank 3 (batch, sequence, features)")
    count = heads + 2 * kv_heads if key is None else heads
    if query.shape[2] % count or query.shape[2] == 0:
        raise invalid(_GQA, "query", query, f"a last dimension divisible by {count} heads")
    size = query.shape[2] // count
    if (key is None) != (value is None):
        raise invalid(_GQA, "key, value", "given alone", "both, or none with a packed query")
    for name, tensor in (("key", key), ("value", value)):
        if tensor is not None and tuple(tensor.shape) != (*query.shape[:2], kv_heads * size):
            raise invalid(_GQA, name, tensor, f"shape {(*query.shape[:2], kv_heads * size)}")
    return query.shape[0], query.shape[1], size


_OF_QUERYS_DTYPE = (
    *("key", "value", "past_key", "past_value", "cos_cache", "sin_cache"),
    *("attention_bias", "head_sink", "q_norm_weight", "k_norm_weight"),
)


def _gqa_check(call: GroupQueryAttentionCall) -> None:
    past_key, past_value, heads, kv_heads = call.past_key, call.past_value, call.num_heads, call.kv_num_heads
    window, bias, sink, total = call.local_window_size, call.attention_bias, call.head_sink, call.total_sequence_length
    check_float(_GQA, "query", call.query)
    batch, length, size = _gqa_shapes(call)
    for name in _OF_QUERYS_DTYPE:
        check_same_dtype(_GQA, name, getattr(call, name), "query", call.query.dtype)
    if (past_key is None) != (past_value is None):
        raise invalid(_GQA, "past_key, past_value", "given alone", "both or none")
    for name, tensor in (("past_key", past_key), ("past_value", past_value)):
        if tensor is not None and (tensor.dim() != 4 or tensor.shape != (batch, kv_heads, tensor.shape[2], size)):
            raise invalid(_GQA, name, tensor, f"({batch}, {kv_heads}, past length, {size})")
    if past_key is not None and past_value is not None and past_key.shape != past_value.shape:
        raise invalid(_GQA, "past_value", past_value, f"the shape of past_key, {tuple(past_key.shape)}")
    if call.seqlens_k.dtype != torch.int32 or tuple(call.seqlens_k.shape) != (batch,):
        raise invalid(_GQA, "seqlens_k", call.seqlens_k, f"shape ({batch},) and dtype int32")
    if total < length:
        raise invalid(_GQA, "total_sequence_length", total, f"at least query's length, {length}")
    _gqa_check_rotary(call, (batch, length), size)
    shape = (batch, heads, length, total)
    if bias is not None and not broadcasts(bias, shape):
        raise invalid(_GQA, "attention_bias", bias, f"{shape}, 1 in place of the first two allowed")
    if sink is not None and tuple(sink.shape) != (heads,):
        raise invalid(_GQA, "head_sink", sink, f"shape ({heads},)")
    _check_norms(call.q_norm_weight, call.k_norm_weight, size, call.qk_norm_epsilon)
    if window < -1 or window == 0 or (window != -1 and not call.causal):
        raise invalid(_GQA, "local_window_size", window, "-1, or a positive number where causal is True")
    _check_unsupported(call)
    check_not_negative(_GQA, "softcap", call.softcap)
    check_not_negative(_GQA, "scale", call.scale)
    check_choice(_GQA, "num_outputs", call.num_outputs, (1, 2, 3))


# Quantized and sliding caches, and scores as an output, have kernels of ONNX Runtime's own.
_UNSUPPORTED = {
    "k_scale": None,
    "v_scale": None,
    "k_quant_type": "NONE",
    "v_quant_type": "NONE",
    "kv_cache_bit_width": 0,
    "sliding_window_cache": False,
    "qk_output": 0,
}


def _check_unsupported(call: GroupQueryAttentionCall) -> None:
    for name, only in _UNSUPPORTED.items():
        value = getattr(call, name)
        if value is not None if only is None else value != only:
            raise invalid(_GQA, name, value, f"{only!r}, the only value that is supported")


def _check_norms(q: torch.Tensor | None, k: torch.Tensor | None, size: int, epsilon: float) -> None:
    if (q is None) != (k is None):
        raise invalid(_GQA, "q_norm_weight, k_norm_weight", "given alone", "both or none")
    for name, weight in (("q_norm_weight", q), ("k_norm_weight", k)):
        if weight is not None and tuple(weight.shape) != (size,):
            raise invalid(_GQA, name, weight, f"shape ({size},), the head size")
    check_not_negative(_GQA, "qk_norm_epsilon", epsilon)


def _gqa_check_rotary(call: GroupQueryAttentionCall, rows: tuple[int, int], size: int) -> None:
    cos_cache, sin_cache, position_ids = call.cos_cache, call.sin_cache, call.position_ids
    if position_ids is not None and (position_ids.dtype != torch.int64 or tuple(position_ids.shape) != rows):
        raise invalid(_GQA, "position_ids", position_ids, f"shape {rows} and dtype int64")
    if cos_cache is None or sin_cache is None:
        if call.do_rotary or cos_cache is not None or sin_cache is not None:
            raise invalid(_GQA, "cos_cache, sin_cache", None, "both, which do_rotary needs")
        return
    if cos_cache.dim() != 2 or not 0 < cos_cache.shape[1] * 2 <= size:
        raise invalid(_GQA, "cos_cache", cos_cache, f"(positions, at most {size // 2})")
    if sin_cache.shape != cos_cache.shape:
        raise invalid(_GQA, "sin_cache", sin_cache, f"the shape of cos_cache, {tuple(cos_cache.shape)}")


def _gqa_check_values(call: GroupQueryAttentionCall) -> None:
    lengths = [length + 1 for length in call.seqlens_k.tolist()]
    least = 1 if call.query.shape[1] == call.total_sequence_length else call.query.shape[1]
    if any(not least <= length <= call.total_sequence_length for length in lengths):
        raise invalid(
            _GQA,
            "seqlens_k",
            [length - 1 for length in lengths],
            f"numbers from {least - 1} to {call.total_sequence_length - 1}, the total lengths less one",
        )


def _normalized(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    """Scale each head to a mean square of one; what follows is computed in a wide dtype."""
    if weight is None:
        return x
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + epsilon) * weight


def _rotate(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """Rotate the first features of heads ``(batch, heads, sequence, size)``."""
    width = 2 * cos.shape[1]
    return rotary_reference(
        RotaryEmbeddingCall(x, cos, sin, positions, interleaved=interleaved, rotary_embedding_dim=width)
    )


def _cache(past: torch.Tensor | None, new: torch.Tensor, start: torch.Tensor, length: int) -> torch.Tensor:
    """Write new rows behind the valid part of the past, in a cache of a given length."""
    if past is None:
        cache = new.new_zeros((*new.shape[:2], length, new.shape[3]))
    else:
        cache = torch.nn.functional.pad(past, (0, 0, 0, length - past.shape[2]))
    rows = start.unsqueeze(1) + torch.arange(new.shape[2], device=new.device)
    index = rows[:, None, :, None].expand(new.shape)
    return cache.scatter(2, index, new)


def _cache_length(call: GroupQueryAttentionCall) -> int:
    total = call.total_sequence_length
    return total if call.past_key is None else max(call.past_key.shape[2], total)


def _projected(call: GroupQueryAttentionCall) -> Three:
    """Return queries, keys and values ``(batch, heads, sequence, size)``, heads normalized where that is asked for."""
    query, key, value, kv_heads = call.query, call.key, call.value, call.kv_num_heads
    if key is None or value is None:
        size = query.shape[2] // (call.num_heads + 2 * kv_heads)
        query, key, value = query.split([call.num_heads * size, kv_heads * size, kv_heads * size], 2)
    q, k, v = split_heads(query, call.num_heads), split_heads(key, kv_heads), split_heads(value, kv_heads)
    epsilon = call.qk_norm_epsilon
    return _normalized(q, call.q_norm_weight, epsilon), _normalized(k, call.k_norm_weight, epsilon), v


def _gqa(attend: Attend) -> Callable[[GroupQueryAttentionCall], Three]:
    def run(call: GroupQueryAttentionCall) -> Three:
        q, k, v = _projected(call)
        length = q.shape[2]
        # A first prompt starts at 0 in every row, however much of the row is padding.
        start = call.seqlens_k.to(torch.int64) + 1 - length
        if length == call.total_sequence_length:
            start = torch.zeros_like(start)
        if call.do_rotary and call.cos_cache is not None and call.sin_cache is not None:
            counted = start.unsqueeze(1) + torch.arange(length, device=q.device)
            positions = counted if call.position_ids is None else call.position_ids
            q, k = (_rotate(x, call.cos_cache, call.sin_cache, positions, call.rotary_interleaved) for x in (q, k))
        q, k = q.to(v.dtype), k.to(v.dtype)
        held = _cache_length(call)
        present_key = _cache(call.past_key, k, start, held)
        present_value = _cache(call.past_value, v, start, held)
        split = new_call(q, present_key, present_value, call.scale, 1)
        split.nonpad, split.causal, split.softcap = start + length, call.causal, call.softcap
        split.left = call.local_window_size - 1 if call.local_window_size > 0 else -1
        if call.attention_bias is not None:
            split.mask = torch.nn.functional.pad(call.attention_bias, (0, held - call.attention_bias.shape[3]))
        without_sink = call.head_sink is None and call.smooth_softmax
        split.sink = q.new_zeros(call.num_heads) if without_sink else call.head_sink
        output = attend(split)[0]
        none = call.query.new_empty(0)
        key = present_key if call.num_outputs > 1 else none
        return output, key, present_value if call.num_outputs > 2 else none.clone()

    return run


def _gqa_fake(call: GroupQueryAttentionCall) -> Three:
    batch, length, size = _gqa_shapes(call)
    cache = (batch, call.kv_num_heads, _cache_length(call), size)
    return (
        call.query.new_empty((batch, length, call.num_heads * size)),
        call.query.new_empty(cache if call.num_outputs > 1 else (0,)),
        call.query.new_empty(cache if call.num_outputs > 2 else (0,)),
    )


_GROUP_QUERY_ATTENTION = declare(
    _GQA,
    1,
    GroupQueryAttentionCall,
    returns=("output", "present_key", "present_value"),
    domain="com.microsoft",
    reference=_gqa(attention_reference),
    kernel=_gqa(attention_kernel),
    fake=_gqa_fake,
    check=_gqa_check,
    check_values=_gqa_check_values,
    scalar_inputs={"total_sequence_length": 6},
    not_attributes=("num_outputs",),
    extensions=(torch.float64,),
)


group_query_attention = public("group_query_attention", GroupQueryAttentionCall, _GROUP_QUERY_ATTENTION)
