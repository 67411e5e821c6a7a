"""ONNX Runtime's own operators for layers of experts.

Specified in https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from onnxops_decomp.importing.operators.contrib import DOMAIN
from onnxops_decomp.importing.operators.contrib_quantized import unpacked
from onnxops_decomp.importing.registry import onnx_op

__all__: list[str] = []

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "relu": functional.relu,
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}
_INTERLEAVED = 1


@dataclasses.dataclass(frozen=True)
class _Activation:
    """What stands between the two products of an expert."""

    kind: str
    alpha: float
    beta: float
    limit: float | None
    fusion: int

    def __call__(self, x: Tensor) -> Tensor:
        if self.kind in _ACTIVATIONS:
            return _ACTIVATIONS[self.kind](x)
        if self.kind != "swiglu" or not self.fusion:
            raise NotImplementedError(f"the importer does not support the activation {self.kind!r} of experts")
        gate, up = x.unflatten(-1, (-1, 2)).unbind(-1) if self.fusion == _INTERLEAVED else x.chunk(2, -1)
        if self.limit is not None:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return gate * torch.sigmoid(self.alpha * gate) * (up + self.beta)


def _mixed(
    x: Tensor,
    shares: Tensor,
    first: tuple[Tensor, Tensor | None],
    last: tuple[Tensor, Tensor | None],
    gated: _Activation,
) -> Tensor:
    """Return the sum of what all experts make of tokens (T, H), by the shares (T, E) of each."""
    total = torch.zeros_like(x)
    for expert in range(shares.shape[1]):
        weights = [(weight[expert], None if bias is None else bias[expert]) for weight, bias in (first, last)]
        made = functional.linear(gated(functional.linear(x, *weights[0])), *weights[1])
        total = total + made * shares[:, expert : expert + 1]
    return total


def _shares(scores: Tensor, k: int, weights: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return how much each expert counts (T, E): those with the ``k`` largest scores as ``weights`` says, others 0."""
    top, chosen = torch.topk(scores, k, -1)
    return torch.zeros_like(scores).scatter(1, chosen, weights(top, chosen))


@onnx_op("MoE", domain=DOMAIN)
def experts(
    input: Tensor,
    router_probs: Tensor,
    fc1_experts_weights: Tensor,
    fc1_experts_bias: Tensor | None,
    fc2_experts_weights: Tensor,
    fc2_experts_bias: Tensor | None = None,
    fc3_experts_weights: Tensor | None = None,
    fc3_experts_bias: Tensor | None = None,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    k: int = 1,
    normalize_routing_weights: int = 0,
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    use_sparse_mixer: int = 0,
) -> Tensor:
    if fc3_experts_weights is not None or use_sparse_mixer:
        raise NotImplementedError("a third product and sparse mixers of experts need kernels for GPUs")

    def weights(top: Tensor, chosen: Tensor) -> Tensor:
        return torch.softmax(top, -1) if normalize_routing_weights else torch.softmax(scores, -1).gather(1, chosen)

    scores = router_probs.reshape(-1, router_probs.shape[-1])
    gated = _Activation(activation_type, activation_alpha, activation_beta, swiglu_limit, swiglu_fusion)
    first, last = (fc1_experts_weights, fc1_experts_bias), (fc2_experts_weights, fc2_experts_bias)
    return _mixed(input.flatten(0, -2), _shares(scores, k, weights), first, last, gated).reshape(input.shape)


def _weight(numbers: Tensor, scales: Tensor | None, zero_points: Tensor | None, bits: int) -> Tensor:
    """Return weights (E, N, K) that unsigned integers stand for, by scales of rows or of blocks of them."""
    if scales is None:
        raise NotImplementedError("experts without scales need kernels for GPUs")
    steps = unpacked(numbers, bits).to(scales.dtype)
    scale = scales.reshape(*steps.shape[:2], -1)
    middle = torch.full_like(scale, 2 ** (bits - 1))
    if zero_points is not None:
        middle = unpacked(zero_points.reshape(*steps.shape[:2], -1), bits)[..., : scale.shape[2]].to(scale.dtype)
    blocks = steps.unflatten(2, (scale.shape[2], -1))
    weights: Tensor = ((blocks - middle.unsqueeze(-1)) * scale.unsqueeze(-1)).flatten(2)
    return weights


@onnx_op("QMoE", domain=DOMAIN)
def quantized_experts(
    input: Tensor,
    router_probs: Tensor,
    fc1_experts_weights: Tensor,
    fc1_scales: Tensor | None,
    fc1_experts_bias: Tensor | None,
    fc2_experts_weights: Tensor,
    fc2_scales: Tensor | None = None,
    fc2_experts_bias: Tensor | None = None,
    fc3_experts_weights: Tensor | None = None,
    fc3_scales: Tensor | None = None,
    fc3_experts_bias: Tensor | None = None,
    fc1_zero_points: Tensor | None = None,
    fc2_zero_points: Tensor | None = None,
    fc3_zero_points: Tensor | None = None,
    router_weights: Tensor | None = None,
    accuracy_level: int = 0,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    block_size: int = 0,
    expert_weight_bits: int = 4,
    k: int = 1,
    normalize_routing_weights: int = 0,
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    use_sparse_mixer: int = 0,
    weights_prepacked: int = -1,
) -> Tensor:
    if fc3_experts_weights is not None or use_sparse_mixer:
        raise NotImplementedError("a third product and sparse mixers of experts need kernels for GPUs")

    def weights(top: Tensor, chosen: Tensor) -> Tensor:
        if router_weights is None:  # ONNX Runtime makes the shares of the chosen experts 1 in any case
            return torch.softmax(top, -1)
        given = router_weights.reshape(scores.shape).gather(1, chosen)
        return given / given.sum(-1, keepdim=True) if normalize_routing_weights else given

    scores = router_probs.reshape(-1, router_probs.shape[-1])
    gated = _Activation(activation_type, activation_alpha, activation_beta, swiglu_limit, swiglu_fusion)
    first = _weight(fc1_experts_weights, fc1_scales, fc1_zero_points, expert_weight_bits), fc1_experts_bias
    last = _weight(fc2_experts_weights, fc2_scales, fc2_zero_points, expert_weight_bits), fc2_experts_bias
    return _mixed(input.flatten(0, -2), _shares(scores, k, weights), first, last, gated).reshape(input.shape)
