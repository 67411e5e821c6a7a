"""Arithmetic with small weights, done when they are written."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxops_decomp.passes import DerivedTensor
from onnxops_decomp.passes.matching import constant, dims

__all__ = ["FoldSmallWeights"]

Array = npt.NDArray[Any]

_FUNCTIONS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}


class FoldSmallWeights(ir.passes.InPlacePass):
    """Stores a vector of weights as it is read where that is the vector and a constant, added or multiplied, or a cast.

    Some normalizations read ``1 + weight``. The result takes the place of the vector, computed in the same dtype when
    it is read, and the operators that want a weight that stands ready have one.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph."""
        modified = False
        for node in list(model.graph):
            if not node.domain and (node.op_type in _FUNCTIONS or node.op_type == "Cast"):
                modified |= self._fold(model.graph, node)
        return ir.passes.PassResult(model, modified)

    def _fold(self, graph: ir.Graph, node: ir.Node) -> bool:
        result, places = node.outputs[0], [place for place, value in enumerate(node.inputs) if _is_vector(value)]
        others = [constant(value) for place, value in enumerate(node.inputs) if place not in places]
        numbers = tuple(number for number in others if number is not None and number.size == 1)
        if len(places) != 1 or result.is_graph_output() or result.shape is None or result.dtype is None:
            return False
        if len(numbers) != len(others):
            return False
        weight = node.inputs[places[0]]
        assert weight is not None
        source = weight.const_value
        if source is None or dims(result) != source.shape.numpy():
            return False
        derive = partial(_computed, node.op_type, places[0], numbers)
        name = str(result.name)
        tensor = DerivedTensor(derive, [source], name=name, dtype=result.dtype, shape=ir.Shape(source.shape.numpy()))
        value = ir.Value(name=f"{weight.name}.{name}", type=result.type, shape=tensor.shape, const_value=tensor)
        ir.convenience.replace_all_uses_with(result, value)
        graph.remove(node, safe=True)
        graph.initializers.add(value)
        return True


def _is_vector(value: ir.Value | None) -> bool:
    """Tell whether a value is a vector of weights of floats, or what was made of one."""
    if value is None or not value.is_initializer() or value.is_graph_input():
        return False
    tensor = value.const_value
    if not isinstance(tensor, ir.tensor_adapters.TorchTensor | DerivedTensor):
        return False
    return value.dtype is not None and value.dtype.is_floating_point() and len(tensor.shape) == 1


def _computed(op_type: str, place: int, numbers: tuple[Array, ...], vector: Array) -> Array:
    if op_type == "Cast":
        return vector  # the result gets its dtype
    operands = [vector, *numbers] if place == 0 else [*numbers, vector]
    result: Array = _FUNCTIONS[op_type](*operands)
    return result
