"""Linear attention with decay, which ONNX Runtime has an operator for, over texts of any length.

Several recurrences of models are such attention: gated delta rules and selective scans.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["SINCE", "TRANSLATIONS", "attend"]

# The release whose operator was compared with the models.
SINCE = (1, 32)
_DOMAIN = "com.microsoft"


@torch.library.custom_op("onnx_fx_export::linear_attention", mutates_args=())
def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor | None,
    state: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what queries read of a state at each token, and the state after the last one.

    Args:
        query: Queries, scaled (B, T, H, K) or, for all heads, (B, T, 1, K), float32.
        key: Keys, of such a shape.
        value: Values (B, T, H, V).
        decay: Logarithms of what of the state is left at each token (B, T, H), or of each of its rows (B, T, H, K).
        beta: How much of what is new each token writes (B, T, H), by the delta rule
            (https://arxiv.org/abs/2412.06464); without it a token adds its value to what its key reads.
        state: The state before the first token (B, H, K, V), zeros by default.
    """
    batch, length, heads, width = *value.shape[:3], key.shape[3]
    held = value.new_zeros(batch, heads, width, value.shape[3]) if state is None else state.clone()
    left = (decay if decay.dim() > 3 else decay[..., None]).exp()[..., None]
    results = []
    for token in range(length):
        held = held * left[:, token]
        new, at = value[:, token], key[:, token, :, :, None]
        if beta is not None:
            new = (new - (held * at).sum(2)) * beta[:, token, :, None]
        held = held + at * new[:, :, None]
        results.append((held * query[:, token, :, :, None]).sum(2))
    return torch.stack(results, 1), held


@attend.register_fake
def _(query: Any, key: Any, value: Any, decay: Any, beta: Any, state: Any) -> tuple[torch.Tensor, torch.Tensor]:
    batch, _, heads, width = value.shape
    return torch.empty_like(value), value.new_empty(batch, heads, key.shape[3], width)


def _write(op: Any, query: Any, key: Any, value: Any, decay: Any, beta: Any, state: Any) -> Any:
    """Write ``LinearAttention``, whose heads stand side by side."""
    batch, length, heads, width = value.shape
    flat = [op.Reshape(each, [0, 0, -1]) for each in (query, key, value)]
    left = op.Reshape(decay, [0, 0, -1]) if len(decay.shape) > 3 else decay
    attributes = {
        "q_num_heads": int(query.shape[2]), "kv_num_heads": int(heads), "scale": 1.0,
        "update_rule": "gated" if beta is None else "gated_delta",
    }  # fmt: skip
    result, present = op.emit_custom(
        _DOMAIN,
        "LinearAttention",
        [*flat, state, left, *([] if beta is None else [beta])],
        attributes,
        [value.dtype, value.dtype],
        shapes=[[batch, length, int(heads) * int(width)], [batch, heads, key.shape[3], width]],
    )
    return op.Reshape(result, [0, 0, int(heads), int(width)]), present


TRANSLATIONS: dict[Any, Callable[..., Any]] = {attend: _write}
