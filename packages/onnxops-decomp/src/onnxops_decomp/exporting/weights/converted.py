"""Weights that are converted row by row on their way to a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from onnxops_decomp.exporting.errors import SaveError
from onnxops_decomp.exporting.weights.initializers import StreamedTensor, row_blocks, touch_tensor, write_blocks
from onnxops_decomp.passes import ComputedTensor

__all__ = ["Cast", "Converted", "ConvertedTensor", "RowConversion", "converted_rows"]

# What is computed of a block should stay in the processor's cache.
_BLOCK_BYTES = 1 << 20

# Takes some rows of a tensor and returns as many rows of the result. Equal ones do the same.
RowConversion = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Cast:
    """Converts rows to another floating dtype.

    Attributes:
        dtype: The dtype.
    """

    dtype: torch.dtype

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows in the dtype.

        Raises:
            SaveError: If a finite number is beyond what the dtype holds.
        """
        cast = rows.to(self.dtype)
        narrower = torch.finfo(self.dtype).max < torch.finfo(rows.dtype).max
        if narrower and not cast.isfinite().all() and (rows.isfinite() & ~cast.isfinite()).any():
            largest = rows[rows.isfinite()].abs().max().item()
            raise SaveError(f"it holds {largest:g}, which is too large for {self.dtype}")
        return cast


@dataclasses.dataclass(frozen=True)
class Converted:
    """A weight that is yet to be computed from a tensor of at least one dimension.

    Attributes:
        source: The tensor.
        conversion: What makes the weight of it.
    """

    source: torch.Tensor
    conversion: RowConversion

    def on_paper(self) -> torch.Tensor:
        """Return a tensor without data of the weight's shape and dtype."""
        return self.conversion(self.source.to("meta"))


def converted_rows(source: torch.Tensor, conversion: RowConversion) -> torch.Tensor:
    """Return what a conversion makes of a tensor of at least one dimension, computed block by block."""
    first, *others = row_blocks(source, _BLOCK_BYTES)
    rows = conversion(first)
    if not others:
        return rows
    whole = rows.new_empty((len(source), *rows.shape[1:]))
    whole[: len(first)] = rows
    start = len(first)
    for block in others:
        whole[start : start + len(block)] = conversion(block)
        start += len(block)
    return whole


class ConvertedTensor(ComputedTensor):
    """A tensor that is computed from another one of torch, row by row.

    Args:
        source: What it is computed from.
        conversion: What makes the result of it.
        name: Its name.
        dtype: Dtype of the result.
        shape: Shape of the result.
        weight: Name of the torch weight that it is made of.
        perm: Order of the axes of that weight in ``source``, if it is not their own.
    """

    def __init__(
        self,
        source: torch.Tensor,
        conversion: RowConversion,
        *,
        name: str,
        dtype: ir.DataType,
        shape: Sequence[int],
        weight: str,
        perm: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__([StreamedTensor(source, weight)], name=name, dtype=dtype, shape=ir.Shape(shape))
        self.source, self.conversion = source.detach(), conversion
        self.weight, self.perm = weight, perm

    def _computed(self) -> ir.TensorProtocol:
        rows = converted_rows(self._rows(), self._converted)
        return StreamedTensor(rows.reshape(tuple(self.shape.numpy())), self.name)

    def tofile(self, file: Any) -> None:
        """Write the bytes to a binary file; the next rows are converted meanwhile.

        Raises:
            SaveError: If the conversion refuses what the weight holds.
        """
        touch_tensor(self.source)
        write_blocks(file, row_blocks(self._rows(), _BLOCK_BYTES), self._converted)

    def _converted(self, rows: torch.Tensor) -> torch.Tensor:
        try:
            return self.conversion(rows)
        except SaveError as error:
            raise SaveError(f"weight {self.weight} cannot be converted: {error}") from error

    def _rows(self) -> torch.Tensor:
        return self.source if self.source.dim() else self.source.reshape(1)
