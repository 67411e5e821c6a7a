"""Loading a model safely: the graph without its large weights, and the weights on demand."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import helper

from onnx_verify.errors import ModelLoadError
from onnx_verify.models.external_files import resolve_external
from onnx_verify.models.weights import (
    BytesWeight,
    IrWeight,
    ProtoWeight,
    Weight,
    check_payload,
    external_weight,
    payload_size,
    tensor_proto,
    tensor_values,
)
from onnx_verify.values.dtypes import is_known

if TYPE_CHECKING:
    from collections.abc import Iterator

INLINE_LIMIT = 4096
"""Initializers up to this many bytes stay in the graph: shapes and axes, which runtimes want to see early."""

_PROTO_LIMIT = 2**31 - 1

ModelLike = onnx.ModelProto | ir.Model | str | Path
"""What :func:`load_model` takes."""


@dataclass(frozen=True)
class ValueSpec:
    """One graph input or output.

    Attributes:
        name: its name.
        code: element type of a tensor, None for a sequence or an optional.
        shape: dimensions of a tensor (int, name, or None where unknown), None where nothing is known.
        kind: ``"tensor"``, ``"sequence"``, or for an optional what it may hold, such as ``"optional tensor"``.
    """

    name: str
    code: int | None
    shape: tuple[int | str | None, ...] | None
    kind: str = "tensor"

    @property
    def optional(self) -> bool:
        """Tell whether it may be absent."""
        return self.kind.startswith("optional")


@dataclass
class LoadedModel:
    """A model whose large weights are kept beside the graph.

    Attributes:
        proto: the graph; each large initializer is a header there, marked as external data.
        weights: those initializers by name.
        source: where it came from, for messages.
    """

    proto: onnx.ModelProto
    weights: dict[str, Weight] = field(default_factory=dict)
    source: str = "model"

    @property
    def graph(self) -> onnx.GraphProto:
        """The main graph."""
        return self.proto.graph

    @property
    def inputs(self) -> tuple[ValueSpec, ...]:
        """The inputs that a caller has to give: those without an initializer."""
        given = {tensor.name for tensor in self.graph.initializer}
        return tuple(value_spec(value) for value in self.graph.input if value.name not in given)

    @property
    def outputs(self) -> tuple[ValueSpec, ...]:
        """The graph outputs."""
        return tuple(value_spec(value) for value in self.graph.output)

    @property
    def opset(self) -> int:
        """The version of the default domain, 0 if the model imports none."""
        return max((e.version for e in self.proto.opset_import if e.domain in ("", "ai.onnx")), default=0)

    def initializer_values(self, name: str) -> Any:
        """Return the values of an initializer of the main graph, None if none has that name."""
        if name in self.weights:
            return self.weights[name].load()
        for tensor in self.graph.initializer:
            if tensor.name == name:
                return tensor_values(tensor)
        return None

    def to_proto(self) -> onnx.ModelProto:
        """Return the whole model with its weights inside."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        for tensor in proto.graph.initializer:
            if tensor.name in self.weights:
                tensor.CopyFrom(tensor_proto(self.weights[tensor.name].load(), tensor.name))
        return proto


def is_model_like(value: object) -> TypeGuard[ModelLike | LoadedModel]:
    """Tell whether :func:`load_model` takes the value (a path need not exist)."""
    return isinstance(value, (onnx.ModelProto, ir.Model, str, Path, LoadedModel))


def load_model(source: ModelLike | LoadedModel) -> LoadedModel:
    """Load a model without trusting it.

    Args:
        source: a path to an ``.onnx`` file, a ModelProto or an ir.Model (neither is changed).

    Raises:
        UnsafeModelError: if it refers to data outside its folder.
        ModelLoadError: if it cannot be read or its graph is broken: not topologically sorted (which a cycle
            never is), names defined twice, tensors whose data does not fit their shape.
    """
    if isinstance(source, LoadedModel):
        return source
    try:
        loaded = _read(source)
        _check_text(loaded.proto)
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"the model holds a name that is not UTF-8 text: {error}") from error
    if not loaded.graph.output:
        raise ModelLoadError(f"{loaded.source} has no graph outputs; it is not a complete ONNX model")
    check_graph(loaded.graph, set(), loaded.source)
    _check_functions(loaded.proto, loaded.source)
    return loaded


def _read(source: ModelLike) -> LoadedModel:
    if isinstance(source, ir.Model):
        return _from_ir(source)
    if isinstance(source, onnx.ModelProto):
        return _from_proto(source)
    return _from_file(Path(source))


def _check_text(message: Any) -> None:
    """Read every text once: protobuf decodes it only then, and raises UnicodeDecodeError if it cannot."""
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None:
            continue
        for part in [value] if hasattr(value, "ListFields") else value:
            _check_text(part)


def _from_file(path: Path) -> LoadedModel:
    try:
        size = path.stat().st_size
        if size > _PROTO_LIMIT:
            raise ModelLoadError(f"{path} has {size} bytes; a protobuf file holds at most {_PROTO_LIMIT}")
        data = path.read_bytes()
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror or error}") from error
    proto = parse_model(data, str(path))
    base = path.parent
    loaded = LoadedModel(proto, source=str(path))
    for tensor in proto.graph.initializer:
        _detach_owned(loaded, tensor, base)
    for tensor in _nested_tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            values = external_weight(tensor, base).load()
            tensor.CopyFrom(tensor_proto(values, tensor.name))
    return loaded


def parse_model(data: bytes, source: str) -> onnx.ModelProto:
    """Parse the bytes of a model file.

    Raises:
        ModelLoadError: if they are not a ModelProto with a graph.
    """
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{source} is not an ONNX model, or is cut off: {error}") from error
    if not proto.HasField("graph"):
        raise ModelLoadError(f"{source} holds no graph; it is not an ONNX model")
    return proto


def _detach_owned(loaded: LoadedModel, tensor: onnx.TensorProto, base: Path) -> None:
    """Move a large initializer of a proto that is ours out of the graph."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        weight: Weight = external_weight(tensor, base)
        if payload_size(tensor.name, tensor.data_type, tensor.dims) <= INLINE_LIMIT:
            tensor.CopyFrom(tensor_proto(weight.load(), tensor.name))
            return
    else:
        size = payload_size(tensor.name, tensor.data_type, tensor.dims)
        if size <= INLINE_LIMIT or tensor.data_type == onnx.TensorProto.STRING:
            tensor_values(tensor)
            return
        if tensor.HasField("raw_data"):
            data = tensor.raw_data
            if len(data) != size:
                raise ModelLoadError(
                    f"tensor {tensor.name!r} of shape {list(tensor.dims)} needs {size} bytes and has {len(data)}"
                )
            weight = BytesWeight(data, int(tensor.data_type), tuple(tensor.dims))
        else:
            values = tensor_values(tensor)
            weight = BytesWeight(tensor_proto(values).raw_data, int(tensor.data_type), tuple(tensor.dims))
    loaded.weights[tensor.name] = weight
    tensor.CopyFrom(header(tensor.name, weight))


def header(name: str, weight: Weight) -> onnx.TensorProto:
    """Return the initializer that stands in the graph for a weight that is kept outside."""
    tensor = onnx.TensorProto(name=name, data_type=weight.code, dims=weight.shape)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="onnx_verify.weights")
    return tensor


def _from_proto(source: onnx.ModelProto) -> LoadedModel:
    proto = onnx.ModelProto()
    _copy_fields(source, proto, "graph")
    _copy_fields(source.graph, proto.graph, "initializer")
    loaded = LoadedModel(proto, source=_label(source.graph.name))
    for tensor in source.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            external_weight(tensor, None)
        size = payload_size(tensor.name, tensor.data_type, tensor.dims)
        if size <= INLINE_LIMIT or tensor.data_type == onnx.TensorProto.STRING:
            tensor_values(tensor)
            proto.graph.initializer.append(tensor)
        else:
            check_payload(tensor)
            loaded.weights[tensor.name] = ProtoWeight(tensor)
            proto.graph.initializer.append(header(tensor.name, loaded.weights[tensor.name]))
    for tensor in _nested_tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            external_weight(tensor, None)
    return loaded


def _label(name: str) -> str:
    return f"model {name!r}" if name else "the model"


def _copy_fields(source: Any, target: Any, skipped: str) -> None:
    """Copy all set fields of a protobuf message but one."""
    for descriptor, value in source.ListFields():
        if descriptor.name == skipped:
            continue
        if isinstance(value, (str, int, float, bytes)):
            setattr(target, descriptor.name, value)
        elif hasattr(value, "CopyFrom"):
            getattr(target, descriptor.name).CopyFrom(value)
        else:
            getattr(target, descriptor.name).extend(value)


def _from_ir(source: ir.Model) -> LoadedModel:
    """Write an ir.Model as a proto without its large weights."""
    graph = onnx.GraphProto(name=source.graph.name or "graph")
    graph.node.extend(ir.to_proto(node) for node in source.graph)
    graph.input.extend(ir.to_proto(value) for value in source.graph.inputs)
    graph.output.extend(ir.to_proto(value) for value in source.graph.outputs)
    proto = onnx.ModelProto(ir_version=source.ir_version, graph=graph)
    proto.producer_name, proto.producer_version = source.producer_name or "", source.producer_version or ""
    for domain, version in source.opset_imports.items():
        proto.opset_import.append(helper.make_opsetid(domain, version))
    proto.functions.extend(ir.to_proto(function) for function in source.functions.values())
    helper.set_model_props(proto, {key: str(value) for key, value in source.metadata_props.items()})
    loaded = LoadedModel(proto, source=_label(graph.name))
    known = {value.name for value in (*source.graph.inputs, *source.graph.outputs)}
    for node in source.graph:
        for value in node.outputs:
            if value.name and value.name not in known and value.type is not None and value.shape is not None:
                proto.graph.value_info.append(ir.to_proto(value))
    for name, value in source.graph.initializers.items():
        _add_ir_weight(loaded, name, value)
    return loaded


def _add_ir_weight(loaded: LoadedModel, name: str, value: ir.Value) -> None:
    tensor = value.const_value
    if tensor is None:
        raise ModelLoadError(f"initializer {name!r} of {loaded.source} has no value")
    if isinstance(tensor, ir.ExternalTensor):
        resolve_external(Path(tensor.base_dir or "."), str(tensor.location), name)
    weight = IrWeight(tensor)
    if weight.code == onnx.TensorProto.STRING or payload_size(name, weight.code, weight.shape) <= INLINE_LIMIT:
        written = ir.to_proto(tensor)
        if written.data_location == onnx.TensorProto.EXTERNAL:
            written = tensor_proto(weight.load())
        written.name = name
        loaded.graph.initializer.append(written)
        return
    loaded.weights[name] = weight
    loaded.graph.initializer.append(header(name, weight))


def value_spec(value: onnx.ValueInfoProto) -> ValueSpec:
    """Read name, kind, element type and dimensions of a value; the last two of tensors only.

    Raises:
        ModelLoadError: if the element type is not known here.
    """
    kind = str(value.type.WhichOneof("value") or "tensor").removesuffix("_type")
    if kind == "optional":
        inner = str(value.type.optional_type.elem_type.WhichOneof("value") or "tensor").removesuffix("_type")
        kind = f"optional {inner}"
    if kind != "tensor":
        return ValueSpec(value.name, None, None, kind)
    tensor = value.type.tensor_type
    if tensor.elem_type and not is_known(tensor.elem_type):
        raise ModelLoadError(f"{value.name!r} has the element type {tensor.elem_type}, which onnx-verify does not know")
    if not tensor.HasField("shape"):
        return ValueSpec(value.name, tensor.elem_type or None, None)
    dims: list[int | str | None] = []
    for dim in tensor.shape.dim:
        kind = dim.WhichOneof("value")
        dims.append(dim.dim_value if kind == "dim_value" else (dim.dim_param or None))
    return ValueSpec(value.name, tensor.elem_type or None, tuple(dims))


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the bodies that a control-flow node holds."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of all bodies in it."""
    for node in graph.node:
        yield node
        for body in subgraphs(node):
            yield from all_nodes(body)


def _nested_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor that is not an initializer of the main graph."""
    pending = [list(proto.graph.node), *(list(function.node) for function in proto.functions)]
    while pending:
        for node in pending.pop():
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.TENSOR:
                    yield attribute.t
                yield from attribute.tensors
                for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                    if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
                        yield from (sparse.values, sparse.indices)
            for graph in subgraphs(node):
                yield from graph.initializer
                pending.append(list(graph.node))
    for sparse in proto.graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)


def used_names(node: onnx.NodeProto) -> set[str]:
    """Return the names of the values that a node reads from its own scope, its bodies included."""
    names = {name for name in node.input if name}
    for graph in subgraphs(node):
        names |= captured_names(graph)
    return names


def captured_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names that a body reads from the scopes around it."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {tensor.values.name for tensor in graph.sparse_initializer}
    captured: set[str] = set()
    for node in graph.node:
        captured |= used_names(node) - own
        own |= set(node.output)
    return captured | {value.name for value in graph.output if value.name not in own}


def check_graph(graph: onnx.GraphProto, outer: set[str], source: str) -> None:
    """Check that every name is defined once and before it is used, bodies included.

    Raises:
        ModelLoadError: naming the first node that breaks the rule.
    """
    known = set(outer)
    known |= {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    known |= {tensor.values.name for tensor in graph.sparse_initializer}
    own: set[str] = set()
    for node in graph.node:
        label = f"node {node.name or '?'} ({node.op_type})"
        for name in node.input:
            if name and name not in known:
                raise ModelLoadError(
                    f"{source}: {label} reads {name!r}, which nothing before it produces (a cycle, a missing "
                    "node or nodes out of order)"
                )
        for body in subgraphs(node):
            check_graph(body, known, source)
        for name in node.output:
            if name and name in own:
                raise ModelLoadError(f"{source}: {label} produces {name!r}, which already exists")
            own.add(name)
        known.update(node.output)
    for value in graph.output:
        if value.name not in known:
            raise ModelLoadError(f"{source}: graph output {value.name!r} is produced by no node")


def _check_functions(proto: onnx.ModelProto, source: str) -> None:
    """Refuse local functions that call themselves, directly or through others."""
    calls: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for function in proto.functions:
        calls[function.domain, function.name] = called = set()
        pending = [list(function.node)]
        while pending:
            for node in pending.pop():
                called.add((node.domain, node.op_type))
                pending.extend(list(body.node) for body in subgraphs(node))
    settled: set[tuple[str, str]] = set()
    while len(settled) < len(calls):
        ready = {key for key, called in calls.items() if key not in settled and called & calls.keys() <= settled}
        if not ready:
            names = ", ".join(sorted(name for key in calls.keys() - settled for name in key[1:]))
            raise ModelLoadError(f"{source}: the local functions {names} call each other in a cycle")
        settled |= ready
