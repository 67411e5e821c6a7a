"""What the attention operators of the com.microsoft domain share."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from onnxops_core.native.attentions.reference import Outputs, SplitAttention

__all__ = ["Attend", "Three", "broadcasts", "new_call", "split_heads"]

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Attend = Callable[[SplitAttention], Outputs]


def new_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, num_outputs: int) -> SplitAttention:
    """Return a call without mask, bounds or soft cap; a scale of 0 stands for the default."""
    return SplitAttention(
        q=q,
        k=k,
        v=v,
        mask=None,
        past_length=0,
        nonpad=None,
        flat=True,
        causal=False,
        left=-1,
        right=-1,
        scale=scale or 1.0 / math.sqrt(q.shape[3]),
        softcap=0.0,
        precision=None,
        mode=0,
        num_outputs=num_outputs,
    )


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Bring ``(batch, sequence, heads * size)`` to ``(batch, heads, sequence, size)``."""
    result: torch.Tensor = x.unflatten(2, (heads, x.shape[2] // heads)).transpose(1, 2)
    return result


def broadcasts(bias: torch.Tensor, shape: tuple[int, int, int, int]) -> bool:
    """Tell whether a bias has the scores' shape, up to ones for batch and heads."""
    return (
        bias.dim() == 4
        and bias.shape[0] in (1, shape[0])
        and bias.shape[1] in (1, shape[1])
        and tuple(bias.shape[2:]) == shape[2:]
    )
