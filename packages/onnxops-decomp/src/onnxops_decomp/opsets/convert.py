"""A model at another opset: nodes are read in the form of its opset, and the builder writes them at the wanted one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from onnxops_core import OnnxExporterError
from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.builder.parts import DEFAULT_RUNTIME
from onnxops_decomp.builder.scope import ModelContext
from onnxops_decomp.errors import LoweringError, UnsupportedOpsetError
from onnxops_decomp.files.model import ir_version_for
from onnxops_decomp.importing.binding import attribute_value, plain
from onnxops_decomp.importing.convert import read_model
from onnxops_decomp.importing.errors import ModelImportError
from onnxops_decomp.opsets.functions import specified_function
from onnxops_decomp.opsets.upgrades import RENAMED, find_upgrade
from onnxops_decomp.spec.inference import Dims
from onnxops_decomp.spec.schemas import NEWEST_OPSET, OLDEST_OPSET, OpSpec, op_spec

__all__ = ["convert_opset"]

_CONSTANT = 1024
"""Initializers of more elements are weights, whose contents decide nothing."""


def convert_opset(
    model: onnx.ModelProto | ir.Model | str | os.PathLike[str], opset: int, *, for_onnxruntime: bool = False
) -> ir.Model:
    """Return a model that computes the same at another opset of ONNX's own domain, older or newer.

    Inputs, outputs, initializers and nodes keep their names, inputs and outputs their dtypes and dimensions, and model,
    graph and nodes their metadata. Functions of the model are inlined, operators of other domains stay as they are.
    The initializers share the memory of those of the given model, which is left as it is.

    Args:
        model: A model of opset 7 or newer, or the path of one.
        opset: The wanted opset, 7 to 28.
        for_onnxruntime: Whether nodes that ONNX Runtime has no kernel for are written otherwise.

    Raises:
        ModelImportError: If the model cannot be read, or is older than opset 7.
        UnsupportedOpsetError: If the wanted opset cannot express a node.
        LoweringError: If a node does not fit its operator, or has no form at the wanted opset.
    """
    try:
        return _converted(read_model(model), opset, for_onnxruntime)
    except OnnxExporterError:
        raise
    except Exception as error:  # whatever reading tensors and types of a broken file raises
        raise ModelImportError(f"The model cannot be converted: {type(error).__name__}: {error}") from error


def _converted(read: ir.Model, opset: int, for_onnxruntime: bool) -> ir.Model:
    source = read.opset_imports.get("", read.opset_imports.get("ai.onnx", opset))
    if not OLDEST_OPSET <= source <= NEWEST_OPSET:
        raise ModelImportError(f"The model is of opset {source}; supported are {OLDEST_OPSET} to {NEWEST_OPSET}.")
    if read.functions:
        copied = ir.from_proto(ir.to_proto(read))
        read = InlinePass()(copied).model
    context = ModelContext(opset, runtime=DEFAULT_RUNTIME.get() if for_onnxruntime else None)
    versions = {domain: version for domain, version in read.opset_imports.items() if domain not in ("", "ai.onnx")}
    graph = _GraphConversion(OpBuilder(opset, context=context), source, versions).whole(read.graph)
    return _like(read, graph, opset)


def _like(read: ir.Model, graph: ir.Graph, opset: int) -> ir.Model:
    """Return a model of a graph that says of itself what another says."""
    graph.doc_string = read.graph.doc_string
    graph.metadata_props.update(read.graph.metadata_props)
    return ir.Model(
        graph,
        ir_version=ir_version_for(opset),
        producer_name=read.producer_name,
        producer_version=read.producer_version,
        domain=read.domain,
        model_version=read.model_version,
        doc_string=read.doc_string,
        metadata_props=dict(read.metadata_props),
    )


class _GraphConversion:
    """Writes one graph of a model: the main one, or a body of control flow.

    Args:
        op: Builder of the graph.
        source: Opset of the model that is read.
        versions: Opset of each other domain.
        parent: The graph around a body, whose values the body may read.
    """

    def __init__(
        self, op: OpBuilder, source: int, versions: Mapping[str, int], parent: _GraphConversion | None = None
    ) -> None:
        self.op, self.source, self.versions, self.parent = op, source, versions, parent
        self.values: dict[ir.Value, ir.Value | None] = {}
        self.weights: list[ir.Value] = parent.weights if parent else []
        self.arguments: Mapping[str, ir.Attr] = parent.arguments if parent else {}

    def whole(self, graph: ir.Graph) -> ir.Graph:
        """Return the main graph."""
        names = self.op.context.names
        for value in (*graph.inputs, *graph.outputs, *graph.initializers.values()):
            names.reserve(value.name or "")
        for node in graph:
            names.reserve(node.name or "")
            for value in node.outputs:
                names.reserve(value.name or "")
        initializers = [value for value in graph.initializers.values() if not value.is_graph_input()]
        for value in graph.inputs:
            made = self.values[value] = _described(value, value.name)
            self.op.scope.inputs.append(made)
            if value.const_value is not None:
                made.const_value = value.const_value
                self.weights.append(made)
        self.initializers(initializers)
        self.nodes(graph)
        results = [self.find(value) for value in graph.outputs]
        made_graph = self.op.graph(results, name=graph.name or "graph", initializers=self.weights, constants=True)
        for index, value in enumerate(graph.outputs):
            kept = results[index].const_value is not None and results[index].name == value.name
            if value.is_graph_input() or kept:  # one value is input or constant and output, so that both have its name
                copy = made_graph.outputs[index].producer()
                assert copy is not None
                made_graph.remove(copy, safe=False)
                made_graph.outputs[index] = results[index]
                continue
            result = made_graph.outputs[index]
            if results[index].name == value.name and results[index] is not result:
                results[index].name = names.new(value.name or "output")
            result.name = value.name
            result.type, result.shape = value.type or result.type, value.shape or result.shape
            result.doc_string = value.doc_string
            result.metadata_props.update(value.metadata_props)
        return made_graph

    def initializers(self, values: Iterable[ir.Value]) -> None:
        for value in values:
            tensor = value.const_value
            if tensor is None:
                raise ModelImportError(f"The initializer {value.name!r} has no data.")
            made = self.values.get(value) or _described(value, value.name)
            self.values[value] = made
            made.const_value, made.type = tensor, ir.TensorType(tensor.dtype)
            made.shape = ir.Shape(tensor.shape.numpy())
            if tensor.size <= _CONSTANT and tensor.dtype != ir.DataType.STRING:
                self.op.context.constants.adopt(made, tensor.numpy())
            else:
                if isinstance(tensor, ir.TensorProtoTensor):
                    tensor.numpy()  # a view, which fails where the tensor claims more than the file holds
                self.weights.append(made)

    def operand(self, value: ir.Value | None) -> ir.Value | None:
        """Return what stands for an input of a node; None for one that is absent, also as an argument of a function."""
        conversion: _GraphConversion | None = self
        while conversion is not None and value is not None:
            if value in conversion.values:
                return conversion.values[value]
            conversion = conversion.parent
        if value is None:
            return None
        raise ModelImportError(f"Nothing produces the value {value.name!r}.")

    def find(self, value: ir.Value) -> ir.Value:
        """Return what stands for a value of the model that is read."""
        found = self.operand(value)
        if found is None:
            raise ModelImportError(f"Nothing produces the value {value.name!r}.")
        return found

    # Nodes

    def nodes(self, nodes: Iterable[ir.Node]) -> None:
        for node in nodes:
            try:
                self.node(node)
            except OnnxExporterError as error:
                raise _located(error, node) from error
            except Exception as error:
                raise _located(LoweringError(f"{type(error).__name__}: {error}"), node) from error

    def node(self, node: ir.Node) -> None:
        """Write what a node is at the wanted opset."""
        before = len(self.op.scope.nodes)
        given = self.resolved(node)
        attributes = {name: self.attribute(node, each) for name, each in given.items()}
        inputs = [self.operand(value) for value in node.inputs]
        count = max((index + 1 for index, value in enumerate(node.outputs) if value.name), default=1)
        if node.domain not in ("", "ai.onnx"):
            results: Sequence[ir.Value] = self.foreign(node, inputs, given, attributes)
        elif node.op_type == "Constant":
            results = (self.constant(node, attributes),)
        else:
            results = self.standard_or_composed(node, inputs, given, attributes, count)
        for made in self.op.scope.nodes[before:]:
            made.metadata_props.update(node.metadata_props)
            made.doc_string = node.doc_string
        written = set(self.op.scope.nodes[before:])
        self.enter(node, results, written)

    def enter(self, node: ir.Node, results: Sequence[ir.Value], written: set[ir.Node]) -> None:
        """Let the results stand for the outputs of a node, under its names."""
        names, is_main = self.op.context.names, self.parent is None
        for value, result in zip(node.outputs, results, strict=False):
            self.values[value] = result
            producer = result.producer()
            if not value.name or producer not in written or producer is None:
                continue
            result.name = value.name if is_main else names.reserve(value.name)
            if result.type is None:
                result.type = value.type
            if result.shape is None:
                result.shape = value.shape
            if node.name and result is results[0]:
                producer.name = node.name if is_main else names.reserve(node.name)

    def resolved(self, node: ir.Node) -> dict[str, ir.Attr]:
        """Return the attributes of a node, those that name an attribute of a function filled in."""
        found = {}
        for name, attribute in node.attributes.items():
            if attribute.is_ref():
                given = self.arguments.get(attribute.ref_attr_name or "")
                if given is None:
                    continue
                attribute = ir.Attr(name, given.type, given.value)
            found[name] = attribute
        return found

    def attribute(self, node: ir.Node, attribute: ir.Attr) -> Any:
        """Return an attribute in the form that the builder takes, bodies converted."""
        if attribute.type == ir.AttributeType.GRAPH:
            return self.body(node, attribute.as_graph())
        return attribute_value(attribute)

    def constant(self, node: ir.Node, attributes: dict[str, Any]) -> ir.Value:
        if len(attributes) != 1:
            raise ModelImportError("A Constant has one attribute.")
        ((kind, value),) = attributes.items()
        if kind == "sparse_value":
            raise LoweringError("Sparse constants are not converted.")
        name = node.outputs[0].name or "constant"
        if kind != "value":
            dtypes = {"float": ir.DataType.FLOAT, "int": ir.DataType.INT64, "string": ir.DataType.STRING}
            value = ir.tensor(value, dtype=dtypes[kind.removeprefix("value_").removesuffix("s")], name=name)
        own = name if self.parent is None else self.op.context.names.reserve(name)
        made = ir.Value(name=own, const_value=value)
        source = ir.Value(name=own, const_value=value)
        self.values[source] = made
        self.initializers([source])
        return made

    def foreign(
        self, node: ir.Node, inputs: list[ir.Value | None], given: dict[str, ir.Attr], attributes: dict[str, Any]
    ) -> tuple[ir.Value, ...]:
        """Write a node of another domain as it is."""
        kept = {
            name: ir.Attr(name, ir.AttributeType.GRAPH, attributes[name])
            if each.type == ir.AttributeType.GRAPH
            else each
            for name, each in given.items()
        }
        dtypes = [value.dtype for value in node.outputs]
        version = self.versions.get(node.domain, 1)
        results = self.op.emit_custom(node.domain, node.op_type, inputs, kept, dtypes, version=version)
        for value, result in zip(node.outputs, results, strict=True):
            result.name = result.name if value.name else ""
            result.type, result.shape = value.type, value.shape
        return results

    def standard_or_composed(
        self,
        node: ir.Node,
        inputs: list[ir.Value | None],
        given: dict[str, ir.Attr],
        attributes: dict[str, Any],
        count: int,
    ) -> Sequence[ir.Value]:
        """Write a node of ONNX's own domain, if need be as what the specification says that it is composed of."""
        before = len(self.op.scope.nodes)
        try:
            return self._checked(self.standard(node.op_type, inputs, attributes, count), before)
        except LoweringError:
            body = specified_function(node, self.source, inputs, given)
            if body is None:
                raise
            defaults = {name: each for name, each in body.attributes.items() if each.value is not None}
            version = body.opset_imports.get("", self.source)
            child = _GraphConversion(self.op, version, {**self.versions, **body.opset_imports}, self)
            child.arguments = _specified_defaults(node.op_type, self.source) | defaults | given
            operands = [*inputs, *[None] * len(body.inputs)]
            child.values.update(zip(body.inputs, operands, strict=False))
            if not child.takes(body):
                raise
            return self._checked([child.find(value) for value in body.outputs[:count]], before)

    def takes(self, nodes: Iterable[ir.Node]) -> bool:
        """Write nodes; tell whether the wanted opset has all of them."""
        try:
            self.nodes(nodes)
        except OnnxExporterError:
            return False
        return True

    def _checked(self, results: Sequence[ir.Value], before: int) -> Sequence[ir.Value]:
        """Refuse nodes that take a sequence, an optional or a map where the wanted opset has tensors alone."""
        for node in self.op.scope.nodes[before:]:
            for index, value in enumerate(node.inputs):
                if value is None or value.type is None or isinstance(value.type, ir.TensorType) or node.domain:
                    continue
                formals = onnx.defs.get_schema(node.op_type, self.op.opset).inputs
                if _specified_type(value.type) not in formals[min(index, len(formals) - 1)].types:
                    raise UnsupportedOpsetError(node.op_type, self.op.opset, lowest=None, reason=f"of {value.type}")
        return results

    def standard(
        self, op_type: str, inputs: list[ir.Value | None], attributes: dict[str, Any], count: int
    ) -> Sequence[ir.Value]:
        """Write a node of ONNX's own domain."""
        source, target = self.source, self.op.opset
        spec = op_spec(op_type, source)
        if spec is None:
            raise ModelImportError(f"Opset {source} has no such operator.")
        unknown = attributes.keys() - spec.attributes.keys()
        if unknown:
            raise ModelImportError(f"It has an attribute {min(unknown)!r}, which its operator does not have.")
        if target <= source:
            return _emitted(self.op.at(source), op_type, count, inputs, attributes)
        whole = {name: plain(default) for name, default in spec.defaults.items() if default is not None} | attributes
        upgraded = find_upgrade(op_type, source, target)
        if upgraded is not None:
            made = upgraded(self.op, *inputs, _outputs=count, **whole)
            return (made,) if isinstance(made, ir.Value) else tuple(made)
        wanted = op_spec(op_type, target)
        if wanted is not None and attributes.keys() <= wanted.attributes.keys():
            moved = set(whole) - wanted.attributes.keys()
            if not any(RENAMED.get((op_type, name), name) in _input_names(wanted) for name in moved):
                return _emitted(self.op.at(target), op_type, count, inputs, attributes)
        newest = op_spec(op_type, NEWEST_OPSET)
        if newest is None:
            raise UnsupportedOpsetError(op_type, target, lowest=None)
        inputs, attributes = _by_names(self.op, spec, newest, inputs, whole)
        return _emitted(self.op, op_type, count, inputs, attributes)

    # Bodies

    def body(self, node: ir.Node, graph: ir.Graph) -> ir.Graph:
        """Return a body of control flow."""
        child = _GraphConversion(self.op.subgraph(), self.source, self.versions, self)
        child.initializers(_renamed(self.op, graph.initializers.values(), child))
        given = self.given(node, len(graph.inputs))
        for index, value in enumerate(graph.inputs):
            if value in child.values:
                raise LoweringError(f"The input {value.name!r} of a body has a default, which is not converted.")
            like = given[index] if index < len(given) else None
            type_ = value.type or (None if like is None else like.type)
            dtype = type_.dtype if isinstance(type_, ir.TensorType) else None
            made = child.op.input(value.name or "input", dtype, _ranked(value))
            if dtype is None:
                made.type = type_
            child.values[value] = made
        child.nodes(graph)
        results = [child.find(value) for value in graph.outputs]
        made_graph = child.op.graph(results, name=graph.name or "body")
        for value, result in zip(graph.outputs, made_graph.outputs, strict=True):
            result.type = result.type or value.type
        return made_graph

    def given(self, node: ir.Node, count: int) -> list[ir.Value | None]:
        """Return the values of the model whose types the inputs of a body have."""
        known = [self.operand(value) for value in node.inputs]
        return [None, None, *known[2:]] if node.op_type == "Loop" else known if node.op_type == "Scan" else []


def _renamed(op: OpBuilder, values: Iterable[ir.Value], child: _GraphConversion) -> list[ir.Value]:
    """Return initializers of a body, which become some of the model, under names of their own."""
    listed = list(values)
    for value in listed:
        child.values[value] = _described(value, op.context.names.reserve(value.name or "constant"))
    return listed


def _described(value: ir.Value, name: str | None) -> ir.Value:
    """Return a new value of the same type, shape and metadata."""
    made = ir.Value(name=name, type=value.type, shape=value.shape, doc_string=value.doc_string)
    made.metadata_props.update(value.metadata_props)
    return made


def _ranked(value: ir.Value) -> Dims | None:
    """Return the dimensions of a body's input; names of sizes say nothing there of the values around it."""
    if value.shape is None:
        return None
    return tuple(size if isinstance(size, int) else ir.SymbolicDim(None) for size in value.shape)


def _emitted(
    op: OpBuilder, op_type: str, count: int, inputs: Sequence[Any], attributes: Mapping[str, Any]
) -> Sequence[ir.Value]:
    spec = op_spec(op_type, op.dialect)
    if count == 1 and spec is not None and spec.min_outputs <= 1:
        return (op.emit(op_type, *inputs, **attributes),)
    return op.emit_many(op_type, count, *inputs, **attributes)


def _specified_defaults(op_type: str, opset: int) -> dict[str, ir.Attr]:
    spec = op_spec(op_type, opset)
    assert spec is not None
    defaults = {name: plain(value) for name, value in spec.defaults.items() if value is not None}
    return {name: ir.Attr(name, spec.attributes[name], value) for name, value in defaults.items()}


def _specified_type(type_: ir.TypeProtocol) -> str:
    """Return a type as the specification writes it, such as ``seq(tensor(float))``."""
    return str(type_).lower().replace("sequence(", "seq(")


def _input_names(spec: OpSpec) -> set[str]:
    return {formal.name for formal in spec.inputs}


def _by_names(
    op: OpBuilder, spec: OpSpec, newest: OpSpec, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the operands of the newest form, some of which are attributes of the older one."""
    by_name: dict[str, Any] = {}
    for index, value in enumerate(inputs):
        formal = spec.formal_input(index)
        if formal.variadic:
            return list(inputs), dict(attributes)
        by_name[formal.name] = value
    kept: dict[str, Any] = {}
    for name, value in attributes.items():
        target = RENAMED.get((spec.op_type, name), name)
        if name in newest.attributes:
            kept[name] = value
        elif target in _input_names(newest):
            by_name[target] = [value] if target == "K" else value
        else:
            raise LoweringError(f"ONNX {spec.op_type}'s attribute {name!r} has no form in newer opsets.")
    return [by_name.get(formal.name) for formal in newest.inputs], kept


def _located(error: OnnxExporterError, node: ir.Node) -> OnnxExporterError:
    """Return an error that names the node, unless it names one already."""
    if getattr(error, "node", ""):
        return error
    name = node.name or next((output.name for output in node.outputs if output.name), "") or ""
    op_type = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    text = f"{op_type} node {name!r}: {error}"
    if isinstance(error, UnsupportedOpsetError):
        located: OnnxExporterError = UnsupportedOpsetError(
            error.op_type, error.opset, lowest=error.lowest, reason=error.reason, operator=f"{op_type} node {name!r}"
        )
    else:
        located = ModelImportError(text) if isinstance(error, ModelImportError) else LoweringError(text)
    located.node = name  # type: ignore[attr-defined]
    return located
