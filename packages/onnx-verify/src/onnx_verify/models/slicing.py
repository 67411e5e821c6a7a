"""Cutting a model into pieces that run on their own."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, inliner

from onnx_verify.errors import ModelLoadError
from onnx_verify.models.model import LoadedModel, subgraphs, used_names
from onnx_verify.models.weights import Weight, weight_bytes
from onnx_verify.values.dtypes import onnx_dtype

FEED_SUFFIX = "@given"
"""Ends the name of a value that is given to a piece, so that the piece can produce the same value itself."""

_PASSED = "@out"
FUNCTION = "onnx_verify.function"
"""The metadata key that names the local function which a node was inlined from."""


def flatten_functions(model: LoadedModel) -> LoadedModel:
    """Return the model with its local functions inlined, for a call hides what goes wrong inside.

    The metadata of each node that comes from a function names that function.

    Raises:
        ModelLoadError: if a function cannot be inlined.
    """
    if not model.proto.functions:
        return model
    marked = onnx.ModelProto()
    marked.CopyFrom(model.proto)
    for function in marked.functions:
        for node in function.node:
            node.metadata_props.add(key=FUNCTION, value=f"{function.domain}::{function.name}")
    try:
        proto = inliner.inline_local_functions(marked)
    except Exception as error:
        raise ModelLoadError(f"the functions of {model.source} cannot be inlined: {error}") from error
    return LoadedModel(proto, model.weights, model.source)


class Graph:
    """The main graph of a model, indexed for slicing.

    Attributes:
        model: the model, without local functions.
        nodes: its nodes in topological order.
        producer: index of the node that makes each value.
        uses: the names that each node reads, those that its bodies capture included.
        constants: names of the initializers.
    """

    def __init__(self, model: LoadedModel) -> None:
        """Index the graph."""
        self.model = flatten_functions(model)
        graph = self.model.graph
        self.nodes: list[onnx.NodeProto] = list(graph.node)
        self.producer = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        self.uses = [used_names(node) for node in self.nodes]
        self.constants = {tensor.name for tensor in graph.initializer}
        self.constants |= {tensor.values.name for tensor in graph.sparse_initializer}
        self.inputs = [value.name for value in model.inputs]
        self.outputs = [value.name for value in graph.output]
        self.readers: dict[str, list[int]] = {}
        for index, names in enumerate(self.uses):
            for name in names:
                self.readers.setdefault(name, []).append(index)

    def weight_bytes(self, index: int) -> int:
        """Return the bytes of the large initializers that a node reads."""
        weights = self.model.weights
        return sum(weight_bytes(weights[name]) for name in self.uses[index] if name in weights)

    def behind(self, nodes: Iterable[int], held: Container[str]) -> list[int]:
        """Return some nodes and those before them that lead to them through values that are not held, in order."""
        found = set(nodes)
        pending = list(found)
        while pending:
            for name in self.uses[pending.pop()]:
                made = self.producer.get(name)
                if made is not None and name not in held and made not in found:
                    found.add(made)
                    pending.append(made)
        return sorted(found)

    def live_after(self, stop: int) -> list[str]:
        """Return the values made before node ``stop`` that a node from it on, or the caller, still needs."""
        finals = set(self.outputs)
        return [
            name
            for name, made in self.producer.items()
            if made < stop and (name in finals or any(reader >= stop for reader in self.readers.get(name, ())))
        ]


def piece(
    graph: Graph,
    nodes: Sequence[int],
    outputs: Iterable[str],
    feeds: Mapping[str, Any],
    given: Mapping[str, str] | None = None,
) -> LoadedModel:
    """Build the model that runs some nodes of a graph.

    Args:
        graph: where the nodes come from.
        nodes: their indices, in order.
        outputs: the values that the piece returns; made by the nodes.
        feeds: the values that the piece is given, by the name that it has in the piece; arrays or lists of
            them.
        given: values that are read under another name in the piece, which is how a piece can both read a
            given
            value and make its own.
    """
    source = graph.model
    built = onnx.GraphProto(name=source.graph.name or "piece")
    renames = dict(given or {})
    for index in nodes:
        node = graph.nodes[index]
        if renames.keys() & graph.uses[index]:
            node = renamed(node, renames)
        built.node.append(node)
    built.input.extend(value_info(name, value) for name, value in feeds.items())
    built.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    wanted = {name for index in nodes for name in graph.uses[index]} & graph.constants - renames.keys()
    built.initializer.extend(tensor for tensor in source.graph.initializer if tensor.name in wanted)
    built.sparse_initializer.extend(
        tensor for tensor in source.graph.sparse_initializer if tensor.values.name in wanted
    )
    weights: dict[str, Weight] = {name: source.weights[name] for name in wanted if name in source.weights}
    proto = onnx.ModelProto(ir_version=source.proto.ir_version, graph=built)
    proto.opset_import.extend(source.proto.opset_import)
    return LoadedModel(proto, weights, source.source)


def returning(model: LoadedModel, name: str) -> LoadedModel:
    """Return a model that gives one of its outputs only."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    del proto.graph.output[:]
    proto.graph.output.extend(value for value in model.graph.output if value.name == name)
    return LoadedModel(proto, model.weights, model.source)


def value_info(name: str, value: Any) -> onnx.ValueInfoProto:
    """Describe a value by its dtype and rank, so that a piece takes other sizes too."""
    if isinstance(value, list):
        code = onnx_dtype(np.asarray(value[0]).dtype) if value else onnx.TensorProto.FLOAT
        return helper.make_tensor_sequence_value_info(name, code, None)
    return helper.make_tensor_value_info(name, onnx_dtype(value.dtype), [None] * value.ndim)


def renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """Return a copy of a node that reads values by other names, in its bodies too."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for position, name in enumerate(copy.input):
        copy.input[position] = names.get(name, name)
    for body in subgraphs(copy):
        _rename_body(body, names)
    return copy


def _rename_body(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    outer = {name: other for name, other in names.items() if name not in own}
    for node in graph.node:
        for position, name in enumerate(node.input):
            node.input[position] = outer.get(name, name)
        for body in subgraphs(node):
            _rename_body(body, outer)
    for value in graph.output:
        value.name = outer.get(value.name, value.name)


def standalone(graph: onnx.GraphProto, model: LoadedModel, feeds: Mapping[str, Any]) -> LoadedModel:
    """Make a model of a control-flow body.

    Args:
        graph: the body.
        model: the model that it belongs to, for opset and initializers.
        feeds: values for the body's inputs and for what it captures, except initializers.
    """
    built = onnx.GraphProto()
    built.CopyFrom(graph)
    del built.input[:]
    built.input.extend(value_info(name, value) for name, value in feeds.items())
    taken = {tensor.name for tensor in built.initializer} | feeds.keys()
    captured = {name for node in graph.node for name in used_names(node)} | {v.name for v in graph.output}
    outer = [t for t in model.graph.initializer if t.name in captured and t.name not in taken]
    built.initializer.extend(outer)
    weights = {t.name: model.weights[t.name] for t in outer if t.name in model.weights}
    _make_outputs(built)
    proto = onnx.ModelProto(ir_version=model.proto.ir_version, graph=built)
    proto.opset_import.extend(model.proto.opset_import)
    return LoadedModel(proto, weights, model.source)


def passed_name(name: str) -> str | None:
    """Return the name in the body of a value that a standalone body passes on as it is, None for any other."""
    source, mark, _ = name.rpartition(_PASSED)
    return source if mark else None


def _make_outputs(graph: onnx.GraphProto) -> None:
    """Give each output a node of its own: one that is captured or fed as it is would not be a graph output."""
    made = {name for node in graph.node for name in node.output}
    names: list[str] = []
    for value in graph.output:
        if value.name in made and value.name not in names:
            names.append(value.name)
            continue
        passed = f"{value.name}{_PASSED}{len(names)}"
        graph.node.append(helper.make_node("Identity", [value.name], [passed], name=passed))
        names.append(passed)
    del graph.output[:]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
