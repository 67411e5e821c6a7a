"""Weights rounded to integers of four or eight bits, in groups that share a scale."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from onnx_fx_export.generation.requirements import transformers

__all__ = ["BITS", "GroupedLinear", "Quantization", "logits_of", "quantized", "quantized_error"]

BITS = {"int4": 4, "int8": 8}
_BLOCKS = (32, 16)
_COMPARED = 100


@dataclasses.dataclass(frozen=True)
class Quantization:
    """What rounding the weights has changed, beside the model of the given precision.

    Both models read the same random tokens, so that the numbers are about the arithmetic, not about a language.

    Attributes:
        layers: How many linear layers have rounded weights.
        left: Names of the linear layers whose width no group divides; they stay as they are.
        difference: Root mean square of the differences of the logits, as a share of that of the logits.
        same_tokens: Share of the positions at which both models find the same token the most likely.
    """

    layers: int
    left: tuple[str, ...]
    difference: float
    same_tokens: float


class GroupedLinear(torch.nn.Module):
    """A linear layer whose weight is stored as integers, with a scale for each group of columns.

    Args:
        weight: The weight (N, K); K is a multiple of ``block``.
        bias: The bias (N,), or None.
        bits: 4 or 8. The number of the largest magnitude of a group becomes the lowest integer, which has no negation.
        block: How many columns share a scale.
    """

    numbers: torch.Tensor
    scales: torch.Tensor

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, bits: int, block: int) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        lowest = -(1 << bits - 1)
        groups = weight.detach().unflatten(1, (-1, block))
        extreme = groups.gather(-1, groups.abs().argmax(-1, keepdim=True)).float()
        scales = torch.where(extreme == 0, torch.ones_like(extreme), extreme / lowest).to(weight.dtype)
        numbers = (groups / scales).round().clamp(lowest, -lowest - 1).to(torch.int8)
        self.register_buffer("numbers", numbers.flatten(1))
        self.register_buffer("scales", scales.squeeze(-1))
        self.bias = bias
        self._block = block

    @property
    def weight(self) -> torch.Tensor:
        """The weight (N, K) that the integers stand for."""
        groups = self.numbers.unflatten(1, (-1, self._block)).to(self.scales.dtype)
        weight: torch.Tensor = (groups * self.scales.unsqueeze(-1)).flatten(1)
        return weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product (..., N) of ``x`` (..., K) with the weight, and the bias."""
        return torch.nn.functional.linear(x, self.weight, self.bias)


@contextlib.contextmanager
def quantized(model: Any, bits: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Let a model compute with rounded weights; afterwards it is as it was.

    Embeddings stay as they are, also where the head of the model shares their weight. So do weights that are no linear
    layer's, such as those of experts in one tensor.

    Yields:
        How many layers have rounded weights, and the names of the linear layers that have not.
    """
    own: list[tuple[Any, str, torch.nn.Module]] = []
    left = []
    try:
        for path, module in list(model.named_modules()):
            for name, child in list(module.named_children()):
                weight = _matrix(child)
                if weight is None:
                    continue
                block = next((size for size in _BLOCKS if weight.shape[1] % size == 0), None)
                if block is None:
                    left.append(f"{path}.{name}".lstrip("."))
                    continue
                new = GroupedLinear(weight, child.bias, bits, block).train(child.training)
                own.append((module, name, child))
                setattr(module, name, new)
        yield len(own), tuple(left)
    finally:
        for module, name, child in reversed(own):
            setattr(module, name, child)


def _matrix(module: Any) -> torch.Tensor | None:
    """Return the weight (N, K) of a linear layer, or None if the module is none."""
    if type(module) is torch.nn.Linear:
        return module.weight if type(module.weight) is torch.nn.Parameter else None
    if isinstance(module, transformers().pytorch_utils.Conv1D):
        weight: torch.Tensor = module.weight
        return weight.T
    return None


def quantized_error(model: Any, before: torch.Tensor) -> tuple[float, float]:
    """Return how far logits are from those of before: the share of their size, and of equal tokens."""
    after = logits_of(model)
    difference = (after - before).square().mean().sqrt() / before.square().mean().sqrt()
    return float(difference), float((after.argmax(-1) == before.argmax(-1)).float().mean())


def logits_of(model: Any) -> torch.Tensor:
    """Return the logits (tokens, vocabulary) of random tokens, float32."""
    config = model.config.get_text_config()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, config.vocab_size, (1, _COMPARED), generator=generator)
    with torch.no_grad():
        result: torch.Tensor = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
    return result[0].float()
