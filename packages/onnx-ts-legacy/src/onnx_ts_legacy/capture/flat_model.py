"""A model as a trace needs it: a function of tensors that returns tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_ts_legacy.capture.number_classes import as_result
from onnx_ts_legacy.errors import CaptureError
from onnxops_decomp.exporting import key_of, output_name, register_containers

__all__ = ["FlatModel", "is_left_out"]


class FlatModel(torch.nn.Module):
    """Takes the tensors of nested arguments, and returns those of a nested result, one by one.

    Attributes:
        result: The class of each leaf of the last result, or what it is if that has no value in ONNX.
        result_names: The names of those that have one.
        result_structure: The structure of the result.
        returned: The tensors among its leaves.
        left_out: What has no value in ONNX, by name.
        random_state: The state of the random numbers before the last call.
    """

    result: Sequence[Any]
    result_names: list[str]
    result_structure: pytree.TreeSpec
    returned: Sequence[torch.Tensor]
    left_out: Mapping[str, Any]
    random_state: torch.Tensor
    _hidden: list[Any]
    _leaves: list[Any]
    _structure: pytree.TreeSpec
    _at_start: Sequence[Callable[[Sequence[torch.Tensor]], None]]
    _at_end: Sequence[Callable[[Sequence[torch.Tensor]], None]]
    _further: Sequence[torch.Tensor]

    def __init__(
        self,
        model: Any,
        leaves: list[Any],
        structure: pytree.TreeSpec,
        at_start: Sequence[Callable[[Sequence[torch.Tensor]], None]] = (),
        at_end: Sequence[Callable[[Sequence[torch.Tensor]], None]] = (),
        further: Sequence[torch.Tensor] = (),
    ) -> None:
        super().__init__()
        is_module = isinstance(model, torch.nn.Module)
        if is_module:
            self.model = model
        # What is set in other ways is asked for parameters, buffers and modules each time.
        vars(self).update(
            _hidden=[model],
            _leaves=leaves,
            _structure=structure,
            _at_start=at_start,
            _at_end=at_end,
            _further=further,
            training=model.training if is_module else self.training,
            result=[],
            result_names=[],
            result_structure=structure,
            returned=[],
            left_out={},
        )

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the model, and note what it returns beside tensors."""
        for step in self._at_start:
            step(tensors)
        random_state = torch.get_rng_state()
        given = iter(tensors)
        filled = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
        args, kwargs = pytree.tree_unflatten(filled, self._structure)
        result = (self.model if hasattr(self, "model") else self._hidden[0])(*args, **kwargs)
        register_containers([result], results=True)
        leaves, structure = pytree.tree_flatten_with_path(result)
        named = [(output_name(tuple(map(key_of, path))), leaf, is_left_out(leaf)) for path, leaf in leaves]
        vars(self).update(
            random_state=random_state,
            result=[leaf if is_out else type(leaf) for _, leaf, is_out in named],
            result_names=[name for name, _, is_out in named if not is_out],
            result_structure=structure,
            returned=[leaf for _, leaf, _ in named if isinstance(leaf, torch.Tensor)],
            left_out={name: leaf for name, leaf, is_out in named if is_out},
        )
        for end in self._at_end:
            end(self.returned)
        return (*(_as_tensor(leaf) for _, leaf, is_out in named if not is_out), *self._further)


def is_left_out(leaf: Any) -> bool:
    """Tell whether ONNX has no value for a result."""
    return leaf is None or isinstance(leaf, str)


def _as_tensor(leaf: Any) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        return as_result(leaf)
    if isinstance(leaf, bool | int | float):
        return torch.tensor(leaf, device="cpu")
    raise CaptureError(f"The model returns a {type(leaf).__name__}; ONNX has only tensors, and numbers as tensors.")
