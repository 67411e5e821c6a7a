"""Steps of optimizers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from onnxops_decomp.importing.registry import onnx_op

_DOMAIN = "ai.onnx.preview.training"


def _each(inputs: tuple[Tensor, ...], kinds: int, step: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Apply a step to each tensor; inputs and outputs stand kind by kind: all weights, all gradients, ..."""
    count = len(inputs) // kinds
    made = [step(*inputs[place::count]) for place in range(count)]
    return tuple(value for kind in zip(*made, strict=True) for value in kind)


@onnx_op("Adagrad", domain=_DOMAIN)
def adagrad(
    R: Tensor,
    T: Tensor,
    *inputs: Tensor,
    decay_factor: float = 0.0,
    epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
) -> tuple[Tensor, ...]:
    rate = R / (1 + T * decay_factor)

    def step(x: Tensor, gradient: Tensor, squares: Tensor) -> tuple[Tensor, ...]:
        gradient = norm_coefficient * x + gradient
        squares = squares + gradient * gradient
        return x - rate * gradient / (torch.sqrt(squares) + epsilon), squares

    return _each(inputs, 3, step)


@onnx_op("Adam", domain=_DOMAIN)
def adam(
    R: Tensor,
    T: Tensor,
    *inputs: Tensor,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Tensor, ...]:
    # What is not chosen has to be finite, too: its derivative is multiplied by zero.
    steps = torch.clamp(T, min=1)
    corrected = R * torch.sqrt(1 - beta**steps) / (1 - alpha**steps)
    rate = torch.where(T > 0, corrected, R).to(R.dtype)

    def step(x: Tensor, gradient: Tensor, mean: Tensor, squares: Tensor) -> tuple[Tensor, ...]:
        gradient = norm_coefficient * x + gradient
        mean = alpha * mean + (1 - alpha) * gradient
        squares = beta * squares + (1 - beta) * gradient * gradient
        new = x - rate * mean / (torch.sqrt(squares) + epsilon)
        return (1 - norm_coefficient_post) * new, mean, squares

    return _each(inputs, 4, step)


@onnx_op("Momentum", domain=_DOMAIN)
def momentum(
    R: Tensor, T: Tensor, *inputs: Tensor, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> tuple[Tensor, ...]:
    def step(x: Tensor, gradient: Tensor, velocity: Tensor) -> tuple[Tensor, ...]:
        gradient = norm_coefficient * x + gradient
        velocity = alpha * velocity + torch.where(T > 0, beta, 1.0) * gradient
        new = gradient + alpha * velocity if mode == "nesterov" else velocity
        return x - R * new, velocity

    return _each(inputs, 3, step)
