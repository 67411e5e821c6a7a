"""Random numbers: other numbers than a runtime's, of the same distributions."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxops_decomp.importing.registry import onnx_op
from onnxops_decomp.importing.values import carrier


@onnx_op("RandomUniform")
def random_uniform(shape: list[int], dtype: int = 1, high: float = 1.0, low: float = 0.0, seed: float = 0.0) -> Tensor:
    return torch.rand(shape, dtype=carrier(dtype)) * (high - low) + low


@onnx_op("RandomNormal")
def random_normal(shape: list[int], dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float = 0.0) -> Tensor:
    return torch.randn(shape, dtype=carrier(dtype)) * scale + mean


@onnx_op("RandomUniformLike")
def random_uniform_like(
    input: Tensor, dtype: int | None = None, high: float = 1.0, low: float = 0.0, seed: float = 0.0
) -> Tensor:
    made = torch.rand(input.shape, dtype=input.dtype if dtype is None else carrier(dtype), device=input.device)
    return made * (high - low) + low


@onnx_op("RandomNormalLike")
def random_normal_like(
    input: Tensor, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0, seed: float = 0.0
) -> Tensor:
    made = torch.randn(input.shape, dtype=input.dtype if dtype is None else carrier(dtype), device=input.device)
    return made * scale + mean


@onnx_op("Bernoulli")
def bernoulli(input: Tensor, dtype: int | None = None, seed: float = 0.0) -> Tensor:
    return torch.bernoulli(input).to(input.dtype if dtype is None else carrier(dtype))


@onnx_op("Multinomial")
def multinomial(input: Tensor, dtype: int = 6, sample_size: int = 1, seed: float = 0.0) -> Tensor:
    return torch.multinomial(torch.softmax(input, -1), sample_size, replacement=True).to(carrier(dtype))
