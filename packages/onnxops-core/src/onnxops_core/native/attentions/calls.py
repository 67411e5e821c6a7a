"""The parameters of Attention."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any

import torch

from onnxops_core.native.declaring.call import Call, operator_call

__all__ = ["AttentionCall"]


@operator_call
class AttentionCall(Call[Any]):
    """ONNX Attention: scaled dot product attention with caches, grouped heads, masks, windows and a soft cap.

    The oldest operator version that has the given arguments is called: opset 25 for windows, 24 for
    ``nonpad_kv_seqlen``, 23 otherwise. A query at position ``p`` (after the past, or the last ``q_sequence``
    of ``nonpad_kv_seqlen`` keys) attends, if causal, no key behind ``p``. A query that may attend no key gives
    zeros.

    Args:
        Q: ``(batch, q_num_heads, q_sequence, head_size)`` or ``(batch, q_sequence, q_num_heads *
            head_size)``; float16, bfloat16, float32 or float64.
        K: ``(batch, kv_num_heads, kv_sequence, head_size)``, or 3-D as Q.
        V: ``(batch, kv_num_heads, kv_sequence, v_head_size)``, or 3-D as Q.
        attn_mask: broadcastable to ``(batch, q_num_heads, q_sequence, total_sequence)``, the last dimension
            may be shorter (the rest is masked); boolean, True to attend, or of Q's dtype, added to the
            scores.
        past_key: ``(batch, kv_num_heads, past_sequence, head_size)``; together with ``past_value``.
        past_value: ``(batch, kv_num_heads, past_sequence, v_head_size)``.
        nonpad_kv_seqlen: ``(batch,)`` int64, how many keys of each batch row are valid; not together with a
            past.
        is_causal: whether a query may not attend keys behind its own position.
        kv_num_heads: the number of key heads; required for 3-D inputs.
        q_num_heads: the number of query heads, a multiple of ``kv_num_heads``; required for 3-D inputs.
        qk_matmul_output_mode: what the fourth output holds: 0 the scaled scores, 1 those after the soft cap,
            2 those after the masks, 3 the probabilities.
        scale: factor of the scores; ``1 / sqrt(head_size)`` by default.
        softcap: scores become ``softcap * tanh(scores / softcap)`` if it is positive.
        softmax_precision: the ONNX dtype integer (1, 10, 11, 16) in which the softmax is computed.
        left_window_size: how many keys before its position a query attends; -1 for all.
        right_window_size: how many keys behind its position a query attends; -1 for all.
        num_outputs: how many outputs are wanted. With up to 3 no score matrix is kept.

    Returns:
        ``(Y, present_key, present_value, qk_matmul_output)``, or the first ``num_outputs`` of them; Y alone
        for 1. Y has Q's rank and dtype, the present has the past joined with K and V, the fourth output is
        ``(batch, q_num_heads, q_sequence, total_sequence)``.

    Raises:
        ValueError: shapes, dtypes or attributes that the specification forbids.

    Source: https://onnx.ai/onnx/operators/onnx__Attention.html
    """

    Q: torch.Tensor
    K: torch.Tensor
    V: torch.Tensor
    attn_mask: torch.Tensor | None = None
    past_key: torch.Tensor | None = None
    past_value: torch.Tensor | None = None
    nonpad_kv_seqlen: torch.Tensor | None = None
    _: KW_ONLY
    is_causal: bool = False
    kv_num_heads: int = 0
    q_num_heads: int = 0
    qk_matmul_output_mode: int = 0
    scale: float | None = None
    softcap: float = 0.0
    softmax_precision: int | None = None
    left_window_size: int = -1
    right_window_size: int = -1
    num_outputs: int = 4
