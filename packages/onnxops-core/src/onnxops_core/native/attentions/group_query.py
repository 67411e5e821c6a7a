"""GroupQueryAttention of the com.microsoft domain as a torch operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from onnxops_core.native.attentions.contrib import Attend, Three, broadcasts, new_call, split_heads
from onnxops_core.native.attentions.kernel import attention_kernel
from onnxops_core.native.attentions.reference import attention_reference
from onnxops_core.native.declaring.arguments import flag, integer
from onnxops_core.native.declaring.checks import (
    check_choice,
    check_float,
    check_not_negative,
    check_same_dtype,
    invalid,
)
from onnxops_core.native.declaring.declare import declare
from onnxops_core.native.rotary.operator import rotary_reference

__all__ = ["group_query_attention"]

_GQA = "GroupQueryAttention"


def _gqa_shapes(
    query: torch.Tensor, key: torch.Tensor | None, value: torch.Tensor | None, heads: int, kv_heads: int
) -> tuple[int, int, int]:
    """Returns batch, sequence length and head size."""
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


def _gqa_check(
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    past_key: torch.Tensor | None,
    past_value: torch.Tensor | None,
    seqlens_k: torch.Tensor,
    total_sequence_length: int,
    cos_cache: torch.Tensor | None = None,
    sin_cache: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    attention_bias: torch.Tensor | None = None,
    head_sink: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    q_norm_weight: torch.Tensor | None = None,
    k_norm_weight: torch.Tensor | None = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    causal: bool = True,
    do_rotary: bool = False,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    local_window_size: int = -1,
    qk_norm_epsilon: float = 1e-6,
    qk_output: int = 0,
    rotary_interleaved: bool = False,
    scale: float = 0.0,
    sliding_window_cache: bool = False,
    smooth_softmax: bool = False,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
    num_outputs: int = 3,
) -> None:
    check_float(_GQA, "query", query)
    batch, length, size = _gqa_shapes(query, key, value, num_heads, kv_num_heads)
    named = {"key": key, "value": value, "past_key": past_key, "past_value": past_value, "cos_cache": cos_cache}
    named |= {"sin_cache": sin_cache, "attention_bias": attention_bias, "head_sink": head_sink}
    named |= {"q_norm_weight": q_norm_weight, "k_norm_weight": k_norm_weight}
    for name, tensor in named.items():
        check_same_dtype(_GQA, name, tensor, "query", query.dtype)
    if (past_key is None) != (past_value is None):
        raise invalid(_GQA, "past_key, past_value", "given alone", "both or none")
    for name, tensor in (("past_key", past_key), ("past_value", past_value)):
        if tensor is not None and (
            tensor.dim() != 4 or tuple(tensor.shape) != (batch, kv_num_heads, tensor.shape[2], size)
        ):
            raise invalid(_GQA, name, tensor, f"({batch}, {kv_num_heads}, past length, {size})")
    if past_key is not None and past_value is not None and past_key.shape != past_value.shape:
        raise invalid(_GQA, "past_value", past_value, f"the shape of past_key, {tuple(past_key.shape)}")
    if seqlens_k.dtype != torch.int32 or tuple(seqlens_k.shape) != (batch,):
        raise invalid(_GQA, "seqlens_k", seqlens_k, f"shape ({batch},) and dtype int32")
    if total_sequence_length < length:
        raise invalid(_GQA, "total_sequence_length", total_sequence_length, f"at least query's length, {length}")
    _gqa_check_rotary(cos_cache, sin_cache, position_ids, do_rotary, (batch, length), size)
    shape = (batch, num_heads, length, total_sequence_length)
    if attention_bias is not None and not broadcasts(attention_bias, shape):
        raise invalid(_GQA, "attention_bias", attention_bias, f"{shape}, 1 in place of the first two allowed")
    if head_sink is not None and tuple(head_sink.shape) != (num_heads,):
        raise invalid(_GQA, "head_sink", head_sink, f"shape ({num_heads},)")
    _check_norms(q_norm_weight, k_norm_weight, size, qk_norm_epsilon)
    if local_window_size < -1 or local_window_size == 0 or (local_window_size != -1 and not causal):
        raise invalid(_GQA, "local_window_size", local_window_size, "-1, or a positive number where causal is True")
    _check_unsupported(
        ("k_scale", k_scale, None),
        ("v_scale", v_scale, None),
        ("k_quant_type", k_quant_type, "NONE"),
        ("v_quant_type", v_quant_type, "NONE"),
        ("kv_cache_bit_width", kv_cache_bit_width, 0),
        ("sliding_window_cache", sliding_window_cache, False),
        ("qk_output", qk_output, 0),
    )
    check_not_negative(_GQA, "softcap", softcap)
    check_not_negative(_GQA, "scale", scale)
    check_choice(_GQA, "num_outputs", num_outputs, (1, 2, 3))


def _check_unsupported(*options: tuple[str, object, object]) -> None:
    """Refuses quantized and sliding caches, and scores as an output, of which ONNX Runtime has kernels of its own."""
    for name, value, only in options:
        if value is not None if only is None else value != only:
            raise invalid(_GQA, name, value, f"{only!r}, the only value that is supported")


def _check_norms(q: torch.Tensor | None, k: torch.Tensor | None, size: int, epsilon: float) -> None:
    if (q is None) != (k is None):
        raise invalid(_GQA, "q_norm_weight, k_norm_weight", "given alone", "both or none")
    for name, weight in (("q_norm_weight", q), ("k_norm_weight", k)):
        if weight is not None and tuple(weight.shape) != (size,):
            raise invalid(_GQA, name, weight, f"shape ({size},), the head size")
    check_not_negative(_GQA, "qk_norm_epsilon", epsilon)


def _gqa_check_rotary(
    cos_cache: torch.Tensor | None,
    sin_cache: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    do_rotary: bool,
    rows: tuple[int, int],
    size: int,
) -> None:
    if position_ids is not None and (position_ids.dtype != torch.int64 or tuple(position_ids.shape) != rows):
        raise invalid(_GQA, "position_ids", position_ids, f"shape {rows} and dtype int64")
    if cos_cache is None or sin_cache is None:
        if do_rotary or cos_cache is not None or sin_cache is not None:
            raise invalid(_GQA, "cos_cache, sin_cache", None, "both, which do_rotary needs")
        return
    if cos_cache.dim() != 2 or not 0 < cos_cache.shape[1] * 2 <= size:
        raise invalid(_GQA, "cos_cache", cos_cache, f"(positions, at most {size // 2})")
    if sin_cache.shape != cos_cache.shape:
        raise invalid(_GQA, "sin_cache", sin_cache, f"the shape of cos_cache, {tuple(cos_cache.shape)}")


def _gqa_check_values(
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    past_key: torch.Tensor | None,
    past_value: torch.Tensor | None,
    seqlens_k: torch.Tensor,
    total_sequence_length: int,
    *args: Any,
    **attributes: Any,
) -> None:
    lengths = [length + 1 for length in seqlens_k.tolist()]
    least = 1 if query.shape[1] == total_sequence_length else query.shape[1]
    if any(not least <= length <= total_sequence_length for length in lengths):
        raise invalid(
            _GQA,
            "seqlens_k",
            [length - 1 for length in lengths],
            f"numbers from {least - 1} to {total_sequence_length - 1}, the total lengths less one",
        )


def _normalized(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    """Scales each head to a mean square of one; what follows is computed in a wide dtype."""
    if weight is None:
        return x
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + epsilon) * weight


def _rotate(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """Rotates the first features of heads ``(batch, heads, sequence, size)``."""
    return rotary_reference(x, cos, sin, positions, interleaved=interleaved, rotary_embedding_dim=2 * cos.shape[1])


def _cache(past: torch.Tensor | None, new: torch.Tensor, start: torch.Tensor, length: int) -> torch.Tensor:
    """Writes new rows behind the valid part of the past, in a cache of a given length."""
    if past is None:
        cache = new.new_zeros((*new.shape[:2], length, new.shape[3]))
    else:
        cache = torch.nn.functional.pad(past, (0, 0, 0, length - past.shape[2]))
    rows = start.unsqueeze(1) + torch.arange(new.shape[2], device=new.device)
    index = rows[:, None, :, None].expand(new.shape)
    return cache.scatter(2, index, new)


def _gqa(attend: Attend) -> Callable[..., Three]:
    def run(
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        past_key: torch.Tensor | None,
        past_value: torch.Tensor | None,
        seqlens_k: torch.Tensor,
        total_sequence_length: int,
        cos_cache: torch.Tensor | None = None,
        sin_cache: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        attention_bias: torch.Tensor | None = None,
        head_sink: torch.Tensor | None = None,
        k_scale: torch.Tensor | None = None,
        v_scale: torch.Tensor | None = None,
        q_norm_weight: torch.Tensor | None = None,
        k_norm_weight: torch.Tensor | None = None,
        *,
        num_heads: int,
        kv_num_heads: int,
        causal: bool = True,
        do_rotary: bool = False,
        k_quant_type: str = "NONE",
        kv_cache_bit_width: int = 0,
        local_window_size: int = -1,
        qk_norm_epsilon: float = 1e-6,
        qk_output: int = 0,
        rotary_interleaved: bool = False,
        scale: float = 0.0,
        sliding_window_cache: bool = False,
        smooth_softmax: bool = False,
        softcap: float = 0.0,
        v_quant_type: str = "NONE",
        num_outputs: int = 3,
    ) -> Three:
        if key is None or value is None:
            size = query.shape[2] // (num_heads + 2 * kv_num_heads)
            query, key, value = query.split([num_heads * size, kv_num_heads * size, kv_num_heads * size], 2)
        q, k, v = split_heads(query, num_heads), split_heads(key, kv_num_heads), split_heads(value, kv_num_heads)
        q, k = _normalized(q, q_norm_weight, qk_norm_epsilon), _normalized(k, k_norm_weight, qk_norm_epsilon)
        length = q.shape[2]
        # A first prompt starts at 0 in every row, however much of the row is padding.
        start = seqlens_k.to(torch.int64) + 1 - length
        if length == total_sequence_length:
            start = torch.zeros_like(start)
        if do_rotary and cos_cache is not None and sin_cache is not None:
            counted = start.unsqueeze(1) + torch.arange(length, device=q.device)
            positions = counted if position_ids is None else position_ids
            q, k = (_rotate(x, cos_cache, sin_cache, positions, rotary_interleaved) for x in (q, k))
        q, k = q.to(v.dtype), k.to(v.dtype)
        held = total_sequence_length if past_key is None else max(past_key.shape[2], total_sequence_length)
        present_key = _cache(past_key, k, start, held)
        present_value = _cache(past_value, v, start, held)
        call = new_call(q, present_key, present_value, scale, 1)
        call.nonpad, call.causal, call.softcap = start + length, causal, softcap
        call.left = local_window_size - 1 if local_window_size > 0 else -1
        if attention_bias is not None:
            call.mask = torch.nn.functional.pad(attention_bias, (0, held - attention_bias.shape[3]))
        call.sink = q.new_zeros(num_heads) if head_sink is None and smooth_softmax else head_sink
        output = attend(call)[0]
        none = query.new_empty(0)
        return output, present_key if num_outputs > 1 else none, present_value if num_outputs > 2 else none.clone()

    return run


def _gqa_fake(
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    past_key: torch.Tensor | None,
    past_value: torch.Tensor | None,
    seqlens_k: torch.Tensor,
    total_sequence_length: int,
    *args: object,
    num_heads: int,
    kv_num_heads: int,
    num_outputs: int = 3,
    **attributes: object,
) -> Three:
    batch, length, size = _gqa_shapes(query, key, value, num_heads, kv_num_heads)
    held = total_sequence_length if past_key is None else max(past_key.shape[2], total_sequence_length)
    cache = (batch, kv_num_heads, held, size)
    return (
        query.new_empty((batch, length, num_heads * size)),
        query.new_empty(cache if num_outputs > 1 else (0,)),
        query.new_empty(cache if num_outputs > 2 else (0,)),
    )


_GROUP_QUERY_ATTENTION = declare(
    _GQA,
    1,
    "(Tensor query, Tensor? key, Tensor? value, Tensor? past_key, Tensor? past_value, Tensor seqlens_k, "
    "SymInt total_sequence_length, Tensor? cos_cache=None, Tensor? sin_cache=None, Tensor? position_ids=None, "
    "Tensor? attention_bias=None, Tensor? head_sink=None, Tensor? k_scale=None, Tensor? v_scale=None, "
    "Tensor? q_norm_weight=None, Tensor? k_norm_weight=None, *, int num_heads, int kv_num_heads, bool causal=True, "
    "bool do_rotary=False, str k_quant_type='NONE', int kv_cache_bit_width=0, int local_window_size=-1, "
    "float qk_norm_epsilon=1e-06, int qk_output=0, bool rotary_interleaved=False, float scale=0.0, "
    "bool sliding_window_cache=False, bool smooth_softmax=False, float softcap=0.0, str v_quant_type='NONE', "
    "int num_outputs=3) -> (Tensor output, Tensor present_key, Tensor present_value)",
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


def group_query_attention(
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    past_key: torch.Tensor | None,
    past_value: torch.Tensor | None,
    seqlens_k: torch.Tensor,
    total_sequence_length: int | torch.SymInt | torch.Tensor,
    cos_cache: torch.Tensor | None = None,
    sin_cache: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    attention_bias: torch.Tensor | None = None,
    head_sink: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    q_norm_weight: torch.Tensor | None = None,
    k_norm_weight: torch.Tensor | None = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    causal: bool = True,
    do_rotary: bool = False,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    local_window_size: int = -1,
    qk_norm_epsilon: float = 1e-6,
    qk_output: int = 0,
    rotary_interleaved: bool = False,
    scale: float = 0.0,
    sliding_window_cache: bool = False,
    smooth_softmax: bool = False,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
    num_outputs: int = 3,
) -> Any:
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
        qk_output: must be 0: the scores are no output.
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
    outputs = _GROUP_QUERY_ATTENTION(
        query,
        key,
        value,
        past_key,
        past_value,
        seqlens_k,
        integer(_GQA, "total_sequence_length", total_sequence_length),
        cos_cache,
        sin_cache,
        position_ids,
        attention_bias,
        head_sink,
        k_scale,
        v_scale,
        q_norm_weight,
        k_norm_weight,
        num_heads=num_heads,
        kv_num_heads=kv_num_heads,
        causal=flag(_GQA, "causal", causal),
        do_rotary=flag(_GQA, "do_rotary", do_rotary),
        k_quant_type=k_quant_type,
        kv_cache_bit_width=kv_cache_bit_width,
        local_window_size=local_window_size,
        qk_norm_epsilon=qk_norm_epsilon,
        qk_output=qk_output,
        rotary_interleaved=flag(_GQA, "rotary_interleaved", rotary_interleaved),
        scale=scale,
        sliding_window_cache=flag(_GQA, "sliding_window_cache", sliding_window_cache),
        smooth_softmax=flag(_GQA, "smooth_softmax", smooth_softmax),
        softcap=softcap,
        v_quant_type=v_quant_type,
        num_outputs=num_outputs,
    )
    return outputs[0] if num_outputs == 1 else outputs[:num_outputs]
