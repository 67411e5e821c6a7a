"""What the data decides in a trace that is being recorded: which values follow from inputs, which from sizes alone."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.graph.parts import all_nodes, node_blocks, node_inputs

__all__ = ["Cause", "TracedData"]

# Their results have the shape of the first operand and nothing of its elements.
_SHAPE_ONLY = ("aten::size", "aten::len", "aten::numel", "aten::new_", "aten::stride")
# They leave nothing of what their first operand held.
_OVERWRITING = ("aten::copy_", "aten::fill_", "aten::zero_")
# A tensor without dimensions is a size for them.
_CREATING = ("aten::arange", "aten::linspace", "aten::logspace", "aten::range")


class Cause(enum.IntEnum):
    """What a value of a trace follows from; the larger one counts."""

    MODEL = 0
    SIZE = 1
    """A dimension that is declared dynamic."""
    DATA = 2


class TracedData:
    """The data flow of the trace that is being recorded.

    Args:
        inputs: The model's tensor inputs.
        dynamic: For each of them, the axes that are declared dynamic.
        weights: What the model may keep from one call to the next, by name.
    """

    def __init__(
        self,
        inputs: Sequence[torch.Tensor],
        dynamic: Sequence[Collection[int]],
        weights: Mapping[str, torch.Tensor],
    ) -> None:
        values = [private.traced_value(tensor).unique() for tensor in inputs]
        self._ranks = {value: tensor.dim() for value, tensor in zip(values, inputs, strict=True)}
        self._dynamic = {
            value: {axis % self._ranks[value] for axis in axes if self._ranks[value]}
            for value, axes in zip(values, dynamic, strict=True)
        }
        self._weights = {private.traced_value(weight).unique(): name for name, weight in weights.items()}
        self._known: dict[tuple[int, bool], Cause] = {}

    def cause(self, tensor: torch.Tensor, *, of_shape: bool = False) -> Cause:
        """Return what the elements of a tensor follow from, or its sizes."""
        self._known = {}
        value = private.traced_value(tensor)
        found = self._shape(value) if of_shape else self._elements(value)
        return found if found is Cause.DATA else max(found, self._written())

    def weights_behind(self, tensor: torch.Tensor) -> set[str]:
        """Return the names of the weights that the elements of a tensor follow from."""
        if not self._weights:
            return set()
        self._known = {}
        self._elements(private.traced_value(tensor))
        self._written()
        return {self._weights[unique] for unique, of_shape in self._known if not of_shape and unique in self._weights}

    def _written(self) -> Cause:
        """Return what was written into the memory of values that were looked at: a trace gives views no new values."""
        seen = {unique for unique, _ in self._known}
        cause = Cause.MODEL
        for node in all_nodes(private.traced_graph()):
            name = str(node.kind())
            if not name.endswith("_") or name.endswith("__") or not node.inputsSize():
                continue
            target = node.inputsAt(0)
            while target.unique() not in seen and target.node().inputsSize():
                target = target.node().inputsAt(0)
            if target.unique() in seen:
                cause = max(cause, *map(self._elements, node_inputs(node)))
        return cause

    def _elements(self, value: Any) -> Cause:
        return self._remembered(value, False, self._elements_of)

    def _shape(self, value: Any) -> Cause:
        return self._remembered(value, True, self._shape_of)

    def _remembered(self, value: Any, of_shape: bool, find: Callable[[Any], Cause]) -> Cause:
        key = (value.unique(), of_shape)
        if key not in self._known:
            self._known[key] = Cause.MODEL
            self._known[key] = find(value)
        return self._known[key]

    def _elements_of(self, value: Any) -> Cause:
        node = value.node()
        name = str(node.kind())
        if name == "prim::Param":
            return Cause.DATA if value.unique() in self._dynamic else Cause.MODEL
        inputs = node_inputs(node)
        if name in _OVERWRITING:
            return max([Cause.MODEL, *map(self._elements, inputs[1:])])
        if name.startswith(_SHAPE_ONLY) or (name.endswith("_like") and "rand" not in name):
            first = self._axis(inputs) if name == "aten::size" else self._shape(inputs[0])
            return max([first, *map(self._elements, inputs[1:])])
        return max([Cause.MODEL, *map(self._elements, [*inputs, *_inside(node)])])

    def _axis(self, inputs: Sequence[Any]) -> Cause:
        """Return the cause of one size: of an input's, whether its axis is dynamic."""
        tensor = inputs[0].unique()
        if tensor not in self._dynamic or len(inputs) == 1:
            return self._shape(inputs[0])
        axis = inputs[1].toIValue()
        return Cause.SIZE if axis % self._ranks[tensor] in self._dynamic[tensor] else Cause.MODEL

    def _shape_of(self, value: Any) -> Cause:
        node = value.node()
        name = str(node.kind())
        if name == "prim::Param":
            return Cause.SIZE if self._dynamic.get(value.unique()) else Cause.MODEL
        inputs = node_inputs(node)
        if _has_sizes_of_elements(node):
            return max(map(self._elements, inputs))
        causes = [Cause.MODEL]
        for operand in [*inputs, *_inside(node)]:
            is_number = operand.type().kind() != "TensorType" and operand.node().kind() != "prim::ListConstruct"
            is_size = is_number or (name.startswith(_CREATING) and operand.type().kind() == "TensorType")
            causes.append(self._elements(operand) if is_size else self._shape(operand))
        return max(causes)


def _inside(node: Any) -> list[Any]:
    """Return the operands of the nodes in the blocks of a node."""
    return [operand for block in node_blocks(node) for inner in all_nodes(block) for operand in node_inputs(inner)]


def _has_sizes_of_elements(node: Any) -> bool:
    """Tell whether the sizes of an operator's result follow from the elements of its operands, as torch marks it."""
    namespace, _, name = str(node.kind()).partition("::")
    packet = getattr(getattr(torch.ops, namespace, None), name, None) if namespace == "aten" else None
    if packet is None:
        return False
    if name == "index":
        # Masks alone select by their elements.
        kinds = [str(index.type()) for index in node_inputs(node.inputsAt(1).node())]
        return any(kind.startswith(("Bool", "Byte")) or kind == "Tensor" for kind in kinds)
    overloads: Mapping[str, Any] = {each: getattr(packet, each) for each in packet.overloads()}
    return any(torch.Tag.dynamic_output_shape in overload.tags for overload in overloads.values())
