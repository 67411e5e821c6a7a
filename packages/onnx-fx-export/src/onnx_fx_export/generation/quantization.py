"""Weights rounded to integers of four or eight bits, in groups that share a scale."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from onnx_fx_export.generation.requirements import transformers
from onnxops_core import matmul_nbits
from onnxops_decomp.exporting import RowConversion, converted_rows

__all__ = ["BITS", "GroupedLinear", "Quantization", "matrix_of", "quantized", "quantized_error"]

BITS = {"int4": 4, "int8": 8}
_BLOCKS = (32, 16)


@dataclasses.dataclass(frozen=True)
class Quantization:
    """What rounding the weights has changed, beside the model of the given precision.

    Both models read the same random tokens, so that the numbers are about the arithmetic, not about a language.

    Attributes:
        layers: How many linear layers have rounded weights.
        left: Names of the linear layers whose width no group divides; they stay as they are.
        difference: Root mean square of the differences of the logits, as a share of that of the logits; None if the
            models were not run.
        same_tokens: Share of the positions at which both models find the same token the most likely; None likewise.
    """

    layers: int
    left: tuple[str, ...]
    difference: float | None
    same_tokens: float | None


@dataclasses.dataclass(frozen=True)
class GroupScales:
    """Gives the scale of each group of columns: the number of the largest magnitude becomes the lowest integer.

    Attributes:
        bits: 4 or 8. The lowest integer has no negation.
        block: How many columns share a scale.
        dtype: In what the scales are computed.
    """

    bits: int
    block: int
    dtype: torch.dtype

    def groups(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the groups (R, K / block, block) of some rows (R, K), and their scales (R, K / block, 1)."""
        groups = rows.to(self.dtype).unflatten(1, (-1, self.block))
        low, high = groups.aminmax(dim=-1, keepdim=True)
        extreme = torch.where(high > -low, high, low)
        return groups, torch.where(extreme == 0, torch.ones_like(extreme), extreme / -(1 << self.bits - 1))

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the scales (R, K / block) of some rows (R, K)."""
        return self.groups(rows)[1].squeeze(-1)


@dataclasses.dataclass(frozen=True)
class GroupNumbers(GroupScales):
    """Gives the integers nearest to a weight over its scales, packed as ``MatMulNBits`` wants them."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the bytes (R, K / block, block * bits / 8) of some rows (R, K), low bits first."""
        groups, scales = self.groups(rows)
        middle = 1 << self.bits - 1
        numbers = (groups / scales).round_().clamp_(-middle, middle - 1).add_(middle).to(torch.uint8)
        return numbers if self.bits == 8 else numbers[..., 0::2] | numbers[..., 1::2] << 4


class GroupedLinear(torch.nn.Module):
    """A linear layer whose weight is stored as integers, with a scale for each group of columns.

    Args:
        weight: The weight (N, K); K is a multiple of ``block``.
        bias: The bias (N,), or None.
        bits: 4 or 8.
        block: How many columns share a scale, 16 or more and a power of two.
    """

    numbers: torch.Tensor
    scales: torch.Tensor

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, bits: int, block: int) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bits, self.block, self.bias = bits, block, bias
        for name, conversion in self.conversions(weight.dtype).items():
            self.register_buffer(name, converted_rows(weight.detach(), conversion))

    def conversions(self, dtype: torch.dtype) -> dict[str, RowConversion]:
        """Return what makes each buffer of the weight, computed in ``dtype``."""
        how = self.bits, self.block, dtype
        return {"numbers": GroupNumbers(*how), "scales": GroupScales(*how)}

    @property
    def weight(self) -> torch.Tensor:
        """The weight (N, K) that the integers stand for."""
        identity = torch.eye(self.in_features, dtype=self.scales.dtype, device=self.scales.device)
        return self._product(identity, None).mT

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product (..., N) of ``x`` (..., K) with the weight, and the bias."""
        return self._product(x, self.bias)

    def _product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return matmul_nbits(
            x, self.numbers, self.scales, bias=bias,
            K=self.in_features, N=self.out_features, block_size=self.block, bits=self.bits,
        )  # fmt: skip


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
                weight = matrix_of(child)
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


def matrix_of(module: Any) -> torch.Tensor | None:
    """Return the weight (N, K) of a linear layer, or None if the module is none."""
    if type(module) is torch.nn.Linear:
        return module.weight if type(module.weight) is torch.nn.Parameter else None
    if isinstance(module, transformers().pytorch_utils.Conv1D):
        weight: torch.Tensor = module.weight
        return weight.T
    return None


def quantized_error(before: torch.Tensor, after: torch.Tensor) -> tuple[float, float]:
    """Return how far logits (T, vocabulary) are from others: the share of their size, and of equal tokens."""
    difference = (after - before).square().mean().sqrt() / before.square().mean().sqrt()
    return float(difference), float((after.argmax(-1) == before.argmax(-1)).float().mean())
