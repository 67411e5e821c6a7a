"""Attention in the opsets before it became an operator."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.builder.forms import adapter
from onnxops_decomp.builder.sizes import Size
from onnxops_decomp.errors import UnsupportedOpsetError
from onnxops_decomp.formulas.attention import attended, causal_mask, grouped, mask_of_all_keys
from onnxops_decomp.formulas.operands import arange
from onnxops_decomp.spec.inference import dims_of, same_dim

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder


def _split_heads(op: OpBuilder, x: ir.Value, heads: int) -> ir.Value:
    """Bring (B, S, H * D) to (B, H, S, D)."""
    return op.Transpose(op.Reshape(x, [0, 0, heads, -1]), perm=[0, 2, 1, 3])


def _both(op: OpBuilder, mask: ir.Value | None, causal: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Join a mask with the causal one, a bool matrix."""
    if mask is None:
        return causal
    if op.dtype(mask) == ir.DataType.BOOL:
        return op.And(mask, causal)
    return op.Where(causal, mask, op.constant(-math.inf, dtype))


@adapter("Attention", below=23)
def attention(
    op: OpBuilder,
    Q: ir.Value,
    K: ir.Value,
    V: ir.Value,
    attn_mask: ir.Value | None = None,
    past_key: ir.Value | None = None,
    past_value: ir.Value | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int = 0,
    q_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    _outputs: int = 1,
) -> ir.Value | tuple[ir.Value, ...]:
    if _outputs > 3 or softmax_precision is not None:
        raise UnsupportedOpsetError(
            "Attention", op.opset, lowest=23, reason="qk_matmul_output and softmax_precision came with the operator"
        )
    flat = op.rank(Q) == 3
    if flat:
        Q = _split_heads(op, Q, q_num_heads)
        K, V = (_split_heads(op, x, kv_num_heads) for x in (K, V))
    past: Size = 0
    if past_key is not None and past_value is not None:
        past = op.size(past_key, 2)
        K, V = op.Concat(past_key, K, axis=2), op.Concat(past_value, V, axis=2)
    mask = attn_mask
    if is_causal:
        visible = causal_mask(op, op.size(Q, 2), op.size(K, 2), past)
        mask = _both(op, mask, visible, op.dtype(Q))
    causal = bool(is_causal) and attn_mask is None
    result = _with_groups(op, Q, K, V, mask, causal=causal, scale=scale, softcap=softcap)
    if flat:
        result = op.Reshape(op.Transpose(result, perm=[0, 2, 1, 3]), [0, 0, -1])
    return result if _outputs == 1 else (result, K, V)[:_outputs]


def _with_groups(
    op: OpBuilder,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    mask: ir.Value | None,
    *,
    causal: bool,
    scale: float | None,
    softcap: float,
) -> ir.Value:
    q, k = dims_of(query), dims_of(key)
    if q is None or k is None or same_dim(q[1], k[1]):
        return attended(op, query, key, value, mask, causal=causal, scale=scale, softcap=softcap)
    sizes = [*op.sizes(query)[:3], op.size(value, 3)]
    operands = grouped(op, query, key, value, mask)
    result = attended(op, *operands, causal=causal, scale=scale, softcap=softcap)
    return op.reshape(result, sizes)


@adapter("Attention", below=24)
def attention_without_lengths(
    op: OpBuilder,
    Q: ir.Value,
    K: ir.Value,
    V: ir.Value,
    attn_mask: ir.Value | None = None,
    past_key: ir.Value | None = None,
    past_value: ir.Value | None = None,
    nonpad_kv_seqlen: ir.Value | None = None,
    *,
    older: OpBuilder,
    is_causal: int = 0,
    _outputs: int = 1,
    **attributes: float,
) -> ir.Value | tuple[ir.Value, ...]:
    mask = attn_mask
    if "left_window_size" in attributes or "right_window_size" in attributes:
        raise UnsupportedOpsetError("Attention", op.opset, lowest=25, reason="a window came with opset 25")
    total = op.size(K, -2 if op.rank(K) == 4 else 1)
    if mask is not None:
        keys = total if past_key is None else op.size_add(total, op.size(past_key, 2))
        mask = mask_of_all_keys(op, mask, keys, has_lengths=nonpad_kv_seqlen is not None)
    if nonpad_kv_seqlen is not None:
        used = op.Unsqueeze(nonpad_kv_seqlen, [1, 2, 3])
        valid = op.Less(arange(op, total), used)
        if is_causal:
            length = op.size(Q, -2 if op.rank(Q) == 4 else 1)
            rows = op.Unsqueeze(arange(op, length), [1])
            offset = op.Sub(used, length)
            valid = op.And(valid, op.LessOrEqual(arange(op, total), op.Add(rows, offset)))
            is_causal = 0
        mask = _both(op, mask, valid, op.dtype(Q))
    inputs = (Q, K, V, mask, past_key, past_value)
    if _outputs == 1:
        return older.Attention(*inputs, is_causal=is_causal, **attributes)
    return older.emit_many("Attention", _outputs, *inputs, is_causal=is_causal, **attributes)
