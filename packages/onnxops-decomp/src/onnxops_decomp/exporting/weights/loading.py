"""Puts other weights into an exported model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from onnxops_core import OnnxExporterError
from onnxops_decomp.exporting.errors import InvalidArgumentError
from onnxops_decomp.exporting.finish.weights import DeduplicateInitializers, restore_duplicates
from onnxops_decomp.exporting.weights.initializers import TIED_KEY, StreamedTensor
from onnxops_decomp.exporting.weights.tensor_subclasses import with_inner_tensors
from onnxops_decomp.passes import DerivedTensor

__all__ = ["apply_weights", "load_state_dict"]

SUFFIX_TRANSPOSED = ".transposed"


def load_state_dict(source: Mapping[str, torch.Tensor] | str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Return tensors by name from a mapping, a ``.safetensors`` file or a torch checkpoint.

    A checkpoint is loaded with ``weights_only=True``: it may hold tensors and nothing that runs.

    Raises:
        InvalidArgumentError: If the file does not exist or holds no mapping of tensors.
        OnnxExporterError: If a safetensors file is given and safetensors is not installed.
    """
    if isinstance(source, Mapping):
        return dict(source)
    path = Path(source)
    if not path.is_file():
        raise InvalidArgumentError(f"There is no checkpoint at {path}.")
    if path.suffix == ".safetensors":
        try:
            from safetensors.torch import load_file
        except ImportError as error:
            raise OnnxExporterError("Reading .safetensors files needs safetensors: pip install safetensors.") from error
        loaded: Any = load_file(path)
    else:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    if isinstance(loaded, Mapping) and isinstance(loaded.get("state_dict"), Mapping):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, Mapping) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise InvalidArgumentError(f"{path} holds no mapping from names to tensors.")
    return dict(loaded)


def apply_weights(model: ir.Model, weights: Mapping[str, torch.Tensor]) -> list[str]:
    """Give the initializers of ``model`` the tensors of the same names; nothing is copied.

    Args:
        model: Exported model.
        weights: Tensors by the names that they have in the torch module.

    Returns:
        Names in ``weights`` that the model has no initializer for.

    Raises:
        InvalidArgumentError: If a tensor has another shape or dtype than the one that it replaces; then none is
            replaced.
    """
    restore_duplicates(model)
    weights = with_inner_tensors(weights)
    used: set[str] = set()
    changes: list[tuple[ir.Value, ir.TensorProtocol]] = []
    for value in model.graph.initializers.values():
        new = None if value.const_value is None else _replacement(value.const_value, weights, used)
        if new is not None:
            changes.append((value, new))
    used |= _tied(model, weights)
    for value, tensor in changes:
        value.const_value = tensor
    DeduplicateInitializers()(model)
    return [name for name in weights if name not in used]


def _tied(model: ir.Model, weights: Mapping[str, torch.Tensor]) -> set[str]:
    """Return the further names of weights that the module has under several.

    Raises:
        InvalidArgumentError: If the names of one weight are given different tensors.
    """
    found: set[str] = set()
    for value in model.graph.initializers.values():
        names = [name for name in value.meta.get(TIED_KEY, ()) if name in weights]
        for name in names[1:]:
            if not torch.equal(weights[names[0]], weights[name]):
                raise InvalidArgumentError(f"{names[0]} and {name} are one weight in the model, but differ here.")
        found.update(names)
    return found


def _replacement(
    tensor: ir.TensorProtocol, weights: Mapping[str, torch.Tensor], used: set[str]
) -> ir.TensorProtocol | None:
    """Return what takes the place of a tensor, and note the names that it needs; None if it stays as it is."""
    if isinstance(tensor, DerivedTensor):
        sources = [_replacement(source, weights, used) for source in tensor.sources]
        if all(source is None for source in sources):
            return None
        return tensor.of([new or old for new, old in zip(sources, tensor.sources, strict=True)])
    name = str(tensor.name)
    source = name.removesuffix(SUFFIX_TRANSPOSED)
    if name in weights:
        used.add(name)
        return _checked(name, tensor, weights[name].detach())
    if source in weights:
        used.add(source)
        return _checked(source, tensor, weights[source].detach().mT)
    return None


def _checked(name: str, old: ir.TensorProtocol, tensor: torch.Tensor) -> ir.TensorProtocol:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    dtype = ir.tensor_adapters.from_torch_dtype(tensor.dtype)
    if tuple(tensor.shape) != tuple(old.shape) or dtype != old.dtype:
        raise InvalidArgumentError(
            f"Weight {name} has shape {list(tensor.shape)} and dtype {dtype.name}; the model wants "
            f"{list(old.shape)} and {old.dtype.name}."
        )
    return StreamedTensor(tensor, name=old.name)
