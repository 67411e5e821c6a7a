"""Puts other weights into an exported model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import real_contents, to_torch
from onnxops_decomp.exporting.errors import InvalidArgumentError
from onnxops_decomp.exporting.finish.weights import DeduplicateInitializers, restore_duplicates
from onnxops_decomp.exporting.weights.converted import Cast, Converted, ConvertedTensor
from onnxops_decomp.exporting.weights.initializers import TIED_KEY, StreamedTensor
from onnxops_decomp.exporting.weights.tensor_subclasses import with_inner_tensors
from onnxops_decomp.passes import DerivedTensor

__all__ = ["apply_weights"]

_CAST = frozenset((ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16))


def apply_weights(model: ir.Model, weights: Mapping[str, torch.Tensor | Converted], *, cast: bool = False) -> list[str]:
    """Give the initializers of ``model`` the tensors of the same names; nothing is copied.

    Args:
        model: Exported model.
        weights: Tensors by the names that they have in the torch module, some of which may be yet to be computed.
        cast: Whether a tensor of another floating dtype is converted whenever it is read, instead of refused.

    Returns:
        Names in ``weights`` that the model has no initializer for.

    Raises:
        InvalidArgumentError: If a tensor has another shape or dtype than the one that it replaces; then none is
            replaced.
    """
    restore_duplicates(model)
    computed = {name: weight for name, weight in weights.items() if isinstance(weight, Converted)}
    tensors = {name: weight for name, weight in weights.items() if not isinstance(weight, Converted)}
    replacing = _Replacing({**with_inner_tensors(tensors), **computed}, cast)
    changes: list[tuple[ir.Value, ir.TensorProtocol]] = []
    for value in model.graph.initializers.values():
        tied = value.meta.get(TIED_KEY, ())
        new = None if value.const_value is None else replacing.replacement(value.const_value, tied)
        if new is not None:
            changes.append((value, new))
    used = replacing.used | _tied(model, tensors)
    for value, tensor in changes:
        value.const_value = tensor
    DeduplicateInitializers()(model)
    return [name for name in replacing.weights if name not in used]


def _tied(model: ir.Model, weights: Mapping[str, torch.Tensor]) -> set[str]:
    """Return the further names of weights that the module has under several.

    Raises:
        InvalidArgumentError: If the names of one weight are given different tensors.
    """
    found: set[str] = set()
    for value in model.graph.initializers.values():
        names = [name for name in value.meta.get(TIED_KEY, ()) if name in weights]
        for name in names[1:]:
            if weights[names[0]] is not weights[name] and not torch.equal(weights[names[0]], weights[name]):
                raise InvalidArgumentError(f"{names[0]} and {name} are one weight in the model, but differ here.")
        found.update(names)
    return found


class _Replacing:
    """What takes the place of initializers.

    Attributes:
        weights: The new weights by name.
        used: Their names that were needed so far.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor | Converted], cast: bool) -> None:
        self.weights, self.used, self._cast = weights, set[str](), cast

    def replacement(self, tensor: ir.TensorProtocol, tied: Sequence[str] = ()) -> ir.TensorProtocol | None:
        """Return what takes the place of a tensor; None if it stays as it is.

        Args:
            tensor: The contents of an initializer.
            tied: All names of the weight, if it has several; a checkpoint may have any of them.

        Raises:
            InvalidArgumentError: If the new tensor does not fit.
        """
        if isinstance(tensor, DerivedTensor):
            sources = [self.replacement(source) for source in tensor.sources]
            if all(source is None for source in sources):
                return None
            return tensor.of([new or old for new, old in zip(sources, tensor.sources, strict=True)])
        perm = None
        name = str(tensor.name)
        if isinstance(tensor, StreamedTensor | ConvertedTensor):
            name, perm = str(tensor.weight), tensor.perm
        name = next((one for one in (name, *tied) if one in self.weights), "")
        if not name:
            return None
        self.used.add(name)
        return self._fitting(tensor, name, perm)

    def _fitting(self, old: ir.TensorProtocol, name: str, perm: tuple[int, ...] | None) -> ir.TensorProtocol:
        weight = self.weights[name]
        if isinstance(weight, Converted):
            return _computed(old, name, weight)
        tensor = real_contents(weight)
        if perm is not None and len(perm) == tensor.dim():
            tensor = tensor.permute(perm)
        dtype = ir.tensor_adapters.from_torch_dtype(tensor.dtype)
        casts = dtype != old.dtype and {dtype, old.dtype} <= _CAST
        if tuple(tensor.shape) != tuple(old.shape) or not (dtype == old.dtype or (casts and self._cast)):
            advice = "; cast=True converts it" if casts and not self._cast else ""
            raise InvalidArgumentError(
                f"Weight {name} has shape {list(tensor.shape)} and dtype {dtype.name}; the model wants "
                f"{list(old.shape)} and {old.dtype.name}{advice}."
            )
        if not casts:
            return StreamedTensor(tensor, old.name, weight=name, perm=perm)
        conversion = Cast(to_torch(old.dtype))
        shape = tuple(tensor.shape)
        return ConvertedTensor(
            tensor, conversion, name=str(old.name), dtype=old.dtype, shape=shape, weight=name, perm=perm
        )


def _computed(old: ir.TensorProtocol, name: str, weight: Converted) -> ConvertedTensor:
    """Return what takes the place of a tensor and is yet to be computed.

    Raises:
        InvalidArgumentError: If it does not fit, or the model has the weight in another order of its axes.
    """
    made = weight.on_paper()
    shape, dtype = tuple(made.shape), ir.tensor_adapters.from_torch_dtype(made.dtype)
    if shape != tuple(old.shape) or dtype != old.dtype or old.name != name:
        raise InvalidArgumentError(
            f"Weight {name} is computed with shape {list(shape)} and dtype {dtype.name}; the model wants "
            f"{old.name} of {list(old.shape)} and {old.dtype.name}."
        )
    return ConvertedTensor(weight.source, weight.conversion, name=name, dtype=dtype, shape=shape, weight=name)
