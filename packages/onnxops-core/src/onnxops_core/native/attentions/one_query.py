"""Attention of one query per head, as in a decoding step on the CPU."""

from __future__ import annotations

import torch

from onnxops_core.native.c_kernels import library as _cpu

__all__ = ["attend_one_query"]


def attend_one_query(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, total: int, scale: float | None
) -> torch.Tensor:
    """Attention of one query per head over the first keys.

    Args:
        q: ``(batch, heads, 1, size)``.
        k: ``(batch, kv_heads, total or more, size)``, heads a multiple of kv_heads.
        v: ``(batch, kv_heads, total or more, v_size)``.
        total: how many keys are attended.
        scale: factor of the scores; ``1 / sqrt(size)`` by default.
    """
    y = _cpu.attend_one_query(q, k, v, total, scale)
    if y is not None:
        return y
    if total != k.shape[2]:
        k, v = k[:, :, :total], v[:, :, :total]
    batch, heads, _, size = q.shape
    kv_heads = k.shape[1]
    if heads == kv_heads:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale)
    # The heads of a group are as good as further queries, and share the reading of keys and values.
    queries = q.reshape(batch, kv_heads, heads // kv_heads, size)
    y = torch.nn.functional.scaled_dot_product_attention(queries, k, v, scale=scale)
    return y.reshape(batch, heads, 1, v.shape[3])
