"""FlexAttention (ai.onnx.preview, version 1) as a torch operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY

import torch

from onnxops_core._torch_private import without_autocast
from onnxops_core.dtypes import torch_dtype
from onnxops_core.native.declaring.call import Call, operator_call
from onnxops_core.native.declaring.checks import check_choice, check_float, check_same_dtype, invalid
from onnxops_core.native.declaring.declare import declare

__all__ = ["flex_attention"]

_OP = "FlexAttention"
Modifier = Callable[[torch.Tensor], torch.Tensor]


@operator_call
class FlexAttentionCall(Call[torch.Tensor]):
    """The parameters of FlexAttention; its modifiers are none of the operator."""

    Q: torch.Tensor
    K: torch.Tensor
    V: torch.Tensor
    _: KW_ONLY
    scale: float | None = None
    softmax_precision: int | None = None


def _check(call: FlexAttentionCall) -> None:
    q, k = call.Q, call.K
    check_float(_OP, "Q", q)
    for name, tensor in (("Q", q), ("K", k), ("V", call.V)):
        check_same_dtype(_OP, name, tensor, "Q", q.dtype)
        if tensor.dim() != 4:
            raise invalid(_OP, name, tensor, "rank 4 (batch, heads, sequence, head_size)")
    if k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3] or q.shape[3] == 0:
        raise invalid(_OP, "K", k, f"batch {q.shape[0]} and head size {q.shape[3]} as Q, not zero")
    if call.V.shape[:3] != k.shape[:3]:
        raise invalid(_OP, "V", call.V, f"batch, heads and sequence of K, {tuple(k.shape[:3])}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise invalid(_OP, "Q", q, f"a number of heads divisible by the {k.shape[1]} heads of K")
    if call.scale is not None and not 0 <= call.scale < math.inf:
        raise invalid(_OP, "scale", call.scale, "a finite number that is not negative (its square root is used)")
    if call.softmax_precision is not None:
        check_choice(_OP, "softmax_precision", call.softmax_precision, (1, 10, 11, 16))


def _modified(modifier: Modifier | None, name: str, tensor: torch.Tensor) -> torch.Tensor:
    if modifier is None:
        return tensor
    result = modifier(tensor)
    if result.shape != tensor.shape or result.dtype != tensor.dtype:
        raise invalid(_OP, f"the result of {name}", result, f"shape {tuple(tensor.shape)} and dtype {tensor.dtype}")
    return result


def _attend(
    call: FlexAttentionCall, score_mod: Modifier | None = None, prob_mod: Modifier | None = None
) -> torch.Tensor:
    q, k, v, scale = call.Q, call.K, call.V, call.scale
    wide = torch.promote_types(q.dtype, torch.float32)
    precision = wide if call.softmax_precision is None else torch_dtype(call.softmax_precision)
    group = q.shape[1] // k.shape[1]
    root = math.sqrt(1.0 / math.sqrt(q.shape[3]) if scale is None else scale)
    k = k.repeat_interleave(group, 1) if group != 1 else k
    v = v.repeat_interleave(group, 1) if group != 1 else v
    scores = (q.to(wide) * root) @ (k.to(wide) * root).transpose(2, 3)
    scores = _modified(score_mod, "score_mod", scores.to(precision))
    probabilities = _modified(prob_mod, "prob_mod", torch.softmax(scores, -1))
    common = torch.promote_types(precision, wide)
    return (probabilities.to(common) @ v.to(common)).to(q.dtype)


def _kernel(call: FlexAttentionCall) -> torch.Tensor:
    if call.softmax_precision not in (None, 1) or call.Q.dtype == torch.float64:
        return _attend(call).contiguous()
    y = torch.nn.functional.scaled_dot_product_attention(
        call.Q, call.K, call.V, scale=call.scale, enable_gqa=bool(call.Q.shape[1] != call.K.shape[1])
    )
    return y.contiguous()


def _fake(call: FlexAttentionCall) -> torch.Tensor:
    return call.Q.new_empty((*call.Q.shape[:3], call.V.shape[3]))


_FLEX_ATTENTION = declare(
    _OP,
    1,
    FlexAttentionCall,
    domain="ai.onnx.preview",
    reference=_attend,
    kernel=_kernel,
    fake=_fake,
    check=_check,
)


def flex_attention(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    *,
    score_mod: Modifier | None = None,
    prob_mod: Modifier | None = None,
    scale: float | None = None,
    softmax_precision: int | None = None,
) -> torch.Tensor:
    """ONNX FlexAttention (preview): attention with functions applied to the scores and the probabilities.

    With a modifier the call is made of plain torch operators, which is what exporters then see; without one
    it is the operator ``torch.ops.onnxops.FlexAttention.opset1``.

    Args:
        Q: ``(batch, q_num_heads, q_sequence, head_size)``; float16, bfloat16, float32 or float64.
        K: ``(batch, kv_num_heads, kv_sequence, head_size)`` of Q's dtype.
        V: ``(batch, kv_num_heads, kv_sequence, v_head_size)`` of Q's dtype.
        score_mod: maps all scores ``(batch, q_num_heads, q_sequence, kv_sequence)`` to new ones, same shape
            and dtype.
        prob_mod: the same for the probabilities.
        scale: factor of the scores; ``1 / sqrt(head_size)`` by default.
        softmax_precision: the ONNX dtype integer (1, 10, 11, 16) of scores and probabilities; float32 at
            least by default.

    Returns:
        ``(batch, q_num_heads, q_sequence, v_head_size)`` of Q's dtype.

    Raises:
        ValueError: shapes, dtypes or attributes that the specification forbids, a modifier that changes shape
            or dtype.

    Source: https://onnx.ai/onnx/operators/onnx_aionnxpreview_FlexAttention.html
    """
    call = FlexAttentionCall(Q, K, V, scale=scale, softmax_precision=softmax_precision)
    if score_mod is not None or prob_mod is not None:
        _check(call)
        return without_autocast(lambda q: _attend(call, score_mod, prob_mod))(Q)
    result: torch.Tensor = _FLEX_ATTENTION.compute(call)
    return result
