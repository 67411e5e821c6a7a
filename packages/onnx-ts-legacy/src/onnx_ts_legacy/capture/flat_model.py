"""A model as a trace needs it: a function of tensors that returns tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_ts_legacy.capture.number_classes import as_result
from onnx_ts_legacy.errors import CaptureError
from onnxops_decomp.exporting import key_of, output_name, register_containers

__all__ = ["FlatModel", "is_left_out"]


class FlatModel(torch.nn.Module):
    """Takes the tensors of nested arguments, and returns those of a nested result, one by one."""

    def __init__(
        self,
        model: Any,
        leaves: list[Any],
        structure: pytree.TreeSpec,
        at_start: Sequence[Callable[[Sequence[torch.Tensor]], None]] = (),
        at_end: Sequence[Callable[[], None]] = (),
        further: Sequence[torch.Tensor] = (),
    ) -> None:
        super().__init__()
        self._hidden = [model]
        if isinstance(model, torch.nn.Module):
            self.model = model
            self.training = model.training
        self._leaves, self._structure = leaves, structure
        self.result_names: list[str] = []
        self.result: list[Any] = []
        self.left_out: dict[str, Any] = {}
        self.result_structure = structure
        self.returned: list[torch.Tensor] = []
        self.random_state = torch.get_rng_state()
        self._at_start, self._at_end, self._further = at_start, at_end, further

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the model, and note what it returns beside tensors."""
        for step in self._at_start:
            step(tensors)
        self.random_state = torch.get_rng_state()
        given = iter(tensors)
        filled = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
        args, kwargs = pytree.tree_unflatten(filled, self._structure)
        result = (self.model if hasattr(self, "model") else self._hidden[0])(*args, **kwargs)
        register_containers([result], results=True)
        leaves, self.result_structure = pytree.tree_flatten_with_path(result)
        self.result = [leaf if is_left_out(leaf) else type(leaf) for _, leaf in leaves]
        names = [(output_name(tuple(map(key_of, path))), leaf) for path, leaf in leaves]
        self.result_names = [name for name, leaf in names if not is_left_out(leaf)]
        self.left_out = {name: leaf for name, leaf in names if is_left_out(leaf)}
        self.returned = [leaf for _, leaf in leaves if isinstance(leaf, torch.Tensor)]
        for end in self._at_end:
            end()
        return (*(_as_tensor(leaf) for _, leaf in leaves if not is_left_out(leaf)), *self._further)


def is_left_out(leaf: Any) -> bool:
    """Tell whether ONNX has no value for a result."""
    return leaf is None or isinstance(leaf, str)


def _as_tensor(leaf: Any) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        return as_result(leaf)
    if isinstance(leaf, bool | int | float):
        return torch.tensor(leaf, device="cpu")
    raise CaptureError(f"The model returns a {type(leaf).__name__}; ONNX has only tensors, and numbers as tensors.")
