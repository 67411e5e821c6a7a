"""Parameters, buffers and constants of an ExportedProgram as initializers that share torch's memory."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from onnxops_decomp import OpBuilder
from onnxops_decomp.exporting import TIED_KEY, StreamedTensor, mark_complex, place_in_memory, real_contents, to_ir

__all__ = ["WeightStore"]


class WeightStore:
    """Makes one initializer for each distinct tensor, so that tied weights are stored once."""

    def __init__(self, op: OpBuilder) -> None:
        self._op = op
        self._by_storage: dict[Any, ir.Value] = {}
        self.values: list[ir.Value] = []

    def value(self, name: str, tensor: torch.Tensor) -> ir.Value:
        """Return the initializer that holds ``tensor``; its data is a view of torch's storage, never a copy."""
        key = _identity(tensor)
        found = self._by_storage.get(key) if key is not None else None
        if found is not None:
            names = found.meta.setdefault(TIED_KEY, [found.const_value.name])  # type: ignore[union-attr]
            if name not in names:
                names.append(name)
            return found
        real = real_contents(tensor)
        name = self._op.context.names.reserve(name)
        value = ir.Value(
            name=name,
            type=ir.TensorType(to_ir(real.dtype)),
            shape=ir.Shape(real.shape),
            const_value=StreamedTensor(real, name=name),
        )
        if tensor.is_complex():
            mark_complex(value)
        if key is not None:
            self._by_storage[key] = value
        self.values.append(value)
        return value


def _identity(tensor: torch.Tensor) -> Any:
    """Return what two tensors share exactly if they are the same view of the same memory; None for empty ones."""
    if tensor.numel() == 0:
        return None
    place = place_in_memory(tensor) if type(tensor) in (torch.Tensor, torch.nn.Parameter) else None
    # A tensor without memory to compare lives as long as the program.
    return place or id(tensor)
