"""Scaled dot product attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.errors import LoweringError
from onnxops_decomp.formulas.attention import attended, causal_mask, grouped, masked, scaled_query
from onnxops_decomp.formulas.products import written_product
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.passes.matching import producer
from onnxops_decomp.spec.inference import dims_of, same_dim

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

aten = torch.ops.aten


def _four_dims(op: OpBuilder, *tensors: ir.Value) -> list[ir.Value] | None:
    """Return the tensors with exactly two batch dimensions, or None where broadcasting stands in the way."""
    ranks = {op.rank(tensor) for tensor in tensors}
    if len(ranks) != 1:
        return None
    rank = ranks.pop()
    if rank == 4:
        return list(tensors)
    if rank == 3:
        return [op.Unsqueeze(tensor, [1]) for tensor in tensors]
    if rank == 2:
        return [op.Unsqueeze(tensor, [0, 1]) for tensor in tensors]
    return None


def _same_batch(query: ir.Value, key: ir.Value, value: ir.Value, *, enable_gqa: bool) -> bool:
    """Tell whether batch and head dimensions fit as ONNX Attention wants them, which does not broadcast."""
    q, k, v = dims_of(query), dims_of(key), dims_of(value)
    assert q is not None
    assert k is not None
    assert v is not None
    heads = enable_gqa or same_dim(q[1], k[1])
    return same_dim(q[0], k[0]) and same_dim(k[0], v[0]) and heads and same_dim(k[1], v[1])


def _whole_mask(op: OpBuilder, mask: ir.Value, query: ir.Value, key: ir.Value) -> ir.Value:
    """Expand the last two dimensions of a mask to the sizes of query and key; the batch ones may broadcast."""
    length, total = op.size(query, -2), op.size(key, -2)
    while op.rank(mask) < 2:
        mask = op.Unsqueeze(mask, [0])
    lead: list[Size] = [-1] * (op.rank(mask) - 2)
    return op.expand(mask, [*lead, length, total])


def _mask_for(op: OpBuilder, mask: ir.Value, rank: int, query: ir.Value, key: ir.Value) -> ir.Value:
    """Return a mask in the dtype and rank that ONNX Attention takes for operands that had ``rank`` dimensions."""
    whole = _whole_mask(op, mask, query, key)
    if rank == 3 and op.rank(whole) == 3:
        whole = op.Unsqueeze(whole, [1])
    return whole if op.dtype(whole) == ir.DataType.BOOL else op.cast(whole, op.dtype(query))


@lowering(aten.scaled_dot_product_attention.default)
def scaled_dot_product_attention(
    op: OpBuilder,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    attn_mask: ir.Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> ir.Value:
    if attn_mask is not None and is_causal:
        raise LoweringError("scaled_dot_product_attention takes attn_mask or is_causal, not both.")
    if attn_mask is not None and _hides_nothing(op, attn_mask) and _adds_no_batch(query, attn_mask):
        attn_mask = None
    operands = _four_dims(op, query, key, value)
    fits = operands is not None and _same_batch(*operands, enable_gqa=enable_gqa)
    if dropout_p > 0 or operands is None or not fits or _is_empty(query, key, value):
        return _composed(op, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    q, k, v = operands
    rank = op.rank(query)
    mask = None if attn_mask is None else _mask_for(op, attn_mask, rank, q, k)
    result = op.Attention(q, k, v, mask, is_causal=int(is_causal), scale=scale)
    return result if rank == 4 else op.Squeeze(result, [1] if rank == 3 else [0, 1])


def _hides_nothing(op: OpBuilder, mask: ir.Value) -> bool:
    """Tell whether a mask is known to let each query see all keys, as models without padding make one."""
    spread = producer(mask, "Expand")
    known = op.static(mask if spread is None else spread.inputs[0])
    if known is None:
        return False
    return bool(known.all()) if op.dtype(mask) == ir.DataType.BOOL else not known.any()


def _adds_no_batch(query: ir.Value, mask: ir.Value) -> bool:
    """Tell whether the dimensions of a mask before its last two are known to be 1, or those of the query."""
    queries, masks = dims_of(query), dims_of(mask)
    if queries is None or masks is None or len(masks) > len(queries):
        return False
    pairs = zip(masks[-3::-1], queries[-3::-1], strict=False)
    return all(size == 1 or same_dim(size, other) for size, other in pairs)


def _is_empty(*tensors: ir.Value) -> bool:
    return any(isinstance(dim, int) and dim == 0 for tensor in tensors for dim in dims_of(tensor) or ())


def _composed(
    op: OpBuilder,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    attn_mask: ir.Value | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> ir.Value:
    """Write attention from single operators: with dropout, or over batch dimensions that broadcast."""
    mask = attn_mask
    if is_causal:
        mask = causal_mask(op, op.size(query, -2), op.size(key, -2))
    elif mask is not None and op.dtype(mask) != ir.DataType.BOOL:
        mask = op.cast(mask, op.dtype(query))
    if not enable_gqa:
        return attended(op, query, key, value, mask, causal=is_causal, scale=scale, dropout_p=dropout_p)
    heads, *shared = (op.size(each, -3) for each in (query, key, value))
    alike = same_dim(op.dim(shared[0]), op.dim(shared[1]))
    if alike and same_dim(op.dim(heads), op.dim(shared[0])):
        return attended(op, query, key, value, mask, causal=is_causal, scale=scale, dropout_p=dropout_p)
    if op.rank(query) != 4 or op.rank(key) != 4 or op.rank(value) != 4:
        raise LoweringError("Attention with enable_gqa needs operands of shape (batch, heads, length, width).")
    if not alike:
        # Keys and values may be shared by different numbers of heads.
        key, value = (_of_each_head(op, each, heads) for each in (key, value))
        return attended(op, query, key, value, mask, causal=is_causal, scale=scale, dropout_p=dropout_p)
    sizes = [*op.sizes(query)[:3], op.size(value, 3)]
    grouped_operands = grouped(op, query, key, value, mask)
    result = attended(op, *grouped_operands, causal=is_causal, scale=scale, dropout_p=dropout_p)
    return op.reshape(result, sizes)


def _of_each_head(op: OpBuilder, shared: ir.Value, heads: Size) -> ir.Value:
    """Repeat keys or values (B, G, S, E) for the heads that share them: (B, H, S, E)."""
    batch, groups, length, width = op.sizes(shared)
    spread = op.expand(op.Unsqueeze(shared, [2]), [batch, groups, op.size_floordiv(heads, groups), length, width])
    return op.reshape(spread, [batch, heads, length, width])


@lowering(aten._scaled_dot_product_flash_attention_for_cpu.default)
def flash_attention_for_cpu(
    op: OpBuilder,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: ir.Value | None = None,
    scale: float | None = None,
) -> tuple[ir.Value, ir.Value]:
    gqa = not same_dim(op.dim(op.size(query, 1)), op.dim(op.size(key, 1)))
    output = scaled_dot_product_attention(
        op, query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=gqa
    )
    return output, _log_sum_exp(op, query, key, attn_mask, is_causal, scale)


def _log_sum_exp(
    op: OpBuilder, query: ir.Value, key: ir.Value, mask: ir.Value | None, is_causal: bool, scale: float | None
) -> ir.Value:
    """Return the logarithm of the softmax's denominator, (B, H, L), which only training needs."""
    scores = written_product(op, scaled_query(op, query, scale), op.Transpose(key, perm=[0, 1, 3, 2]))
    if is_causal:
        mask = causal_mask(op, op.size(query, -2), op.size(key, -2))
    return op.ReduceLogSumExp(masked(op, scores, mask, causal=is_causal), [-1], keepdims=0)
