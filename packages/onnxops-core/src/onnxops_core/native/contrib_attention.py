"""MultiHeadAttention and GroupQueryAttention of the com.microsoft domain as torch operators."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch

from onnxops_core.native._attention_kernel import attention_kernel
from onnxops_core.native._attention_reference import (
    AttentionCall,
    Outputs,
    attention_composite,
    attention_reference,
)
from onnxops_core.native._checks import check_choice, check_float, check_same_dtype, invalid
from onnxops_core.native._declare import declare
from onnxops_core.native._rotary_embedding import rotary_reference

__all__ = ["group_query_attention", "multi_head_attention"]

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Attend = Callable[[AttentionCall], Outputs]
_MHA = "MultiHeadAttention"
_GQA = "GroupQueryAttention"


def _new_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, num_outputs: int) -> AttentionCall:
    return AttentionCall(
        q=q,
        k=k,
        v=v,
        mask=None,
        past_length=0,
        nonpad=None,
        flat=True,
        causal=False,
        left=-1,
        right=-1,
        scale=scale or 1.0 / math.sqrt(q.shape[3]),
        softcap=0.0,
        precision=None,
        mode=0,
        num_outputs=num_outputs,
    )


def _split(x: torch.Tensor, heads: int) -> torch.Tensor:
    result: torch.Tensor = x.unflatten(2, (heads, x.shape[2] // heads)).transpose(1, 2)
    return result


@dataclasses.dataclass
class _Projected:
    """Queries, keys and values ``(batch, heads, sequence, size)``, in whatever form they were given."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


def _project(
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    bias: torch.Tensor | None,
    heads: int,
) -> _Projected:
    if key is None:
        q, k, v = (part.transpose(1, 2) for part in query.unbind(3))
    elif value is None:
        q = _split(query, heads)
        k, v = (part.transpose(1, 2) for part in key.unbind(3))
    elif key.dim() == 4:
        q, k, v = _split(query, heads), key, value
    else:
        q, k, v = _split(query, heads), _split(key, heads), _split(value, heads)
    if bias is not None:
        sizes = [heads * q.shape[3], heads * q.shape[3], heads * v.shape[3]]
        parts = [part.view(heads, 1, -1) for part in bias.split(sizes)]
        q = q + parts[0]
        if key is None or key.dim() != 4:  # keys that are a cache have their bias already
            k, v = k + parts[1], v + parts[2]
    return _Projected(q, k, v)


def _mha_shapes(
    query: torch.Tensor, key: torch.Tensor | None, value: torch.Tensor | None, heads: int
) -> tuple[int, int, int, int, int]:
    """Returns batch, query length, key length, head size and value head size after checking the three
    inputs."""
    if heads <= 0:
        raise invalid(_MHA, "num_heads", heads, "a positive number")
    if key is None:
        if value is not None:
            raise invalid(_MHA, "value", value, "none without key")
        if query.dim() != 5 or query.shape[2] != heads or query.shape[3] != 3:
            raise invalid(_MHA, "query", query, f"(batch, sequence, {heads}, 3, head_size) without key and value")
        return query.shape[0], query.shape[1], query.shape[1], query.shape[4], query.shape[4]
    if query.dim() != 3 or query.shape[2] % heads:
        raise invalid(_MHA, "query", query, f"(batch, sequence, {heads} heads * head_size)")
    batch, length = query.shape[:2]
    size = query.shape[2] // heads
    if value is None:
        if key.dim() != 5 or key.shape[0] != batch or tuple(key.shape[2:]) != (heads, 2, size):
            raise invalid(_MHA, "key", key, f"({batch}, sequence, {heads}, 2, {size}) without value")
        return batch, length, key.shape[1], size, size
    if key.dim() == 4:
        if tuple(key.shape) != (batch, heads, key.shape[2], size):
            raise invalid(_MHA, "key", key, f"({batch}, {heads}, sequence, {size})")
        if value.dim() != 4 or value.shape[:3] != key.shape[:3]:
            raise invalid(_MHA, "value", value, f"({batch}, {heads}, {key.shape[2]}, v_head_size) as key")
        return batch, length, key.shape[2], size, value.shape[3]
    if key.dim() != 3 or key.shape[0] != batch or key.shape[2] != query.shape[2]:
        raise invalid(_MHA, "key", key, f"({batch}, sequence, {query.shape[2]})")
    if value.dim() != 3 or value.shape[:2] != key.shape[:2] or value.shape[2] % heads:
        raise invalid(_MHA, "value", value, f"({batch}, {key.shape[1]}, {heads} heads * v_head_size)")
    return batch, length, key.shape[1], size, value.shape[2] // heads


def _mha_check(
    query: torch.Tensor,
    key: torch.Tensor | None = None,
    value: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    key_padding_mask: torch.Tensor | None = None,
    attention_bias: torch.Tensor | None = None,
    past_key: torch.Tensor | None = None,
    past_value: torch.Tensor | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: bool = False,
    num_outputs: int = 3,
) -> None:
    check_float(_MHA, "query", query)
    batch, length, keys, size, v_size = _mha_shapes(query, key, value, num_heads)
    named = {"key": key, "value": value, "bias": bias, "attention_bias": attention_bias}
    for name, tensor in (named | {"past_key": past_key, "past_value": past_value}).items():
        check_same_dtype(_MHA, name, tensor, "query", query.dtype)
    if size == 0:
        raise invalid(_MHA, "query", query, "a head size that is not zero")
    width = num_heads * (2 * size + v_size)
    if bias is not None and tuple(bias.shape) != (width,):
        raise invalid(_MHA, "bias", bias, f"shape ({width},)")
    if (past_key is None) != (past_value is None):
        raise invalid(_MHA, "past_key, past_value", "given alone", "both or none")
    past = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2] if past_key.dim() == 4 else 0
        for name, tensor, last in (("past_key", past_key, size), ("past_value", past_value, v_size)):
            if tuple(tensor.shape) != (batch, num_heads, past, last):
                raise invalid(_MHA, name, tensor, f"({batch}, {num_heads}, past length, {last})")
    total = past + keys
    if attention_bias is not None and not _broadcasts(attention_bias, (batch, num_heads, length, total)):
        raise invalid(_MHA, "attention_bias", attention_bias, f"({batch} or 1, {num_heads} or 1, {length}, {total})")
    if key_padding_mask is not None:
        shapes = ((batch,), (batch, keys), (batch, total), (batch, length, total))
        if key_padding_mask.dtype != torch.int32 or tuple(key_padding_mask.shape) not in shapes:
            raise invalid(_MHA, "key_padding_mask", key_padding_mask, f"int32 and a shape out of {shapes}")
        if tuple(key_padding_mask.shape) == (batch, keys) and past:
            raise invalid(_MHA, "key_padding_mask", key_padding_mask, f"({batch}, {total}), the past included")
    check_choice(_MHA, "num_outputs", num_outputs, (1, 2, 3))


def _broadcasts(bias: torch.Tensor, shape: tuple[int, int, int, int]) -> bool:
    return (
        bias.dim() == 4
        and bias.shape[0] in (1, shape[0])
        and bias.shape[1] in (1, shape[1])
        and tuple(bias.shape[2:]) == shape[2:]
    )


def _padding_bias(mask: torch.Tensor, total: int, filled: float, dtype: torch.dtype) -> torch.Tensor:
    """Returns the padding mask as a bias that broadcasts to the scores."""
    columns = torch.arange(total, device=mask.device)
    keep = columns < mask.unsqueeze(1) if mask.dim() == 1 else mask != 0
    keep = keep.unsqueeze(1) if keep.dim() == 3 else keep[:, None, None]
    zero = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(keep, zero, torch.full((), filled, dtype=dtype, device=mask.device))


def _to(tensor: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(dtype)


def _mha(attend: Attend) -> Callable[..., Three]:
    def run(
        query: torch.Tensor,
        key: torch.Tensor | None = None,
        value: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        key_padding_mask: torch.Tensor | None = None,
        attention_bias: torch.Tensor | None = None,
        past_key: torch.Tensor | None = None,
        past_value: torch.Tensor | None = None,
        *,
        num_heads: int,
        mask_filter_value: float = -10000.0,
        scale: float = 0.0,
        unidirectional: bool = False,
        num_outputs: int = 3,
    ) -> Three:
        dtype = query.dtype
        if bias is not None:
            # The sums with the bias are not rounded: the whole call is computed in a wide dtype.
            wide = torch.promote_types(dtype, torch.float32)
            query = query.to(wide)
            others = (key, value, bias, attention_bias, past_key, past_value)
            key, value, bias, attention_bias, past_key, past_value = (_to(tensor, wide) for tensor in others)
        parts = _project(query, key, value, bias, num_heads)
        call = _new_call(parts.q, parts.k, parts.v, scale, num_outputs)
        if past_key is not None and past_value is not None:
            call.k = torch.cat((past_key, parts.k), 2)
            call.v = torch.cat((past_value, parts.v), 2)
            call.past_length = past_key.shape[2]
        call.causal = unidirectional
        call.mask = attention_bias
        if key_padding_mask is not None:
            padding = _padding_bias(key_padding_mask, call.k.shape[2], mask_filter_value, query.dtype)
            call.mask = padding if attention_bias is None else padding + attention_bias
        output, present_key, present_value, _ = attend(call)
        return output.to(dtype), present_key.to(dtype), present_value.to(dtype)

    return run


def _mha_fake(
    query: torch.Tensor,
    key: torch.Tensor | None = None,
    value: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    key_padding_mask: torch.Tensor | None = None,
    attention_bias: torch.Tensor | None = None,
    past_key: torch.Tensor | None = None,
    past_value: torch.Tensor | None = None,
    *,
    num_heads: int,
    num_outputs: int = 3,
    **attributes: object,
) -> Three:
    batch, length, keys, size, v_size = _mha_shapes(query, key, value, num_heads)
    total = keys if past_key is None else keys + past_key.shape[2]
    return (
        query.new_empty((batch, length, num_heads * v_size)),
        query.new_empty((batch, num_heads, total, size) if num_outputs > 1 else (0,)),
        query.new_empty((batch, num_heads, total, v_size) if num_outputs > 2 else (0,)),
    )


_MULTI_HEAD_ATTENTION = declare(
    _MHA,
    1,
    "(Tensor query, Tensor? key=None, Tensor? value=None, Tensor? bias=None, Tensor? key_padding_mask=None, "
    "Tensor? attention_bias=None, Tensor? past_key=None, Tensor? past_value=None, *, int num_heads, "
    "float mask_filter_value=-10000.0, float scale=0.0, bool unidirectional=False, int num_outputs=3) "
    "-> (Tensor output, Tensor present_key, Tensor present_value)",
    domain="com.microsoft",
    reference=_mha(attention_reference),
    composite=_mha(attention_composite),
    kernel=_mha(attention_kernel),
    fake=_mha_fake,
    check=_mha_check,
    not_attributes=("num_outputs",),
)


def multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor | None = None,
    value: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    key_padding_mask: torch.Tensor | None = None,
    attention_bias: torch.Tensor | None = None,
    past_key: torch.Tensor | None = None,
    past_value: torch.Tensor | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: bool = False,
    num_outputs: int = 3,
) -> Any:
    """com.microsoft MultiHeadAttention: attention with the bias of the input projection, masks and a past.

    Args:
        query: ``(batch, sequence, num_heads * head_size)``; or with keys and values packed beside it,
            ``(batch, sequence, num_heads, 3, head_size)``. A float dtype.
        key: ``(batch, kv_sequence, num_heads * head_size)``; packed with values
            ``(batch, kv_sequence, num_heads, 2, head_size)``; or a cache ``(batch, num_heads, kv_sequence,
            head_size)``.
        value: ``(batch, kv_sequence, num_heads * v_head_size)``, or a cache as ``key``.
        bias: ``(num_heads * (2 * head_size + v_head_size),)``, added to queries, keys and values.
        key_padding_mask: int32: lengths ``(batch,)``, or zeros for padding ``(batch, total_sequence)`` or
            ``(batch, sequence, total_sequence)``.
        attention_bias: ``(batch or 1, num_heads or 1, sequence, total_sequence)``, added to the scores.
        past_key: ``(batch, num_heads, past_sequence, head_size)``; together with ``past_value``.
        past_value: ``(batch, num_heads, past_sequence, v_head_size)``.
        num_heads: the number of heads.
        mask_filter_value: what the padding mask adds to scores of padding.
        scale: factor of the scores; 0 stands for ``1 / sqrt(head_size)``.
        unidirectional: whether a query may not attend keys behind its own position.
        num_outputs: how many outputs are wanted.

    Returns:
        ``(output, present_key, present_value)``, or the first ``num_outputs`` of them; the output alone for
        1. The output is ``(batch, sequence, num_heads * v_head_size)``, the present ``(batch, num_heads,
        total_sequence, ...)``.

    Raises:
        ValueError: shapes, dtypes or attributes that the operator does not take.

    Source:
        https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MultiHeadAttention
    """
    outputs = _MULTI_HEAD_ATTENTION(
        query,
        key,
        value,
        bias,
        key_padding_mask,
        attention_bias,
        past_key,
        past_value,
        num_heads=num_heads,
        mask_filter_value=mask_filter_value,
        scale=scale,
        unidirectional=bool(unidirectional),
        num_outputs=num_outputs,
    )
    return outputs[0] if num_outputs == 1 else outputs[:num_outputs]


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
    *,
    num_heads: int,
    kv_num_heads: int,
    do_rotary: bool = False,
    local_window_size: int = -1,
    rotary_interleaved: bool = False,
    scale: float = 0.0,
    smooth_softmax: bool = False,
    softcap: float = 0.0,
    num_outputs: int = 3,
) -> None:
    check_float(_GQA, "query", query)
    batch, length, size = _gqa_shapes(query, key, value, num_heads, kv_num_heads)
    named = {"key": key, "value": value, "past_key": past_key, "past_value": past_value, "cos_cache": cos_cache}
    named |= {"sin_cache": sin_cache, "attention_bias": attention_bias, "head_sink": head_sink}
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
    _gqa_check_rotary(cos_cache, sin_cache, position_ids, bool(do_rotary), (batch, length), size)
    shape = (batch, num_heads, length, total_sequence_length)
    if attention_bias is not None and not _broadcasts(attention_bias, shape):
        raise invalid(_GQA, "attention_bias", attention_bias, f"{shape}, 1 in place of the first two allowed")
    if head_sink is not None and tuple(head_sink.shape) != (num_heads,):
        raise invalid(_GQA, "head_sink", head_sink, f"shape ({num_heads},)")
    if local_window_size < -1 or local_window_size == 0:
        raise invalid(_GQA, "local_window_size", local_window_size, "-1 or a positive number")
    if not 0 <= softcap < math.inf:
        raise invalid(_GQA, "softcap", softcap, "a finite number that is not negative")
    check_choice(_GQA, "num_outputs", num_outputs, (1, 2, 3))


def _gqa_check_rotary(
    cos_cache: torch.Tensor | None,
    sin_cache: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    do_rotary: bool,
    rows: tuple[int, int],
    size: int,
) -> None:
    if not do_rotary:
        return
    if cos_cache is None or sin_cache is None:
        raise invalid(_GQA, "cos_cache, sin_cache", None, "both for do_rotary")
    if cos_cache.dim() != 2 or not 0 < cos_cache.shape[1] * 2 <= size:
        raise invalid(_GQA, "cos_cache", cos_cache, f"(positions, at most {size // 2})")
    if sin_cache.shape != cos_cache.shape:
        raise invalid(_GQA, "sin_cache", sin_cache, f"the shape of cos_cache, {tuple(cos_cache.shape)}")
    if position_ids is not None and (position_ids.dtype != torch.int64 or tuple(position_ids.shape) != rows):
        raise invalid(_GQA, "position_ids", position_ids, f"shape {rows} and dtype int64")


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
        *,
        num_heads: int,
        kv_num_heads: int,
        do_rotary: bool = False,
        local_window_size: int = -1,
        rotary_interleaved: bool = False,
        scale: float = 0.0,
        smooth_softmax: bool = False,
        softcap: float = 0.0,
        num_outputs: int = 3,
    ) -> Three:
        if key is None or value is None:
            size = query.shape[2] // (num_heads + 2 * kv_num_heads)
            query, key, value = query.split([num_heads * size, kv_num_heads * size, kv_num_heads * size], 2)
        q, k, v = _split(query, num_heads), _split(key, kv_num_heads), _split(value, kv_num_heads)
        length = q.shape[2]
        # A first prompt starts at 0 in every row, however much of the row is padding.
        start = seqlens_k.to(torch.int64) + 1 - length
        if length == total_sequence_length:
            start = torch.zeros_like(start)
        if do_rotary and cos_cache is not None and sin_cache is not None:
            positions = start.unsqueeze(1) + torch.arange(length, device=q.device)
            positions = positions if position_ids is None else position_ids
            q = _rotate(q, cos_cache, sin_cache, positions, rotary_interleaved)
            k = _rotate(k, cos_cache, sin_cache, positions, rotary_interleaved)
        held = total_sequence_length if past_key is None else max(past_key.shape[2], total_sequence_length)
        present_key = _cache(past_key, k, start, held)
        present_value = _cache(past_value, v, start, held)
        call = _new_call(q, present_key, present_value, scale, 1)
        call.nonpad = start + length
        call.causal = True
        call.left = local_window_size - 1 if local_window_size > 0 else -1
        call.softcap = softcap
        if attention_bias is not None:
            call.mask = torch.nn.functional.pad(attention_bias, (0, held - attention_bias.shape[3]))
        call.sink = head_sink
        if head_sink is None and smooth_softmax:
            call.sink = q.new_zeros(num_heads)
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
    "Tensor? attention_bias=None, Tensor? head_sink=None, *, int num_heads, int kv_num_heads, bool do_rotary=False, "
    "int local_window_size=-1, bool rotary_interleaved=False, float scale=0.0, bool smooth_softmax=False, "
    "float softcap=0.0, int num_outputs=3) -> (Tensor output, Tensor present_key, Tensor present_value)",
    domain="com.microsoft",
    reference=_gqa(attention_reference),
    kernel=_gqa(attention_kernel),
    fake=_gqa_fake,
    check=_gqa_check,
    check_values=_gqa_check_values,
    scalar_inputs={"total_sequence_length": 6},
    not_attributes=("num_outputs",),
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
    *,
    num_heads: int,
    kv_num_heads: int,
    do_rotary: bool = False,
    local_window_size: int = -1,
    rotary_interleaved: bool = False,
    scale: float = 0.0,
    smooth_softmax: bool = False,
    softcap: float = 0.0,
    num_outputs: int = 3,
) -> Any:
    """com.microsoft GroupQueryAttention: causal attention of grouped heads with a cache and rotary embedding.

    Args:
        query: ``(batch, sequence, num_heads * head_size)``, or without key and value all three packed,
            ``(batch, sequence, (num_heads + 2 * kv_num_heads) * head_size)``. A float dtype.
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
        num_heads: the number of query heads, a multiple of ``kv_num_heads``.
        kv_num_heads: the number of key heads.
        do_rotary: whether queries and keys are rotated first.
        local_window_size: how many keys a query attends, its own included; -1 for all.
        rotary_interleaved: whether rotated pairs are neighbours.
        scale: factor of the scores; 0 stands for ``1 / sqrt(head_size)``.
        smooth_softmax: whether a score of zero takes part in each softmax without a value.
        softcap: scores become ``softcap * tanh(scores / softcap)`` if it is positive.
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
    total = total_sequence_length
    outputs = _GROUP_QUERY_ATTENTION(
        query,
        key,
        value,
        past_key,
        past_value,
        seqlens_k,
        int(total) if isinstance(total, torch.Tensor) else total,
        cos_cache,
        sin_cache,
        position_ids,
        attention_bias,
        head_sink,
        num_heads=num_heads,
        kv_num_heads=kv_num_heads,
        do_rotary=bool(do_rotary),
        local_window_size=local_window_size,
        rotary_interleaved=bool(rotary_interleaved),
        scale=scale,
        smooth_softmax=bool(smooth_softmax),
        softcap=softcap,
        num_outputs=num_outputs,
    )
    return outputs[0] if num_outputs == 1 else outputs[:num_outputs]
