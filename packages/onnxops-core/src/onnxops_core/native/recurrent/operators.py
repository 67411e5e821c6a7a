"""LinearAttention and CausalConvWithState (opset 27), the parts of recurrent language models, as torch operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any

import torch

from onnxops_core.native.declaring.call import Call, operator_call, public
from onnxops_core.native.declaring.checks import (
    FLOATS,
    check_choice,
    check_dtype,
    check_finite,
    check_float,
    check_same_dtype,
    invalid,
)
from onnxops_core.native.declaring.declare import declare
from onnxops_core.native.recurrent.chunks import run_chunks

__all__ = ["causal_conv_with_state", "linear_attention"]

_FEW_STEPS = 4
_RULES = ("linear", "gated", "delta", "gated_delta")
Two = tuple[torch.Tensor, torch.Tensor]


def _check_gate(name: str, gate: torch.Tensor | None, needed: bool, rule: str, shapes: tuple[object, ...]) -> None:
    if gate is None or not needed:
        if (gate is not None) != needed:
            raise invalid("LinearAttention", name, gate, f"{'a tensor' if needed else 'none'} for update_rule {rule!r}")
        return
    if tuple(gate.shape) not in shapes:
        raise invalid("LinearAttention", name, gate, f"shape {' or '.join(map(str, shapes))}")


@operator_call
class LinearAttentionCall(Call[Two]):
    """ONNX LinearAttention: attention as a recurrence over a state matrix per head.

    With ``S`` the state, each step does ``S = exp(decay) * S``, then ``S += key (x) value``, where the delta
    rules write ``beta * (value - S^T key)`` in place of the value, and gives ``scale * query^T S``.

    Args:
        query: ``(batch, sequence, q_num_heads * head_size)``; float16, bfloat16 or float32, and beyond ONNX
            float64.
        key: ``(batch, sequence, kv_num_heads * head_size)`` of query's dtype.
        value: ``(batch, sequence, kv_num_heads * v_head_size)`` of query's dtype.
        past_state: ``(batch, kv_num_heads, head_size, v_head_size)``, a float dtype; zeros if None.
        decay: ``(batch, sequence, kv_num_heads)`` or ``(..., kv_num_heads * head_size)``, logarithms; for the
            gated rules.
        beta: ``(batch, sequence, kv_num_heads)`` or ``(..., 1)``; for the delta rules.
        q_num_heads: a multiple of ``kv_num_heads``.
        kv_num_heads: the number of states per batch row.
        update_rule: ``"linear"``, ``"gated"``, ``"delta"`` or ``"gated_delta"``.
        scale: factor of the output; 0 stands for ``1 / sqrt(head_size)``.
        chunk_size: how many steps may be computed at once; without influence on the result but for rounding.

    Returns:
        ``(output, present_state)``: ``(batch, sequence, q_num_heads * v_head_size)`` of query's dtype, and
        the state after the last step in ``past_state``'s dtype, or query's without one. Computed in float32
        at least.

    Raises:
        ValueError: shapes, dtypes, attributes or gates that the specification forbids.

    Source: https://onnx.ai/onnx/operators/onnx__LinearAttention.html
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    past_state: torch.Tensor | None = None
    decay: torch.Tensor | None = None
    beta: torch.Tensor | None = None
    _: KW_ONLY
    q_num_heads: int
    kv_num_heads: int
    update_rule: str = "gated_delta"
    scale: float = 0.0
    chunk_size: int = 64


def _linear_check(call: LinearAttentionCall) -> None:
    query, q_num_heads, kv_num_heads, update_rule = call.query, call.q_num_heads, call.kv_num_heads, call.update_rule
    op = "LinearAttention"
    check_choice(op, "update_rule", update_rule, _RULES)
    if q_num_heads <= 0 or kv_num_heads <= 0 or q_num_heads % kv_num_heads:
        raise invalid(op, "q_num_heads", q_num_heads, f"a positive multiple of kv_num_heads, {kv_num_heads}")
    check_finite(op, "scale", call.scale)
    if call.chunk_size <= 0:
        raise invalid(op, "chunk_size", call.chunk_size, "a positive number")
    check_float(op, "query", query)
    for name, tensor, heads in (
        ("query", query, q_num_heads),
        ("key", call.key, kv_num_heads),
        ("value", call.value, kv_num_heads),
    ):
        check_same_dtype(op, name, tensor, "query", query.dtype)
        if tensor.dim() != 3 or tensor.shape[2] % heads or tensor.shape[:2] != query.shape[:2]:
            raise invalid(op, name, tensor, f"(batch, sequence, {heads} heads * size), batch and sequence as query")
    batch, length = query.shape[:2]
    size, v_size = query.shape[2] // q_num_heads, call.value.shape[2] // kv_num_heads
    if call.key.shape[2] // kv_num_heads != size or size == 0:
        raise invalid(op, "key", call.key, f"{kv_num_heads} heads of query's head size {size}, which is not zero")
    if call.past_state is not None:
        check_dtype(op, "past_state", call.past_state, FLOATS)
        if tuple(call.past_state.shape) != (batch, kv_num_heads, size, v_size):
            raise invalid(op, "past_state", call.past_state, f"shape {(batch, kv_num_heads, size, v_size)}")
    for name, gate in (("decay", call.decay), ("beta", call.beta)):
        check_same_dtype(op, name, gate, "query", query.dtype)
    per_head = (batch, length, kv_num_heads)
    per_feature = (batch, length, kv_num_heads * size)
    _check_gate("decay", call.decay, "gated" in update_rule, update_rule, (per_head, per_feature))
    _check_gate("beta", call.beta, "delta" in update_rule, update_rule, (per_head, (batch, length, 1)))


def _heads(tensor: torch.Tensor, heads: int, dtype: torch.dtype) -> torch.Tensor:
    """Bring ``(batch, sequence, heads * size)`` to ``(batch, heads, sequence, size)``."""
    result: torch.Tensor = tensor.to(dtype).unflatten(2, (heads, tensor.shape[2] // heads)).transpose(1, 2)
    return result


def _steps(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    state: torch.Tensor,
    decay: torch.Tensor | None,
    rate: torch.Tensor | None,
    chunk_size: int,
) -> Two:
    """Run the recurrence step by step; arguments and results are those of :func:`run_chunks`."""
    outputs = []
    for step in range(k.shape[2]):
        if decay is not None:
            state = state * torch.exp(decay[:, :, step]).unsqueeze(-1)
        written = v[:, :, step].unsqueeze(2)
        k_step = k[:, :, step]
        if rate is not None:
            written = rate[:, :, step].unsqueeze(2) * (written - k_step.unsqueeze(2) @ state)
        state = state + k_step.unsqueeze(3) * written
        outputs.append(q[:, :, :, step] @ state)
    return torch.stack(outputs, 3), state


def _steps_or_chunks(q: torch.Tensor, k: torch.Tensor, *args: Any) -> Two:
    # What a chunk prepares pays off from a few steps on.
    return (run_chunks if k.shape[2] > _FEW_STEPS else _steps)(q, k, *args)


def _linear(run: Callable[..., Two]) -> Callable[[LinearAttentionCall], Two]:
    """Make an implementation of the operator of a way to run the recurrence."""

    def attend(call: LinearAttentionCall) -> Two:
        query, kv_num_heads = call.query, call.kv_num_heads
        dtype = torch.promote_types(query.dtype, torch.float32)
        k = _heads(call.key, kv_num_heads, dtype)
        v = _heads(call.value, kv_num_heads, dtype)
        size, v_size = k.shape[3], v.shape[3]
        q = _heads(query, call.q_num_heads, dtype) * (call.scale or size**-0.5)
        # The query heads that share a state are adjacent: (batch, kv_heads, group, sequence, size).
        q = q.unflatten(1, (kv_num_heads, call.q_num_heads // kv_num_heads))
        logarithms = None if call.decay is None else _heads(call.decay, kv_num_heads, dtype)
        rate = None if call.beta is None else call.beta.to(dtype).transpose(1, 2).unsqueeze(-1)
        present_dtype = query.dtype if call.past_state is None else call.past_state.dtype
        if call.past_state is None:
            state = query.new_zeros((query.shape[0], kv_num_heads, size, v_size), dtype=dtype)
        else:
            state = call.past_state.to(dtype)
        if query.shape[1] == 0:
            # With no step the state is the past itself; an operator's output must be new.
            return query.new_empty((query.shape[0], 0, call.q_num_heads * v_size)), state.to(present_dtype, copy=True)
        output, state = run(q, k, v, state, logarithms, rate, call.chunk_size)
        return output.flatten(1, 2).transpose(1, 2).flatten(2).to(query.dtype), state.to(present_dtype)

    return attend


def _linear_fake(call: LinearAttentionCall) -> Two:
    batch, length, hidden = call.query.shape
    size, v_size = hidden // call.q_num_heads, call.value.shape[2] // call.kv_num_heads
    dtype = call.query.dtype if call.past_state is None else call.past_state.dtype
    return (
        call.query.new_empty((batch, length, call.q_num_heads * v_size)),
        call.query.new_empty((batch, call.kv_num_heads, size, v_size), dtype=dtype),
    )


_LINEAR_ATTENTION = declare(
    "LinearAttention",
    27,
    LinearAttentionCall,
    returns=("output", "present_state"),
    reference=_linear(_steps),
    composite=_linear(_steps_or_chunks),
    fake=_linear_fake,
    check=_linear_check,
    extensions=(torch.float64,),
)


linear_attention = public("linear_attention", LinearAttentionCall, _LINEAR_ATTENTION)


@operator_call
class CausalConvWithStateCall(Call[Two]):
    """ONNX CausalConvWithState: a depthwise convolution over the past, with what it needs of the past as a state.

    Args:
        input: ``(batch, channels, length)``; float16, bfloat16 or float32, and beyond ONNX float64.
        weight: ``(channels, 1, k)`` of the input's dtype.
        bias: ``(channels,)`` of the input's dtype.
        past_state: ``(batch, channels, k - 1)``, what came before the input; zeros if None.
        activation: ``"none"``, or ``"silu"`` or ``"swish"`` (the same).

    Returns:
        ``(output, present_state)``: as the input, and the last ``k - 1`` values of past and input joined.

    Raises:
        ValueError: shapes, dtypes or attributes that the specification forbids.

    Source: https://onnx.ai/onnx/operators/onnx__CausalConvWithState.html
    """

    input: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None = None
    past_state: torch.Tensor | None = None
    _: KW_ONLY
    activation: str = "none"


def _conv_check(call: CausalConvWithStateCall) -> None:
    input, weight = call.input, call.weight
    op = "CausalConvWithState"
    check_choice(op, "activation", call.activation, ("none", "silu", "swish"))
    check_float(op, "input", input)
    if input.dim() != 3:
        raise invalid(op, "input", input, "rank 3 (batch, channels, length)")
    batch, channels = input.shape[:2]
    for name, tensor in (("weight", weight), ("bias", call.bias), ("past_state", call.past_state)):
        check_same_dtype(op, name, tensor, "input", input.dtype)
    if weight.dim() != 3 or tuple(weight.shape[:2]) != (channels, 1) or weight.shape[2] == 0:
        raise invalid(op, "weight", weight, f"shape ({channels}, 1, k), k at least 1")
    if call.bias is not None and tuple(call.bias.shape) != (channels,):
        raise invalid(op, "bias", call.bias, f"shape ({channels},)")
    state = (batch, channels, weight.shape[2] - 1)
    if call.past_state is not None and tuple(call.past_state.shape) != state:
        raise invalid(op, "past_state", call.past_state, f"shape {state}")


def _without_steps(input: torch.Tensor, past: torch.Tensor | None, kept: int) -> Two:
    """Return no output, and the past as it was: a sequence of length zero is shorter than any kernel."""
    state = input.new_zeros((*input.shape[:2], kept)) if past is None else past.clone()
    return input.clone(), state.contiguous()


def _join(past: torch.Tensor | None, new: torch.Tensor, kept: int) -> torch.Tensor:
    return torch.nn.functional.pad(new, (kept, 0)) if past is None else torch.cat((past, new), 2)


def _conv_reference(call: CausalConvWithStateCall) -> Two:
    input = call.input
    kept = call.weight.shape[2] - 1
    if input.shape[2] == 0:
        return _without_steps(input, call.past_state, kept)
    joined = _join(call.past_state, input, kept)
    dtype = torch.promote_types(input.dtype, torch.float32)
    windows = joined.to(dtype).unfold(2, call.weight.shape[2], 1)
    output = (windows * call.weight.to(dtype).transpose(0, 1).unsqueeze(2)).sum(-1)
    if call.bias is not None:
        output = output + call.bias.unsqueeze(1)
    if call.activation != "none":
        output = output * torch.sigmoid(output)
    present = joined[:, :, joined.shape[2] - kept :]
    return output.to(input.dtype), present.clone(memory_format=torch.contiguous_format)


def _conv_composite(call: CausalConvWithStateCall) -> Two:
    input = call.input
    kept = call.weight.shape[2] - 1
    if input.shape[2] == 0:
        return _without_steps(input, call.past_state, kept)
    joined = _join(call.past_state, input, kept)
    dtype = torch.promote_types(input.dtype, torch.float32)
    output = torch.nn.functional.conv1d(
        joined.to(dtype),
        call.weight.to(dtype),
        None if call.bias is None else call.bias.to(dtype),
        groups=input.shape[1],
    )
    if call.activation != "none":
        output = torch.nn.functional.silu(output)
    present = joined[:, :, joined.shape[2] - kept :]
    return output.to(input.dtype), present.clone(memory_format=torch.contiguous_format)


def _conv_fake(call: CausalConvWithStateCall) -> Two:
    x = call.input
    return x.new_empty(x.shape), x.new_empty((*x.shape[:2], call.weight.shape[2] - 1))


_CAUSAL_CONV = declare(
    "CausalConvWithState",
    27,
    CausalConvWithStateCall,
    returns=("output", "present_state"),
    reference=_conv_reference,
    composite=_conv_composite,
    fake=_conv_fake,
    check=_conv_check,
    extensions=(torch.float64,),
)


causal_conv_with_state = public("causal_conv_with_state", CausalConvWithStateCall, _CAUSAL_CONV)
