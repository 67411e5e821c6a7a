"""Products of one value by several weights as one product, whose weights are put together when they are written."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxops_decomp.passes.derived import DerivedTensor
from onnxops_decomp.passes.matching import dims, operand, producer, replace_outputs, sweep
from onnxops_decomp.runtimes.onnxruntime.domain import DOMAIN

__all__ = ["Product", "divided", "packed_products", "product_of", "split_products"]

# What works on the heads of queries and keys before attention reads them.
_ON_HEADS = {"Reshape", "Transpose", "RMSNormalization", "LayerNormalization", "RotaryEmbedding", "Clip"}


def packed_products(graph: ir.Graph, before: ir.Node, values: Sequence[ir.Value]) -> ir.Value | None:
    """Return several products, biases included, beside each other, or None if they are not products of one value.

    Args:
        graph: Where the weights are.
        before: The node before which the product is computed.
        values: The products (B, S, N), of weights that nothing else reads.
    """
    products = [each for value in values if (each := product_of(value)) is not None]
    if len(products) != len(values) or len({each.kind for each in products}) != 1:
        return None
    first, like, shape = products[0].node, values[0], dims(values[0])
    widths = [(dims(value) or (None,))[-1] for value in values]
    if shape is None or not all(isinstance(width, int) for width in widths):
        return None
    total = sum(width for width in widths if isinstance(width, int))
    joined = [_joined(graph, list(each), first.op_type) for each in zip(*(p.weights for p in products), strict=True)]
    inputs = list(first.inputs)
    for place, weight in zip(products[0].places, joined, strict=False):
        inputs[place] = weight
    attributes = [ir.AttrInt64("N", total) if name == "N" else each for name, each in first.attributes.items()]
    node = ir.Node(first.domain, first.op_type, inputs, attributes, num_outputs=1, version=first.version)
    wide = ir.Shape([*shape[:2], total])
    _insert(graph, before, node, f"{like.name}.packed", like, wide)
    if products[0].bias is None:
        return node.outputs[0]
    add = ir.Node("", "Add", [node.outputs[0], joined[-1]], num_outputs=1)
    _insert(graph, before, add, f"{like.name}.packed.biased", like, wide)
    return add.outputs[0]


def divided(values: Sequence[ir.Value]) -> ir.Value | None:
    """Return the value (B, S, N) whose columns, all of them in their order, several values are by Slice; else None."""
    sources, end = set[ir.Value | None](), 0
    for value in values:
        columns = _columns(value)
        if columns is None or columns[1] != end:
            return None
        source, _, end = columns
        sources.add(source)
    whole = sources.pop()
    width = None if whole is None or sources else (dims(whole) or (None,))[-1]
    return whole if width == end else None


def _columns(value: ir.Value) -> tuple[ir.Value, int, int] | None:
    """Return of which value (B, S, N) another one is some columns by Slice, and their bounds."""
    node = producer(value, "Slice")
    source = None if node is None else operand(node, 0)
    if node is None or source is None or len(dims(source) or ()) != 3 or len(node.inputs) < 4:
        return None
    numbers = [None if each is None or each.const_value is None else each.const_value for each in node.inputs[1:]]
    found = [None if each is None else each.numpy().tolist() for each in numbers]
    start, end, axis, step = (*found, [1])[:4]
    if step != [1] or axis not in ([2], [-1]) or start is None or end is None:
        return None
    width = (dims(source) or (None,))[-1]
    if not isinstance(width, int) or start[0] < 0 or end[0] < 0:
        return None
    return source, int(start[0]), min(int(end[0]), width)


def split_products(graph: ir.Graph, values: Sequence[ir.Value]) -> None:
    """Compute the products that several values come from as one, and give each its columns.

    One product by a wide weight is faster than several by narrow ones, by more than dividing it costs.

    Args:
        graph: Where the values are computed.
        values: What is computed, head by head, from one product each; if that is not so, nothing changes.
    """
    products = [_source(value) for value in values]
    if len(set(products)) < len(values):  # one of them has none, or two have the same
        return
    results = [value for value in products if value is not None]
    places = {value.producer() for value in results}
    first = next((node for node in graph if node in places), None)
    packed = None if first is None else packed_products(graph, first, results)
    joined = None if packed is None else packed.producer()
    if packed is None or joined is None:
        return
    inputs, axis = [packed, _widths(graph, results)], ir.AttrInt64("axis", -1)
    split = ir.Node("", "Split", inputs, [axis], num_outputs=len(results), name=f"{packed.name}.split")
    replace_outputs(joined, split, dict(enumerate(results)))
    for node in places:
        if node is not None:
            sweep(node)


def _widths(graph: ir.Graph, values: Sequence[ir.Value]) -> ir.Value:
    """Return how many columns values have, as an initializer that all layers read."""
    widths = [int(width) for value in values if isinstance(width := (dims(value) or (None,))[-1], int)]
    name = f"widths_{'_'.join(map(str, widths))}"
    found = graph.initializers.get(name)
    if found is None:
        tensor = ir.tensor(np.array(widths, np.int64), name=name)
        found = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape([len(widths)]), const_value=tensor)
        graph.initializers.add(found)
    return found


def _source(value: ir.Value) -> ir.Value | None:
    """Return the product whose columns become the heads of a value."""
    found: ir.Value | None = value
    while found is not None and product_of(found) is None:
        node = found.producer()
        found = None if node is None or node.domain or node.op_type not in _ON_HEADS else operand(node, 0)
    return found


def _insert(graph: ir.Graph, before: ir.Node, node: ir.Node, name: str, like: ir.Value, shape: ir.Shape) -> None:
    result = node.outputs[0]
    node.name, result.name, result.type, result.shape = name, name, like.type, shape
    node.metadata_props.update(before.metadata_props)
    graph.insert_before(before, node)


def _joined(graph: ir.Graph, values: list[ir.Value], op_type: str) -> ir.Value:
    """Return weights beside each other."""
    axis = -1 if op_type == "MatMul" else 0
    name = f"{values[0].name}.packed"
    tensors = [value.const_value for value in values if value.const_value is not None]
    sizes = [list(tensor.shape.numpy()) for tensor in tensors]
    whole = list(sizes[0])
    whole[axis] = sum(each[axis] for each in sizes)
    tensor = DerivedTensor(
        partial(_beside, axis), tensors, name=name, dtype=tensors[0].dtype, shape=ir.Shape(whole),
        by_rows=axis == -1 and len(whole) > 1,
    )  # fmt: skip
    value = ir.Value(name=name, type=values[0].type, shape=ir.Shape(whole), const_value=tensor)
    graph.initializers.add(value)
    return value


def _beside(axis: int, *arrays: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    return np.concatenate(arrays, axis)


@dataclasses.dataclass(frozen=True)
class Product:
    """A product with weights that nothing else reads, and a bias behind it.

    Attributes:
        node: A MatMul or MatMulNBits.
        places: Where its weights are among its inputs.
        bias: What an Add puts to the product, if there is one.
    """

    node: ir.Node
    places: tuple[int, ...]
    bias: ir.Value | None

    @property
    def weights(self) -> list[ir.Value]:
        """The weights of the node, and the bias."""
        found = [self.node.inputs[place] for place in self.places]
        return [value for value in (*found, self.bias) if value is not None]

    @property
    def kind(self) -> tuple[object, ...]:
        """What is the same for products that can become one."""
        own = {name: attribute.value for name, attribute in self.node.attributes.items() if name != "N"}
        return (self.node.op_type, id(self.node.inputs[0]), self.places, self.bias is None, tuple(sorted(own.items())))


def product_of(value: ir.Value) -> Product | None:
    """Return how a value is a product, or None if it is not one by weights that nothing else reads."""
    bias, add = None, producer(value, "Add")
    if add is not None:
        biases = [each for each in add.inputs if each is not None and each.is_initializer()]
        others = [each for each in add.inputs if each is not None and not each.is_initializer()]
        if len(biases) != 1 or dims(biases[0]) != ((dims(value) or (None,))[-1],):
            return None
        bias, value = biases[0], others[0]
    node = value.producer()
    if node is None or (node.domain, node.op_type) not in (("", "MatMul"), (DOMAIN, "MatMulNBits")):
        return None
    places = tuple(place for place, each in enumerate(node.inputs) if place and each is not None)
    result = Product(node, places, bias)
    # Zeros of four bits are packed in pairs, which do not join where their number is odd.
    if node.op_type == "MatMulNBits" and not set(places) <= {1, 2, 5}:
        return None
    ready = all(w.is_initializer() and w.const_value is not None and len(w.uses()) == 1 for w in result.weights)
    is_matrix = node.op_type != "MatMul" or len(dims(result.weights[0]) or ()) == 2
    return result if ready and is_matrix else None
