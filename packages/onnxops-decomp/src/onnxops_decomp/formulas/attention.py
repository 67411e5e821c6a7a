"""Attention, composed of products and Softmax."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.builder.sizes import Size
from onnxops_decomp.formulas.operands import arange
from onnxops_decomp.formulas.products import written_product
from onnxops_decomp.spec.inference import dims_of, same_dim

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = [
    "attended",
    "causal_mask",
    "grouped",
    "mask_of_all_keys",
    "mask_of_all_queries",
    "masked",
    "scaled_query",
]


def causal_mask(op: OpBuilder, length: Size, total: Size, past: Size = 0) -> ir.Value:
    """Return a bool matrix (length, total): may query i see key j, that is ``j <= i + past``."""
    rows = arange(op, length)
    if not isinstance(past, int) or past:
        rows = op.Add(rows, past)
    return op.LessOrEqual(arange(op, total), op.Unsqueeze(rows, [1]))


def scaled_query(op: OpBuilder, query: ir.Value, scale: float | None) -> ir.Value:
    """Return ``scale * query``; the scale is 1 / sqrt(E) if left out."""
    if scale is not None:
        return query if scale == 1.0 else op.Mul(query, scale)
    width = op.size(query, -1)
    if isinstance(width, int):
        return op.Mul(query, 1.0 / math.sqrt(width)) if width else query
    return op.Div(query, op.Sqrt(op.cast(width, op.dtype(query))))


def _bias(op: OpBuilder, mask: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return what a bool or additive mask adds to scores, which the layers of a model share."""
    if op.dtype(mask) != ir.DataType.BOOL:
        return mask
    return op.Where(mask, op.constant(0.0, dtype), op.constant(-math.inf, dtype))


def masked(op: OpBuilder, scores: ir.Value, mask: ir.Value | None, *, causal: bool = False) -> ir.Value:
    """Apply a bool or additive mask to scores.

    A mask is added, as torch does: beside that, choosing between scores and -inf by a mask that broadcasts over heads
    takes several times as long.

    Args:
        op: Builder in the newest dialect.
        scores: (..., L, S).
        mask: Bool (true = may see) or additive, broadcastable to (..., L, S).
        causal: Whether this is the causal mask alone. Fused kernels of torch write -inf over what it hides, whatever
            stands there, so that an overflow or a NaN is gone.
    """
    if mask is None:
        return scores
    dtype = op.dtype(scores)
    if causal and op.minds_nan(scores):
        return op.Where(mask, scores, op.constant(-math.inf, dtype))
    if causal and dtype == ir.DataType.FLOAT16:
        return op.Min(scores, op.Where(mask, op.constant(math.inf, dtype), op.constant(-math.inf, dtype)))
    return op.Add(scores, _bias(op, mask, dtype))


def _without_empty_rows(op: OpBuilder, result: ir.Value, mask: ir.Value | None) -> ir.Value:
    """Give a query that may see no key zeros, where softmax has NaN.

    That is a property of the mask alone, and there are fewer results than weights.
    """
    if mask is None:
        return result
    dtype = op.dtype(result)
    bias = _bias(op, mask, dtype)
    empty = op.Equal(op.ReduceMax(bias, [-1]), op.constant(-math.inf, op.dtype(bias)))
    return op.Where(empty, op.constant(0.0, dtype), result)


def attended(
    op: OpBuilder,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    mask: ir.Value | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
) -> ir.Value:
    """Write softmax(scale * Q K^T) V from single operators; batch dimensions broadcast.

    Args:
        op: Builder in the newest dialect.
        query: (..., L, E).
        key: (..., S, E).
        value: (..., S, Ev).
        mask: Bool (true = may see) or additive, broadcastable to (..., L, S).
        causal: Whether this is the causal mask alone, by which each query sees some key.
        scale: Factor of the products; 1 / sqrt(E) if left out.
        softcap: Bound of the products, applied by tanh before the mask; 0 for none.
        dropout_p: Probability of dropping a weight.
    """
    rank = op.rank(key)
    turned = op.Transpose(key, perm=[*range(rank - 2), rank - 1, rank - 2])
    scores = written_product(op, scaled_query(op, query, scale), turned)
    if softcap:
        scores = op.Mul(op.Tanh(op.Div(scores, softcap)), softcap)
    weights = op.Softmax(masked(op, scores, mask, causal=causal), axis=-1)
    if dropout_p > 0:
        weights = op.Dropout(weights, dropout_p, True)
    result = op.MatMul(weights, value)
    return result if causal else _without_empty_rows(op, result, mask)


def grouped(
    op: OpBuilder, query: ir.Value, key: ir.Value, value: ir.Value, mask: ir.Value | None
) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value | None]:
    """Give query (B, H, L, E) and key (B, G, S, E) a common axis of groups, over which MatMul broadcasts."""
    batch, heads, length, width = op.sizes(query)
    groups = op.size(key, 1)
    query = op.reshape(query, [batch, groups, op.size_floordiv(heads, groups), length, width])
    if mask is not None and op.rank(mask) >= 3:
        sizes = op.sizes(mask)
        if op.rank(mask) == 3 or (isinstance(sizes[-3], int) and sizes[-3] == 1):
            mask = op.Unsqueeze(mask, [op.rank(mask) - 2])
        else:
            mask = op.reshape(mask, [sizes[0], groups, op.size_floordiv(heads, groups), *sizes[2:]])
    return query, op.Unsqueeze(key, [2]), op.Unsqueeze(value, [2]), mask


def mask_of_all_keys(op: OpBuilder, mask: ir.Value, total: Size, *, has_lengths: bool) -> ir.Value:
    """Return a mask with an entry for each key: since opset 24 what lies beyond a shorter one is masked.

    Sizes known only at run time are compared where padded caches are used, for which shorter masks are meant.
    """
    have = op.size(mask, -1)
    known = isinstance(have, int) and isinstance(total, int)
    if have == total or same_dim(op.dim(have), op.dim(total)) or not (known or has_lengths):
        return mask
    missing = op.size_max(op.size_sub(total, have), 0)
    dtype = op.dtype(mask)
    beyond = op.constant(False if dtype == ir.DataType.BOOL else -math.inf, dtype)
    return op.Pad(mask, op.vector([0, missing]), beyond, [op.rank(mask) - 1])


def mask_of_all_queries(op: OpBuilder, mask: ir.Value, length: Size) -> ir.Value:
    """Return a mask with a row for each query."""
    dims = dims_of(mask)
    if dims is None or len(dims) < 2 or dims[-2] != 1 or length == 1:
        return mask
    return op.expand(mask, [*op.sizes(mask)[:-2], length, op.size(mask, -1)])
