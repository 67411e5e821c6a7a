"""Selective scans of Mamba as linear attention (https://arxiv.org/abs/2312.00752).

Each channel is a head whose values have one number; all of them have the same queries and keys. Models go over the
tokens in a loop, which no graph has for all lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from onnx_fx_export.generation.operators.linear_attention import attend

__all__ = ["agrees", "by_operator"]


def by_operator(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **_: Any,
) -> Any:
    """Return what the functions of models return, of the arguments that mamba-ssm gave them.

    Args:
        hidden_states: What is read (B, channels, T).
        dt: How far each token moves the state (B, channels, T).
        A: Rates of decay (channels, N).
        B: What a token writes to each number of a state (B, N, T).
        C: How it is read (B, N, T).
        D: How much of what is read is added to the result (channels,).
        z: A gate (B, channels, T).
        delta_bias: What is added to ``dt`` (channels,).
        delta_softplus: Whether ``dt`` goes through softplus.
        return_last_state: Whether the state after the last token (B, channels, N) is returned, too.
    """
    moved = dt if delta_bias is None else dt + delta_bias.to(dt.dtype)[..., None]
    if delta_softplus:
        moved = torch.nn.functional.softplus(moved)
    moved, read = moved.float().transpose(1, 2), hidden_states.float().transpose(1, 2)
    query, key = (each.float().transpose(1, 2)[:, :, None] for each in (C, B))
    found, state = attend(query, key, (moved * read)[..., None], moved[..., None] * A.float(), None, None)
    result = found[..., 0].transpose(1, 2).to(hidden_states.dtype)
    if D is not None:
        result = result + hidden_states * D[None, :, None]
    if z is not None:
        result = result * torch.nn.functional.silu(z)
    return (result, state[..., 0]) if return_last_state else result


@torch.no_grad()
def agrees(function: Callable[..., Any]) -> bool:
    """Tell whether a function computes what the operator does, with all that may be left out and without it."""
    random = torch.Generator().manual_seed(0)
    read, moved, gate = (torch.randn(2, 6, 20, generator=random) for _ in range(3))
    writes, reads = (torch.randn(2, 4, 20, generator=random) for _ in range(2))
    rates, (skip, bias) = -torch.rand(6, 4, generator=random), torch.randn(2, 6, generator=random)
    full = {"D": skip, "z": gate, "delta_bias": bias, "delta_softplus": True}
    for step, given in ((moved, full), (moved.abs(), {})):
        runs = [
            each(read, step, rates, writes, reads, **given, return_last_state=True) for each in (function, by_operator)
        ]
        if not all(torch.allclose(own, other, rtol=1e-3, atol=1e-4) for own, other in zip(*runs, strict=True)):
            return False
    return True
