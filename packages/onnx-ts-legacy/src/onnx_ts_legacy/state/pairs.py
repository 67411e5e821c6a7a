"""Complex tensors, which ONNX holds as pairs of numbers along a last dimension of their own."""

from __future__ import annotations

from typing import TypeVar

import onnx_ir as ir
import torch

from onnxops_decomp.exporting import mark_complex

__all__ = ["held_as", "held_dims"]

Dim = TypeVar("Dim")


def held_dims(dims: tuple[Dim, ...], dtype: torch.dtype) -> tuple[Dim | int, ...]:
    """Return the dimensions of the value that holds a tensor of these dimensions and dtype."""
    return (*dims, 2) if dtype.is_complex else dims


def held_as(value: ir.Value, dtype: torch.dtype) -> ir.Value:
    """Return a value, marked as complex if the tensor that it holds is of such a dtype."""
    return mark_complex(value) if dtype.is_complex else value
