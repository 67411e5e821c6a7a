"""MultiHeadAttention of the com.microsoft domain as a torch operator."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any

import torch

from onnxops_core.native.attentions.contrib import Attend, Three, broadcasts, new_call, split_heads
from onnxops_core.native.attentions.kernel import attention_kernel
from onnxops_core.native.attentions.reference import SplitAttention, attention_composite, attention_reference
from onnxops_core.native.declaring.call import Call, operator_call, public
from onnxops_core.native.declaring.checks import (
    check_choice,
    check_float,
    check_not_negative,
    check_same_dtype,
    invalid,
)
from onnxops_core.native.declaring.declare import declare

__all__ = ["multi_head_attention"]

_MHA = "MultiHeadAttention"


@operator_call
class MultiHeadAttentionCall(Call[Any]):
    """com.microsoft MultiHeadAttention: attention with the bias of the input projection, masks and a past.

    Args:
        query: ``(batch, sequence, num_heads * head_size)``; or with keys and values packed beside it,
            ``(batch, sequence, num_heads, 3, head_size)``. float16, bfloat16 or float32, and beyond ONNX Runtime
            float64.
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
        past_sequence_length: of a cache with room for more; must be None.
        cache_indirection: of beams that share a cache; must be None.
        num_heads: the number of heads.
        mask_filter_value: what the padding mask adds to scores of padding.
        scale: factor of the scores; 0 stands for ``1 / sqrt(head_size)``.
        unidirectional: whether a query may not attend keys behind its own position; then there are no more new
            keys than queries.
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

    query: torch.Tensor
    key: torch.Tensor | None = None
    value: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    key_padding_mask: torch.Tensor | None = None
    attention_bias: torch.Tensor | None = None
    past_key: torch.Tensor | None = None
    past_value: torch.Tensor | None = None
    past_sequence_length: torch.Tensor | None = None
    cache_indirection: torch.Tensor | None = None
    _: KW_ONLY
    num_heads: int
    mask_filter_value: float = -10000.0
    scale: float = 0.0
    unidirectional: bool = False
    num_outputs: int = 3


def _split(call: MultiHeadAttentionCall) -> SplitAttention:
    """Split the heads of queries, keys and values, in whatever form they were given, and add their bias."""
    query, key, value, bias, heads = call.query, call.key, call.value, call.bias, call.num_heads
    if key is None:
        q, k, v = (part.transpose(1, 2) for part in query.unbind(3))
    elif value is None:
        q = split_heads(query, heads)
        k, v = (part.transpose(1, 2) for part in key.unbind(3))
    elif key.dim() == 4:
        q, k, v = split_heads(query, heads), key, value
    else:
        q, k, v = split_heads(query, heads), split_heads(key, heads), split_heads(value, heads)
    if bias is not None:
        sizes = [heads * q.shape[3], heads * q.shape[3], heads * v.shape[3]]
        parts = [part.view(heads, 1, -1) for part in bias.split(sizes)]
        q = q + parts[0]
        if key is None or key.dim() != 4:  # keys that are a cache have their bias already
            k, v = k + parts[1], v + parts[2]
    return new_call(q, k, v, call.scale, call.num_outputs)


def _mha_shapes(call: MultiHeadAttentionCall) -> tuple[int, int, int, int, int]:
    """Return batch, query length, key length, head size and value head size after checking the three inputs."""
    query, key, value, heads = call.query, call.key, call.value, call.num_heads
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


def _mha_check(call: MultiHeadAttentionCall) -> None:
    key_padding_mask, past_key, past_value = call.key_padding_mask, call.past_key, call.past_value
    bias, num_heads = call.attention_bias, call.num_heads
    check_float(_MHA, "query", call.query)
    batch, length, keys, size, v_size = _mha_shapes(call)
    for name in ("key", "value", "bias", "attention_bias", "past_key", "past_value"):
        check_same_dtype(_MHA, name, getattr(call, name), "query", call.query.dtype)
    if size == 0:
        raise invalid(_MHA, "query", call.query, "a head size that is not zero")
    width = num_heads * (2 * size + v_size)
    if call.bias is not None and tuple(call.bias.shape) != (width,):
        raise invalid(_MHA, "bias", call.bias, f"shape ({width},)")
    if (past_key is None) != (past_value is None):
        raise invalid(_MHA, "past_key, past_value", "given alone", "both or none")
    past = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2] if past_key.dim() == 4 else 0
        for name, tensor, last in (("past_key", past_key, size), ("past_value", past_value, v_size)):
            if tuple(tensor.shape) != (batch, num_heads, past, last):
                raise invalid(_MHA, name, tensor, f"({batch}, {num_heads}, past length, {last})")
    total = past + keys
    if bias is not None and not broadcasts(bias, (batch, num_heads, length, total)):
        raise invalid(_MHA, "attention_bias", bias, f"({batch} or 1, {num_heads} or 1, {length}, {total})")
    if key_padding_mask is not None:
        shapes = ((batch,), (batch, keys), (batch, total), (batch, length, total))
        if key_padding_mask.dtype != torch.int32 or tuple(key_padding_mask.shape) not in shapes:
            raise invalid(_MHA, "key_padding_mask", key_padding_mask, f"int32 and a shape out of {shapes}")
        if tuple(key_padding_mask.shape) == (batch, keys) and past:
            raise invalid(_MHA, "key_padding_mask", key_padding_mask, f"({batch}, {total}), the past included")
    for name in ("past_sequence_length", "cache_indirection"):
        if getattr(call, name) is not None:
            raise invalid(
                _MHA, name, getattr(call, name), "None: the past is as long as past_key, and beams do not share it"
            )
    if call.unidirectional and keys > length:
        # Which of them stand before a query is not said, and runtimes differ.
        raise invalid(_MHA, "unidirectional", True, f"no more new keys ({keys}) than queries ({length}); use past_key")
    check_not_negative(_MHA, "scale", call.scale)
    if not call.mask_filter_value < math.inf:
        raise invalid(_MHA, "mask_filter_value", call.mask_filter_value, "a number below infinity")
    check_choice(_MHA, "num_outputs", call.num_outputs, (1, 2, 3))


def _padding_bias(mask: torch.Tensor, total: int, filled: float, dtype: torch.dtype) -> torch.Tensor:
    """Return the padding mask as a bias that broadcasts to the scores."""
    columns = torch.arange(total, device=mask.device)
    keep = columns < mask.unsqueeze(1) if mask.dim() == 1 else mask != 0
    keep = keep.unsqueeze(1) if keep.dim() == 3 else keep[:, None, None]
    zero = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(keep, zero, torch.full((), filled, dtype=dtype, device=mask.device))


def _widened(call: MultiHeadAttentionCall) -> MultiHeadAttentionCall:
    """Sum with the bias are not rounded: a call with one is computed in a wide dtype as a whole."""
    if call.bias is None:
        return call
    wide = torch.promote_types(call.query.dtype, torch.float32)
    others = ("key", "value", "bias", "attention_bias", "past_key", "past_value")
    given = {name: getattr(call, name) for name in others}
    widened = {name: tensor.to(wide) for name, tensor in given.items() if tensor is not None}
    return dataclasses.replace(call, query=call.query.to(wide), **widened)


def _mha(attend: Attend) -> Callable[[MultiHeadAttentionCall], Three]:
    def run(given: MultiHeadAttentionCall) -> Three:
        dtype, call = given.query.dtype, _widened(given)
        split = _split(call)
        if call.past_key is not None and call.past_value is not None:
            split.k = torch.cat((call.past_key, split.k), 2)
            split.v = torch.cat((call.past_value, split.v), 2)
            split.past_length = call.past_key.shape[2]
        split.causal = call.unidirectional
        split.mask = call.attention_bias
        if call.key_padding_mask is not None:
            padding = _padding_bias(call.key_padding_mask, split.k.shape[2], call.mask_filter_value, call.query.dtype)
            split.mask = padding if call.attention_bias is None else padding + call.attention_bias
        output, present_key, present_value, _ = attend(split)
        return output.to(dtype), present_key.to(dtype), present_value.to(dtype)

    return run


def _mha_fake(call: MultiHeadAttentionCall) -> Three:
    batch, length, keys, size, v_size = _mha_shapes(call)
    total = keys if call.past_key is None else keys + call.past_key.shape[2]
    return (
        call.query.new_empty((batch, length, call.num_heads * v_size)),
        call.query.new_empty((batch, call.num_heads, total, size) if call.num_outputs > 1 else (0,)),
        call.query.new_empty((batch, call.num_heads, total, v_size) if call.num_outputs > 2 else (0,)),
    )


_MULTI_HEAD_ATTENTION = declare(
    _MHA,
    1,
    MultiHeadAttentionCall,
    returns=("output", "present_key", "present_value"),
    domain="com.microsoft",
    reference=_mha(attention_reference),
    composite=_mha(attention_composite),
    kernel=_mha(attention_kernel),
    fake=_mha_fake,
    check=_mha_check,
    not_attributes=("num_outputs",),
    extensions=(torch.float64,),
)


multi_head_attention = public("multi_head_attention", MultiHeadAttentionCall, _MULTI_HEAD_ATTENTION)
