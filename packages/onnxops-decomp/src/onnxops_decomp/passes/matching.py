"""What the passes ask of a graph, and how they put one node in place of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

__all__ = [
    "constant",
    "dims",
    "drop_unused_weights",
    "hand_through",
    "nodes_in",
    "operand",
    "other_operand",
    "producer",
    "replace",
    "replace_outputs",
    "sole_user",
    "sweep",
]


def nodes_in(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes of a graph and of the graphs inside it, as ``all_nodes`` does at several times the cost."""
    found: list[ir.Node] = []
    for node in graph:
        found.append(node)
        # Most nodes have no attribute or one.
        for attribute in node.attributes.data.values():
            if attribute.type is ir.AttributeType.GRAPH and attribute.value is not None:
                found += nodes_in(attribute.value)
            elif attribute.type is ir.AttributeType.GRAPHS and attribute.value is not None:
                for inner in attribute.value:
                    found += nodes_in(inner)
    return found


def producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """Return the node that computes ``value`` if it is an ``op_type`` of the default domain."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op_type and node.domain == "" else None


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input of a node; None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def other_operand(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """Return the operand of a binary node that is not ``value``, or None if neither or both are."""
    first, second = node.inputs[:2]
    if (first is value) == (second is value):
        return None
    return second if first is value else first


def sole_user(value: ir.Value) -> ir.Node | None:
    """Return the one node that uses ``value``, or None if there are several uses or it is an output."""
    uses = value.uses()
    return next(iter(uses)).node if len(uses) == 1 and not value.is_graph_output() else None


def constant(value: ir.Value | None, largest: int = 64) -> npt.NDArray[Any] | None:
    """Return the contents of a small initializer that is not a weight, else None.

    Args:
        value: What may be one.
        largest: How many elements it may have.
    """
    if value is None or not value.is_initializer() or value.const_value is None or value.const_value.size > largest:
        return None
    if isinstance(value.const_value, ir.tensor_adapters.TorchTensor):
        return None
    return np.asarray(value.const_value.numpy())


def number(graph: ir.Graph, value: float, name: str) -> ir.Value:
    """Return a new initializer that holds one FLOAT.

    Args:
        graph: Where it is added.
        value: The number.
        name: A name that no other value has.
    """
    tensor = ir.tensor(np.array(value, np.float32), name=name)
    made = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]), const_value=tensor)
    graph.initializers.add(made)
    return made


def dims(value: ir.Value | None) -> tuple[int | str | None, ...] | None:
    """Return the dimensions of ``value``: ints, or the texts of symbolic ones."""
    if value is None or value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape.dims)


def replace(
    old: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any], output: ir.Value
) -> ir.Node:
    """Compute ``output`` by a new node, placed where ``old``, its producer, stands.

    What only the replaced nodes used is left without uses and goes with :func:`sweep`.
    """
    new = ir.Node(
        "",
        op_type,
        inputs,
        [ir.Attr(name, _kind(value), value) for name, value in attributes.items()],
        num_outputs=1,
        name=f"{op_type}_of_{old.name}",
        metadata_props=dict(old.metadata_props),
    )
    replace_outputs(old, new, {0: output})
    sweep(old)
    return new


def replace_outputs(old: ir.Node, new: ir.Node, outputs: Mapping[int, ir.Value]) -> None:
    """Put a node behind ``old`` and let it compute values that other nodes gave; those stay where they are.

    Args:
        old: Where the new node goes; it and all operands of the new node have to stand before all uses.
        new: The new node. Without a name or metadata it takes those of ``old``.
        outputs: For the outputs of the new node, the values that they stand for from now on; the others have no name.
    """
    graph = old.graph
    assert graph is not None
    new.name = new.name or f"{new.op_type}_of_{old.name}"
    for key, text in old.metadata_props.items():
        new.metadata_props.setdefault(key, text)
    graph.insert_after(old, new)
    for index, result in enumerate(new.outputs):
        if (output := outputs.get(index)) is None:
            result.name = ""
            continue
        result.type, result.shape, name = output.type, output.shape, output.name
        ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
        output.name = None
        result.name = name


def hand_through(node: ir.Node, op_type: str) -> None:
    """Put a Sum or Max of one operand, which is that operand, in front of the first operand of a node."""
    value, graph = node.inputs[0], node.graph
    assert value is not None
    assert graph is not None
    between = ir.node(op_type, [value], name=f"{node.name}_apart")
    between.metadata_props.update(node.metadata_props)
    kept = between.outputs[0]
    kept.name, kept.type, kept.shape = f"{value.name}.{node.name}", value.type, value.shape
    graph.insert_before(node, between)
    node.replace_input_with(0, kept)


def sweep(node: ir.Node) -> None:
    """Remove a node if nothing uses its results, and with it what then has no use either."""
    pending = [node]
    while pending:
        candidate = pending.pop()
        graph = candidate.graph
        if graph is None or any(output.uses() or output.is_graph_output() for output in candidate.outputs):
            continue
        sources = [source for value in candidate.inputs if value is not None and (source := value.producer())]
        graph.remove(candidate, safe=True)
        pending.extend(sources)


def drop_unused_weights(graph: ir.Graph) -> None:
    """Remove the initializers that nothing uses."""
    initializers = graph.initializers
    for name in [name for name, value in initializers.items() if not value.uses() and not value.is_graph_output()]:
        del initializers[name]


def _kind(value: Any) -> ir.AttributeType:
    return ir.AttributeType.FLOAT if isinstance(value, float) else ir.AttributeType.INT
