"""Weights that are a subclass of Tensor made of plain tensors, such as the quantized ones of torchao."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from onnxops_decomp.torch_private import flattened_subclass

__all__ = ["inner_tensors", "with_inner_tensors"]


def inner_tensors(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the plain tensors by the path of attributes that leads to each; nothing for a plain tensor."""
    found: dict[str, torch.Tensor] = {}
    for name, part in flattened_subclass(tensor).items():
        inner = inner_tensors(part)
        found.update({f"{name}.{path}": leaf for path, leaf in inner.items()} or {name: part})
    return found


def with_inner_tensors(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors by name, those of a subclass replaced by what they are made of."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        inner = inner_tensors(tensor)
        found.update({f"{name}.{path}": leaf for path, leaf in inner.items()} or {name: tensor})
    return found
