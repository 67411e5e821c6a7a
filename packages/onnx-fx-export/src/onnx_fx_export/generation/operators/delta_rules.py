"""Linear attention by the gated delta rule, which ONNX Runtime has an operator for, over texts of any length.

Models divide a text into chunks, in a loop over their number, which no graph has for all lengths. The operator computes
what the rule says token by token (https://arxiv.org/abs/2412.06464).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from onnx_fx_export.generation.operators.functions import has_operators, modules_with
from onnxops_core.exporting import replaced

__all__ = ["TRANSLATIONS", "by_operator", "delta_rules_as_operators", "has_delta_rules"]

# Modules of transformers call it by this name, with the arguments that flash-linear-attention gave it.
_NAME = "torch_chunk_gated_delta_rule"
# The release whose operator was compared with the models.
_SINCE = (1, 32)
_DOMAIN = "com.microsoft"


@torch.library.custom_op("onnx_fx_export::gated_delta_rule", mutates_args=())
def _rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what queries read of a state at each token, and the state after the last one.

    Args:
        query: Queries, scaled (B, T, H, K), float32.
        key: Keys (B, T, H, K).
        value: Values (B, T, H, V).
        decay: Logarithms of what of the state is left at each token (B, T, H).
        beta: How much of what is new each token writes (B, T, H).
        state: The state before the first token (B, H, K, V), zeros by default.
    """
    batch, length, heads, width = key.shape
    held = value.new_zeros(batch, heads, width, value.shape[3]) if state is None else state.clone()
    results = []
    for token in range(length):
        held = held * decay[:, token].exp()[..., None, None]
        known = torch.einsum("bhkv,bhk->bhv", held, key[:, token])
        new = (value[:, token] - known) * beta[:, token, :, None]
        held = held + torch.einsum("bhk,bhv->bhkv", key[:, token], new)
        results.append(torch.einsum("bhkv,bhk->bhv", held, query[:, token]))
    return torch.stack(results, 1), held


@_rule.register_fake
def _(query: Any, key: Any, value: Any, decay: Any, beta: Any, state: Any) -> tuple[torch.Tensor, torch.Tensor]:
    batch, _, heads, width = key.shape
    return torch.empty_like(value), value.new_empty(batch, heads, width, value.shape[3])


def _write(op: Any, query: Any, key: Any, value: Any, decay: Any, beta: Any, state: Any) -> Any:
    """Write ``LinearAttention``, whose heads stand side by side."""
    batch, length, heads, width = value.shape
    flat = [op.Reshape(each, [0, 0, -1]) for each in (query, key, value)]
    attributes = {
        "q_num_heads": int(heads), "kv_num_heads": int(heads), "scale": 1.0, "update_rule": "gated_delta",
    }  # fmt: skip
    result, present = op.emit_custom(
        _DOMAIN,
        "LinearAttention",
        [*flat, state, decay, beta],
        attributes,
        [value.dtype, value.dtype],
        shapes=[[batch, length, int(heads) * int(width)], [batch, heads, key.shape[3], width]],
    )
    return op.Reshape(result, [0, 0, int(heads), int(width)]), present


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
    """Return what the function of the models returns, of the same arguments."""
    shared = value.shape[2] // key.shape[2]
    numbers = [each.float() for each in (query, key)]
    if shared > 1:
        numbers = [each.repeat_interleave(shared, 2) for each in numbers]
    if use_qk_l2norm_in_kernel:
        numbers = [each * torch.rsqrt(each.square().sum(-1, keepdim=True) + 1e-6) for each in numbers]
    state = None if initial_state is None else initial_state.float()
    scaled = numbers[0] * key.shape[-1] ** -0.5
    result, present = _rule(scaled, numbers[1], value.float(), g.float(), beta.float(), state)
    return result.to(query.dtype), present if output_final_state else None


def has_delta_rules(model: torch.nn.Module) -> bool:
    """Tell whether layers of a model compute a gated delta rule that an operator of ONNX Runtime stands for."""
    return has_operators(_NAME, model, _agree, _SINCE)


@torch.no_grad()
def _agree(function: Callable[..., Any]) -> bool:
    """Tell whether a function computes what the operator does, with a state before it and without one."""
    random = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, 70, 2, 8, generator=random) for _ in range(2))
    value, decay, beta = torch.randn(2, 70, 4, 6, generator=random), *torch.rand(2, 2, 70, 4, generator=random)
    state = torch.randn(2, 4, 8, 6, generator=random)
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


@contextlib.contextmanager
def delta_rules_as_operators(model: torch.nn.Module) -> Iterator[None]:
    """Let layers compute gated delta rules by the operator, where that is what they compute; undo it afterwards."""
    modules = modules_with(_NAME, model) if has_delta_rules(model) else []
    with replaced([(module, _NAME, by_operator) for module in modules]):
        yield


TRANSLATIONS: dict[Any, Callable[..., Any]] = {_rule: _write}
