"""Models that compute with rounded weights."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from onnx_fx_export.generation.adapters import lora_layers
from onnx_fx_export.generation.experts import hold_experts, rounded_experts
from onnx_fx_export.generation.groups import GroupedLinear, group_size, matrix_of

__all__ = ["BITS", "Quantization", "quantized", "quantized_error"]

BITS = {"int4": 4, "int8": 8}


@dataclasses.dataclass(frozen=True)
class Quantization:
    """What rounding the weights has changed, beside the model of the given precision.

    Both models read the same random tokens, so that the numbers are about the arithmetic, not about a language.

    Attributes:
        layers: How many linear layers and layers of experts have rounded weights.
        left: Names of those whose width no group divides, and of experts that no operator of the runtime stands for;
            they stay as they are.
        difference: Root mean square of the differences of the logits, as a share of that of the logits; None if the
            models were not run.
        same_tokens: Share of the positions at which both models find the same token the most likely; None likewise.
    """

    layers: int
    left: tuple[str, ...]
    difference: float | None
    same_tokens: float | None


@contextlib.contextmanager
def quantized(model: Any, bits: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Let a model compute with rounded weights; afterwards it is as it was.

    Embeddings stay as they are, also where the head of the model shares their weight. So do LoRA adapters.

    Yields:
        How many layers have rounded weights, and the names of the linear layers and layers of experts that have not.
    """
    own: list[tuple[Any, str, torch.nn.Module]] = []
    left = []
    factors = {
        id(part)
        for layer in lora_layers(model).values()
        for factor in (layer.lora_A, layer.lora_B)
        for part in factor.values()
    }
    try:
        for path, module in list(model.named_modules()):
            for name, child in list(module.named_children()):
                if id(child) in factors or (matrix_of(child) is None and not hold_experts(child)):
                    continue
                new = _rounded(child, bits)
                if new is None:
                    left.append(f"{path}.{name}".lstrip("."))
                    continue
                own.append((module, name, child))
                setattr(module, name, new.train(child.training))
        yield len(own), tuple(left)
    finally:
        for module, name, child in reversed(own):
            setattr(module, name, child)


def _rounded(module: Any, bits: int) -> torch.nn.Module | None:
    """Return a linear layer or a layer of experts with rounded weights, or None if they cannot be rounded."""
    weight = matrix_of(module)
    if weight is None:
        return rounded_experts(module, bits)
    size = group_size(weight.shape[1])
    return None if size is None else GroupedLinear(weight, module.bias, bits, size)


def quantized_error(before: torch.Tensor, after: torch.Tensor) -> tuple[float, float]:
    """Return how far logits (T, vocabulary) are from others: the share of their size, and of equal tokens."""
    difference = (after - before).square().mean().sqrt() / before.square().mean().sqrt()
    return float(difference), float((after.argmax(-1) == before.argmax(-1)).float().mean())
