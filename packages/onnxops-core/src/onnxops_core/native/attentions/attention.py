"""Attention (opsets 23, 24, 25) as a torch operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from onnxops_core._torch_private import is_plain_eager
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
    AttentionCall,
    Outputs,
    attention_composite,
    attention_reference,
    split_heads,
)
from onnxops_core.native.declaring.arguments import flag
from onnxops_core.native.declaring.backends import Backend
from onnxops_core.native.declaring.declare import NativeOp, declare

__all__ = ["attention"]

Result = TypeVar("Result")
Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_INPUTS = "Tensor Q, Tensor K, Tensor V, Tensor? attn_mask=None, Tensor? past_key=None, Tensor? past_value=None"
_ATTRIBUTES = (
    "bool is_causal=False, int kv_num_heads=0, int q_num_heads=0, int qk_matmul_output_mode=0, float? scale=None, "
    "float softcap=0.0, int? softmax_precision=None"
)
_RETURNS = "int num_outputs=4) -> (Tensor Y, Tensor present_key, Tensor present_value, Tensor qk_matmul_output)"


def _run_on_call(implementation: Callable[[AttentionCall], Result]) -> Callable[..., Result]:
    """Gives an implementation the signature of the operator."""

    def run(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        past_key: torch.Tensor | None = None,
        past_value: torch.Tensor | None = None,
        nonpad_kv_seqlen: torch.Tensor | None = None,
        *,
        is_causal: bool = False,
        kv_num_heads: int = 0,
        q_num_heads: int = 0,
        qk_matmul_output_mode: int = 0,
        scale: float | None = None,
        softcap: float = 0.0,
        softmax_precision: int | None = None,
        left_window_size: int = -1,
        right_window_size: int = -1,
        num_outputs: int = 4,
    ) -> Result:
        call = split_heads(
            q,
            k,
            v,
            attn_mask,
            past_key,
            past_value,
            nonpad_kv_seqlen,
            is_causal=is_causal,
            kv_num_heads=kv_num_heads,
            q_num_heads=q_num_heads,
            qk_matmul_output_mode=qk_matmul_output_mode,
            scale=scale,
            softcap=softcap,
            softmax_precision=softmax_precision,
            left=left_window_size,
            right=right_window_size,
            num_outputs=num_outputs,
        )
        return implementation(call)

    return run


def _checker(version: int) -> Callable[..., None]:
    def check(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        past_key: torch.Tensor | None = None,
        past_value: torch.Tensor | None = None,
        nonpad_kv_seqlen: torch.Tensor | None = None,
        *,
        is_causal: bool = False,
        kv_num_heads: int = 0,
        q_num_heads: int = 0,
        qk_matmul_output_mode: int = 0,
        scale: float | None = None,
        softcap: float = 0.0,
        softmax_precision: int | None = None,
        left_window_size: int = -1,
        right_window_size: int = -1,
        num_outputs: int = 4,
    ) -> None:
        check_attention(
            q,
            k,
            v,
            attn_mask,
            past_key,
            past_value,
            nonpad_kv_seqlen,
            kv_num_heads=kv_num_heads,
            q_num_heads=q_num_heads,
            qk_matmul_output_mode=qk_matmul_output_mode,
            scale=scale,
            softcap=softcap,
            softmax_precision=softmax_precision,
            windows=(left_window_size, right_window_size),
            num_outputs=num_outputs,
            strict_heads=version >= 25,
        )

    return check


def _check_values(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    past_key: torch.Tensor | None = None,
    past_value: torch.Tensor | None = None,
    nonpad_kv_seqlen: torch.Tensor | None = None,
    **attributes: object,
) -> None:
    if nonpad_kv_seqlen is not None:
        check_attention_values(k, nonpad_kv_seqlen)


def _fake(call: AttentionCall) -> Outputs:
    batch, heads, length, _ = call.q.shape
    size = call.v.shape[3]
    total = call.k.shape[2]
    y = call.q.new_empty((batch, length, heads * size) if call.flat else (batch, heads, length, size))
    key = call.k.new_empty(call.k.shape if call.num_outputs > 1 else (0,))
    value = call.v.new_empty(call.v.shape if call.num_outputs > 2 else (0,))
    qk = call.q.new_empty((batch, heads, length, total) if call.num_outputs > 3 else (0,))
    return y, key, value, qk


_BACKENDS = (
    Backend("torch's fused attention", _run_on_call(fused_attention_refuses), _run_on_call(fused_attention)),
    Backend("Triton", _run_on_call(triton_attention_refuses), _run_on_call(triton_attention)),
)


def _declare_version(version: int, inputs: str, attributes: str, **options: Any) -> NativeOp:
    return declare(
        "Attention",
        version,
        f"({inputs}, *, {attributes}, {_RETURNS}",
        reference=_run_on_call(attention_reference),
        composite=_run_on_call(attention_composite),
        kernel=_run_on_call(attention_kernel),
        backends=_BACKENDS,
        dispatch=False,
        fake=_run_on_call(_fake),
        check=_checker(version),
        not_attributes=("num_outputs",),
        **options,
    )


_WINDOWS = "int left_window_size=-1, int right_window_size=-1"
_ATTENTION_23 = _declare_version(23, _INPUTS, _ATTRIBUTES)
_ATTENTION_24 = _declare_version(
    24, f"{_INPUTS}, Tensor? nonpad_kv_seqlen=None", _ATTRIBUTES, check_values=_check_values
)
_ATTENTION_25 = _declare_version(
    25, f"{_INPUTS}, Tensor? nonpad_kv_seqlen=None", f"{_ATTRIBUTES}, {_WINDOWS}", check_values=_check_values
)


def _at_once(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    past_key: torch.Tensor | None,
    past_value: torch.Tensor | None,
    nonpad: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> Three | None:
    """Computes Y and the present of a checked 4-D call by one call of fused attention, if that says the same.

    Only what matters in a decoding step and in a plain prompt is recognised; the kernel knows more.
    """
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


_Inputs = tuple[
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor | None,
    torch.Tensor | None,
    torch.Tensor | None,
    torch.Tensor | None,
]


def _quick(
    inputs: _Inputs, is_causal: bool, kv_num_heads: int, q_num_heads: int, mode: int, scale: float | None
) -> Three | None:
    """Computes the common call without the dispatcher and the general kernel; None for any other call.

    At one token the overhead of either is as much as the computation. After a larger computation, every Python
    function has left the processor's caches and costs several times what it does in a loop.
    """
    q, k, v, mask, past_key, past_value, nonpad = inputs
    if torch.compiler.is_compiling() or not is_plain_eager(inputs):
        return None
    heads = {"kv_num_heads": kv_num_heads, "q_num_heads": q_num_heads, "qk_matmul_output_mode": mode, "scale": scale}
    _ATTENTION_24.calls.check(inputs, heads)
    if not q.is_cpu or q.dim() != 4 or q.dtype != v.dtype or scale == 0:
        return None
    return _at_once(q, k, v, mask, past_key, past_value, nonpad, is_causal, scale)


def _check_kinds(softcap: float, left_window_size: int, right_window_size: int, num_outputs: int) -> None:
    """Checks the attributes that are looked at before an operator is chosen, which checks them all."""
    if (type(softcap), type(left_window_size), type(right_window_size), type(num_outputs)) == (float, int, int, int):
        return
    if not torch.compiler.is_compiling():
        given = {"softcap": softcap, "left_window_size": left_window_size, "right_window_size": right_window_size}
        _ATTENTION_25.calls.kinds.check((), given | {"num_outputs": num_outputs})


def attention(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    past_key: torch.Tensor | None = None,
    past_value: torch.Tensor | None = None,
    nonpad_kv_seqlen: torch.Tensor | None = None,
    *,
    is_causal: bool = False,
    kv_num_heads: int = 0,
    q_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    left_window_size: int = -1,
    right_window_size: int = -1,
    num_outputs: int = 4,
) -> Any:
    """ONNX Attention: scaled dot product attention with caches, grouped heads, masks, windows and a soft cap.

    The oldest operator version that has the given arguments is called: opset 25 for windows, 24 for
    ``nonpad_kv_seqlen``, 23 otherwise. A query at position ``p`` (after the past, or the last ``q_sequence``
    of
    ``nonpad_kv_seqlen`` keys) attends, if causal, no key behind ``p``. A query that may attend no key gives
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
    causal = is_causal if is_causal is True or is_causal is False else flag("Attention", "is_causal", is_causal)
    _check_kinds(softcap, left_window_size, right_window_size, num_outputs)
    quick = num_outputs == 1 or (num_outputs == 3 and past_key is not None)
    if quick and softcap == 0 and softmax_precision is None and left_window_size == right_window_size == -1:
        inputs = (Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen)
        found = _quick(inputs, causal, kv_num_heads, q_num_heads, qk_matmul_output_mode, scale)
        if found is not None:
            return found[0] if num_outputs == 1 else found
    op = _ATTENTION_23
    newer: tuple[torch.Tensor | None, ...] = ()
    attributes: dict[str, Any] = {}
    if left_window_size != -1 or right_window_size != -1:
        op = _ATTENTION_25
        newer = (nonpad_kv_seqlen,)
        attributes = {"left_window_size": left_window_size, "right_window_size": right_window_size}
    elif nonpad_kv_seqlen is not None:
        op = _ATTENTION_24
        newer = (nonpad_kv_seqlen,)
    outputs = op(
        Q,
        K,
        V,
        attn_mask,
        past_key,
        past_value,
        *newer,
        is_causal=causal,
        kv_num_heads=kv_num_heads,
        q_num_heads=q_num_heads,
        qk_matmul_output_mode=qk_matmul_output_mode,
        scale=scale,
        softcap=softcap,
        softmax_precision=softmax_precision,
        num_outputs=num_outputs,
        **attributes,
    )
    if num_outputs == 4:
        return outputs
    return outputs[0] if num_outputs == 1 else outputs[:num_outputs]
