"""Gated delta rules as linear attention (https://arxiv.org/abs/2412.06464).

Models divide a text into chunks, in a loop over their number, which no graph has for all lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from onnx_fx_export.generation.operators.linear_attention import attend

__all__ = ["agrees", "agrees_by_rows", "by_operator"]


def by_operator(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    chunk_size: int = 64,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return what the functions of models return, of the arguments that flash-linear-attention gave them.

    Args:
        query: Queries (B, T, H, K).
        key: Keys (B, T, H, K).
        value: Values (B, T, H or a multiple of it, V).
        g: Logarithms of what of the state is left (B, T, heads of values), or of each of its rows (..., K).
        beta: How much of what is new each token writes (B, T, heads of values).
        chunk_size: Of how many tokens the models make a chunk.
        initial_state: The state before the first token.
        output_final_state: Whether the state after the last one is returned.
        use_qk_l2norm_in_kernel: Whether queries and keys become vectors of length 1.
    """
    shared = value.shape[2] // key.shape[2]
    numbers = [each.float() for each in (query, key)]
    if shared > 1:
        numbers = [each.repeat_interleave(shared, 2) for each in numbers]
    if use_qk_l2norm_in_kernel:
        numbers = [each * torch.rsqrt(each.square().sum(-1, keepdim=True) + 1e-6) for each in numbers]
    state = None if initial_state is None else initial_state.float()
    scaled = numbers[0] * key.shape[-1] ** -0.5
    result, present = attend(scaled, numbers[1], value.float(), g.float(), beta.float(), state)
    return result.to(query.dtype), present if output_final_state else None


def agrees(function: Callable[..., Any]) -> bool:
    """Tell whether a function computes what the operator does, with values of more heads than keys have."""
    return _agree(function, 4, ())


def agrees_by_rows(function: Callable[..., Any]) -> bool:
    """Tell whether a function computes what the operator does where each row of a state has a decay of its own."""
    return _agree(function, 2, (8,))


@torch.no_grad()
def _agree(function: Callable[..., Any], heads: int, rows: tuple[int, ...]) -> bool:
    """Compare, with a state before the text and without one."""
    random = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, 70, 2, 8, generator=random) for _ in range(2))
    value, beta = torch.randn(2, 70, heads, 6, generator=random), torch.rand(2, 70, heads, generator=random)
    decay, state = torch.rand(2, 70, heads, *rows, generator=random), torch.randn(2, heads, 8, 6, generator=random)
    for before in (None, state):
        runs = [
            each(
                query, key, value, g=-decay, beta=beta, initial_state=before, output_final_state=True,
                use_qk_l2norm_in_kernel=True,
            )
            for each in (function, by_operator)
        ]  # fmt: skip
        if not all(torch.allclose(own, other, rtol=1e-3, atol=1e-4) for own, other in zip(*runs, strict=True)):
            return False
    return True
