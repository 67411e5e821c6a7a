"""Weights rounded to integers of four or eight bits, in groups that share a scale."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from onnx_fx_export.generation.requirements import transformers
from onnxops_core import matmul_nbits
from onnxops_decomp.exporting import RowConversion, converted_rows

__all__ = ["GroupNumbers", "GroupScales", "GroupedLinear", "group_size", "matrix_of", "numbers_of"]

_SIZES = (32, 16)


def group_size(*widths: int) -> int | None:
    """Return how many columns of matrices of these widths share a scale, or None if no such number divides them."""
    return next((size for size in _SIZES if all(width % size == 0 for width in widths)), None)


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


def numbers_of(packed: torch.Tensor, width: int) -> torch.Tensor:
    """Return the integers (R, width) that bytes (R, width or width / 2) hold, of which the middle one is 0, float32."""
    if packed.shape[1] == width:
        return packed.float() - 128
    return torch.stack([packed & 15, packed >> 4], -1).flatten(1).float() - 8


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


def matrix_of(module: Any) -> torch.Tensor | None:
    """Return the weight (N, K) of a linear layer, or None if the module is none."""
    if type(module) is torch.nn.Linear:
        return module.weight if type(module.weight) is torch.nn.Parameter else None
    if isinstance(module, transformers().pytorch_utils.Conv1D):
        weight: torch.Tensor = module.weight
        return weight.T
    return None
