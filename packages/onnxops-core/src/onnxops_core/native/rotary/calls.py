"""The parameters of RotaryEmbedding."""

from __future__ import annotations

from dataclasses import KW_ONLY

import torch

from onnxops_core.native.declaring.call import Call, operator_call

__all__ = ["RotaryEmbeddingCall"]


@operator_call
class RotaryEmbeddingCall(Call[torch.Tensor]):
    """ONNX RotaryEmbedding: rotates pairs of features by an angle that depends on the position.

    Args:
        X: ``(batch, num_heads, sequence, head_size)`` or ``(batch, sequence, num_heads * head_size)``;
            float16, bfloat16 or float32, and beyond ONNX float64; the head size is even.
        cos_cache: cosines, of X's dtype: ``(positions, dim / 2)`` with ``position_ids``, else
            ``(batch, sequence, dim / 2)``, where ``dim`` is ``rotary_embedding_dim`` or the head size.
        sin_cache: sines, as ``cos_cache``.
        position_ids: ``(batch, sequence)`` int64, rows of the caches.
        interleaved: pairs are neighbours (0, 1), (2, 3) ... rather than (0, dim / 2), (1, dim / 2 + 1) ...
        num_heads: the number of heads; required for a 3-D X.
        rotary_embedding_dim: how many of the first features of a head are rotated; 0 for all.

    Returns:
        The rotated tensor, of X's shape and dtype. float16 and bfloat16 are rounded once.

    Raises:
        ValueError: shapes, dtypes, attributes or positions that the specification forbids.

    Source: https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html
    """

    X: torch.Tensor
    cos_cache: torch.Tensor
    sin_cache: torch.Tensor
    position_ids: torch.Tensor | None = None
    _: KW_ONLY
    interleaved: bool = False
    num_heads: int = 0
    rotary_embedding_dim: int = 0
