"""LinearAttention in chunks: a few matrix products inside each, and only the state goes from one to the next.

Written out, a state ``S_t = exp(g_t) S_(t-1) + k_t (x) u_t`` that starts a chunk as ``S`` gives at its step ``t``::

    q_t^T S_t = (q_t exp(G_t))^T S + sum_(j <= t) (q_t . k_j exp(g_(j+1) + ... + g_t)) u_j

with ``G_t = g_1 + ... + g_t``. The delta rules write ``u_t = b_t (v_t - k_t^T exp(g_t) S_(t-1))``: the same
expression for the keys, so that all ``u`` of a chunk solve one triangular system (Yang et al. 2024,
https://arxiv.org/abs/2412.06464; decay per feature as in https://arxiv.org/abs/2312.06635).
"""

from __future__ import annotations

import math

import torch

__all__ = ["run_chunks"]

# A decay per feature makes a chunk's decays a cube, (chunk, chunk, head_size).
_LARGEST_CHUNK = 64
_LARGEST_CHUNK_PER_FEATURE = 8


def run_chunks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    state: torch.Tensor,
    decay: torch.Tensor | None,
    rate: torch.Tensor | None,
    chunk_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the recurrence over all steps; at least one.

    Args:
        q: ``(batch, heads, group, sequence, size)``, scaled.
        k: ``(batch, heads, sequence, size)``.
        v: ``(batch, heads, sequence, v_size)``.
        state: ``(batch, heads, size, v_size)``.
        decay: logarithms, ``(batch, heads, sequence, size or 1)``, or None.
        rate: of the delta rules, ``(batch, heads or 1, sequence, 1)``, or None.
        chunk_size: how many steps at most are computed at once.

    Returns:
        The outputs ``(batch, heads, group, sequence, v_size)`` and the last state.
    """
    per_feature = decay is not None and decay.shape[3] > 1
    chunk = min(chunk_size, _LARGEST_CHUNK_PER_FEATURE if per_feature else _LARGEST_CHUNK)
    outputs = []
    for start in range(0, k.shape[2], chunk):
        steps = slice(start, start + chunk)
        output, state = _run_chunk(
            q[:, :, :, steps],
            k[:, :, steps],
            v[:, :, steps],
            state,
            None if decay is None else decay[:, :, steps],
            None if rate is None else rate[:, :, steps],
        )
        outputs.append(output)
    return torch.cat(outputs, 3), state


def _run_chunk(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    state: torch.Tensor,
    decay: torch.Tensor | None,
    rate: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    length = k.shape[2]
    kept, since_start = _decays(decay, length)
    past_keys = torch.ones(length, length, dtype=torch.bool, device=k.device).tril()
    written = v
    if rate is not None:
        known = _products(k, k, kept) * rate
        start = rate * (v - _scaled(k, since_start) @ state)
        # The diagonal is taken as ones, and what stands above it is not read.
        written = torch.linalg.solve_triangular(known, start, upper=False, unitriangular=True)
    scores = _products(q, k.unsqueeze(2), None if kept is None else kept.unsqueeze(2))
    scores = scores.masked_fill(~past_keys, 0.0)
    output = _scaled(q, None if since_start is None else since_start.unsqueeze(2)) @ state.unsqueeze(2)
    output = output + scores @ written.unsqueeze(2)
    keys = k if kept is None else k * kept[:, :, -1]
    if since_start is not None:
        state = state * since_start[:, :, -1].unsqueeze(-1)
    return output, state + keys.transpose(2, 3) @ written


def _decays(decay: torch.Tensor | None, length: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return what is kept at step t of what step j wrote, and of the state at the start.

    Their shapes are ``(batch, heads, t, j, size or 1)`` and ``(batch, heads, t, size or 1)``.

    The sums of logarithms between two steps are added up one by one: a difference of sums from the start would
    lose digits, and be no number after a decay to nothing.
    """
    if decay is None:
        return None, None
    later = torch.ones(length, length, dtype=torch.bool, device=decay.device).tril(-1).unsqueeze(-1)
    between = decay.unsqueeze(3).masked_fill(~later, 0.0).cumsum(2)
    at_or_before = torch.ones(length, length, dtype=torch.bool, device=decay.device).tril().unsqueeze(-1)
    return between.masked_fill(~at_or_before, -math.inf).exp(), decay.cumsum(2).exp()


def _products(left: torch.Tensor, right: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
    """Return the inner products of all rows, ``(..., t, j)``, each feature weighed by what is kept of it."""
    if kept is None:
        return left @ right.transpose(-2, -1)
    if kept.shape[-1] == 1:
        return left @ right.transpose(-2, -1) * kept.squeeze(-1)
    weighed: torch.Tensor = (right.unsqueeze(-3) * kept) @ left.unsqueeze(-1)
    return weighed.squeeze(-1)


def _scaled(tensor: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor:
    return tensor if factor is None else tensor * factor
