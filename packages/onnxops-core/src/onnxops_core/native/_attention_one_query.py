"""Attention of one query per head, as in a decoding step on the CPU: products with all keys and all values."""

from __future__ import annotations

import torch

from onnxops_core.native import _cpu

__all__ = ["attend_one_query"]

# With fewer elements of keys, fused attention is faster: it is one call.
_LEAST = 1 << 17
_NOTHING = {dtype: torch.empty((), dtype=dtype) for dtype in (torch.float32, torch.float64)}


def attend_one_query(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None) -> torch.Tensor | None:
    """Attention of one query per head over all keys, or None where fused attention is faster.

    Args:
        q: ``(batch, heads, 1, size)``.
        k: ``(batch, kv_heads, total, size)``, heads a multiple of kv_heads.
        v: ``(batch, kv_heads, total, v_size)``.
        scale: factor of the scores; ``1 / sqrt(size)`` by default.
    """
    batch, heads, length, size = q.shape
    if length != 1:
        return None
    y = _cpu.attend_one_query(q, k, v, scale)
    if y is not None or not q.is_contiguous():
        return y
    kv_heads = k.shape[1]
    # The heads of a group are as good as further queries, and share the reading of keys and values.
    queries = q.view(batch, kv_heads, heads // kv_heads, size)
    joined = _join(k) and _join(v)
    if not joined or k.numel() < _LEAST or q.dtype not in _NOTHING:
        if heads == kv_heads:
            return None
        y = torch.nn.functional.scaled_dot_product_attention(queries, k, v, scale=scale)
        return y.reshape(batch, heads, 1, v.shape[3])
    factor = size**-0.5 if scale is None else scale
    scores = torch.baddbmm(
        _NOTHING[q.dtype], queries.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), beta=0, alpha=factor
    )
    return torch.bmm(torch.softmax(scores, -1), v.flatten(0, 1)).view(batch, heads, 1, v.shape[3])


def _join(x: torch.Tensor) -> bool:
    """Whether batch and heads are one dimension of a view."""
    return x.stride(0) == x.shape[1] * x.stride(1)
