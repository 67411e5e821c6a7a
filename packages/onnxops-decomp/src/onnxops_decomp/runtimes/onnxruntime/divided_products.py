"""A product whose columns go different ways as one product for each, by weights that are divided when written."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from onnxops_decomp.passes.derived import DerivedTensor
from onnxops_decomp.passes.matching import dims, drop_unused_weights, operand, sole_user, sweep
from onnxops_decomp.runtimes.onnxruntime.packed_products import Product, product_of

__all__ = ["DivideWideProducts"]


class DivideWideProducts(ir.passes.InPlacePass):
    """Multiplies by the columns of a weight that a Split gives to different nodes, instead of dividing the product.

    Where the parts are wider than what is multiplied, as those of gated layers are, two products take as long as one,
    and nothing is copied. Narrower ones stay together, as heads of attention do.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph."""
        modified = False
        for node in list(model.graph):
            if (node.domain, node.op_type) == ("", "Split"):
                modified |= _divide(model.graph, node)
        if modified:
            drop_unused_weights(model.graph)
        return ir.passes.PassResult(model, modified)


def _divide(graph: ir.Graph, split: ir.Node) -> bool:
    whole, shape = operand(split, 0), dims(operand(split, 0))
    if whole is None or shape is None or split.attributes.get_int("axis", 0) not in (-1, len(shape) - 1):
        return False
    found = product_of(whole) if sole_user(whole) is split else None
    widths = [width for part in split.outputs if isinstance(width := (dims(part) or (None,))[-1], int)]
    depth = None if found is None else (dims(found.node.inputs[0]) or (None,))[-1]
    if found is None or not isinstance(depth, int) or len(widths) != len(split.outputs) or min(widths) <= depth:
        return False
    begin = 0
    for number, (part, width) in enumerate(zip(split.outputs, widths, strict=True)):
        _compute_part(graph, split, found, part, (number, begin, begin + width))
        begin += width
    sweep(split)
    return True


# The number of a part, the first of its columns, and the one behind its last.
_Columns = tuple[int, int, int]


def _compute_part(graph: ir.Graph, split: ir.Node, whole: Product, part: ir.Value, columns: _Columns) -> None:
    """Put the product by some columns in place of a part of a whole one.

    Args:
        graph: Where the weights are.
        split: The node before which the part is computed.
        whole: The product.
        part: The part.
        columns: Its columns.
    """
    weights = [_part_of(graph, weight, columns, whole.node.op_type) for weight in whole.weights]
    inputs = list(whole.node.inputs)
    for place, weight in zip(whole.places, weights, strict=False):
        inputs[place] = weight
    number, begin, end = columns
    given = whole.node.attributes.values()
    attributes = [ir.AttrInt64("N", end - begin) if each.name == "N" else each for each in given]
    name = f"{whole.node.name}.{number}"
    node = ir.Node(whole.node.domain, whole.node.op_type, inputs, attributes, num_outputs=1, name=name)
    nodes = [node]
    if whole.bias is not None:
        nodes.append(ir.Node("", "Add", [node.outputs[0], weights[-1]], num_outputs=1, name=f"{name}.biased"))
    for each in nodes:
        each.metadata_props.update(whole.node.metadata_props)
        result = each.outputs[0]
        result.name, result.type, result.shape = each.name, part.type, part.shape
        graph.insert_before(split, each)
    ir.convenience.replace_all_uses_with(part, nodes[-1].outputs[0], replace_graph_outputs=True)


def _part_of(graph: ir.Graph, weight: ir.Value, columns: _Columns, op_type: str) -> ir.Value:
    number, begin, end = columns
    tensor, shape = weight.const_value, dims(weight)
    assert tensor is not None
    assert shape is not None
    axis = len(shape) - 1 if op_type == "MatMul" else 0
    sizes = ir.Shape([*shape[:axis], end - begin, *shape[axis + 1 :]])
    name = f"{weight.name}.{number}"
    derive = partial(_columns, axis, begin, end)
    part = DerivedTensor(derive, [tensor], name=name, dtype=tensor.dtype, shape=sizes, by_rows=axis > 0)
    value = ir.Value(name=name, type=weight.type, shape=sizes, const_value=part)
    graph.initializers.add(value)
    return value


def _columns(axis: int, begin: int, end: int, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array[(slice(None),) * axis + (slice(begin, end),)]
