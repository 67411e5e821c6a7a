"""How a call in torch's form becomes the inputs of a model, and its outputs what torch returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from onnxops_decomp.exporting.calls.structure import CallStructure
from onnxops_decomp.exporting.errors import InvalidArgumentError

__all__ = ["Interface", "Output"]


class Output(NamedTuple):
    """A leaf of a result that an output of the model holds; a string by itself is a constant."""

    name: str


@dataclasses.dataclass(frozen=True)
class Interface:
    """How a call in torch's form becomes the inputs of a model, and its outputs what torch returns.

    Attributes:
        structure: Structure of the arguments and of the result.
        input_positions: For each model input that is a user input, in order, its place among the leaves of a call.
        constants: Value of each leaf of a call that is part of the model, by its place.
        outputs: For each leaf of the result, the model output that holds it, or its constant value.
        numbers: For each model input that is a number in torch, its symbol in the conditions on sizes.
        number_outputs: Names of the outputs that are Python numbers in torch, or lists of them.
        complex_outputs: Names of the outputs that hold complex numbers as pairs along a last dimension.
    """

    structure: CallStructure
    input_positions: Sequence[int]
    constants: Mapping[int, Any]
    outputs: Sequence[Any]
    numbers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    number_outputs: frozenset[str] = frozenset()
    complex_outputs: frozenset[str] = frozenset()

    def feeds(self, names: Sequence[str], leaves: Sequence[Any]) -> dict[str, Any]:
        """Return the user inputs, whose names are given in order, of the leaves of a call.

        Raises:
            InvalidArgumentError: If the call has another constant than the exported one.
        """
        for position, constant in self.constants.items():
            if not _is_same(leaves[position], constant):
                raise InvalidArgumentError(
                    f"The model was exported for {constant!r} where this call has {leaves[position]!r}. Declare the "
                    "number dynamic, or export again."
                )
        return {name: leaves[position] for name, position in zip(names, self.input_positions, strict=True)}

    def call(self, names: Sequence[str], feeds: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the call in torch's form that gives these user inputs, whose names are given in order."""
        leaves = dict(self.constants)
        leaves.update({place: feeds[name] for name, place in zip(names, self.input_positions, strict=True)})
        flat = [leaves[place] for place in range(self.structure.inputs.num_leaves)]
        call: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(flat, self.structure.inputs)
        return call

    def structured(self, outputs: Mapping[str, torch.Tensor]) -> Any:
        """Return named outputs in the structure of the result."""
        found = {name: value.tolist() if name in self.number_outputs else value for name, value in outputs.items()}
        leaves = [found[leaf.name] if isinstance(leaf, Output) else leaf for leaf in self.outputs]
        return pytree.tree_unflatten(leaves, self.structure.outputs)


def _is_same(value: Any, constant: Any) -> bool:
    if isinstance(value, torch.Tensor) and isinstance(constant, int | float) and value.dim() == 0:
        # A number is given as a tensor where it may vary.
        value = value.item()
    if isinstance(value, torch.Tensor) or isinstance(constant, torch.Tensor):
        return value is constant
    if type(value) is float and type(constant) is float:
        # NaN is itself here, and the two zeros are two numbers.
        return repr(value) == repr(constant)
    return value is constant or (type(value) is type(constant) and bool(value == constant))
