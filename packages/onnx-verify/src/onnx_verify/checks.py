"""What a model should be besides numerically right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import checker, helper, shape_inference

from onnx_verify.errors import ModelRunError, OnnxVerifyError
from onnx_verify.inputs.generate import RandomInputs, dimension_names, generate_inputs
from onnx_verify.inputs.sets import bind_feeds
from onnx_verify.models.model import LoadedModel, ModelLike, all_nodes, load_model, subgraphs
from onnx_verify.models.slicing import Graph, flatten_functions
from onnx_verify.models.weights import weight_bytes
from onnx_verify.running.runtimes import Backend

LARGE_CONSTANT = 1 << 20


@dataclass(frozen=True)
class Finding:
    """One thing that a check found: the check's name, ``"error"`` or ``"warning"``, and what it is about."""

    check: str
    severity: str
    message: str

    def __str__(self) -> str:
        """Return the finding in one line."""
        return f"{self.severity}: {self.check}: {self.message}"


@dataclass(frozen=True)
class Expectations:
    """What the caller knows about the model; None where nothing is expected.

    Attributes:
        opset: version of the default domain.
        input_names: names of the inputs in order.
        output_names: names of the outputs in order.
        dynamic: dimension names that must be there.
        states: the output that carries each state on, by the input that takes it.
    """

    opset: int | None = None
    input_names: Sequence[str] | None = None
    output_names: Sequence[str] | None = None
    dynamic: Sequence[str] = ()
    states: Mapping[str, str] = field(default_factory=dict)


def check_model(
    model: ModelLike | LoadedModel,
    expected: Expectations | None = None,
    *,
    backend: Backend | None = None,
    inputs: RandomInputs | None = None,
    run: bool = True,
) -> list[Finding]:
    """Run every check on a model.

    Args:
        model: the model in any form.
        expected: what it should be.
        backend: the runtime that it is meant for.
        inputs: how the inputs of the checks that run the model are generated.
        run: whether it may be run; only its graph is looked at otherwise.

    Returns:
        What was found, errors first; empty for a model with nothing wrong.

    Raises:
        ModelLoadError: if it is broken or unsafe.
    """
    loaded = load_model(model)
    wanted = expected or Expectations()
    runtime = backend or Backend()
    findings = [
        *_validity(loaded),
        *_opset(loaded, wanted),
        *_names(loaded, wanted),
        *_constants(loaded),
        *_unused(loaded),
    ]
    if run:
        kernels = list(_kernels(loaded, runtime))
        findings += kernels
        if not kernels:
            spec = inputs or RandomInputs(edge_cases=False)
            findings += [*_dimensions(loaded, wanted, runtime, spec), *_determinism(loaded, runtime, spec)]
            findings += _states(loaded, wanted, runtime, spec)
    return sorted(findings, key=lambda finding: finding.severity)


def _validity(model: LoadedModel) -> Iterator[Finding]:
    """ONNX's own checker and shape inference; large weights are declared as inputs for it."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    small = [tensor for tensor in proto.graph.initializer if tensor.name not in model.weights]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(small)
    declared = {value.name for value in proto.graph.input}
    for name, weight in model.weights.items():
        if name not in declared:
            proto.graph.input.append(helper.make_tensor_value_info(name, weight.code, weight.shape))
    try:
        checker.check_model(proto, full_check=True)
    except Exception as error:
        yield Finding("validity", "error", str(error).strip().split("\n\n")[0])


def _opset(model: LoadedModel, expected: Expectations) -> Iterator[Finding]:
    if expected.opset is not None and model.opset != expected.opset:
        yield Finding("opset", "error", f"the opset is {model.opset}, should be {expected.opset}")


def _names(model: LoadedModel, expected: Expectations) -> Iterator[Finding]:
    for kind, values, wanted in (
        ("input", model.inputs, expected.input_names),
        ("output", model.outputs, expected.output_names),
    ):
        names = [value.name for value in values]
        if wanted is not None and names != list(wanted):
            yield Finding("names", "error", f"the {kind}s are {names}, should be {list(wanted)}")
        for name, count in Counter(names).items():
            if count > 1:
                yield Finding("names", "error", f"{count} {kind}s are called {name!r}")
    for name, count in Counter(node.name for node in model.graph.node if node.name).items():
        if count > 1:
            yield Finding("names", "warning", f"{count} nodes are called {name!r}")


def _constants(model: LoadedModel) -> Iterator[Finding]:
    for node in all_nodes(model.graph):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.ByteSize() > LARGE_CONSTANT:
                size = attribute.t.ByteSize() / 2**20
                text = f"{node.op_type} {node.name or node.output[0]} holds {size:.1f} MiB; make it an initializer"
                yield Finding("large constant", "warning", text)


def _unused(model: LoadedModel) -> Iterator[Finding]:
    graph = Graph(LoadedModel(model.proto, model.weights, model.source))
    used = set(graph.readers) | set(graph.outputs)
    for name in sorted(graph.constants - used):
        size = weight_bytes(model.weights[name]) if name in model.weights else 0
        yield Finding("unused", "warning", f"initializer {name!r} is never read ({size} bytes)")
    for name in graph.inputs:
        if name not in used:
            yield Finding("unused", "warning", f"input {name!r} is never read")
    for node in graph.nodes:
        if not any(name in used for name in node.output if name):
            yield Finding("unused", "warning", f"{node.op_type} {node.name or node.output[0]} is never read")


def _kernels(model: LoadedModel, backend: Backend) -> Iterator[Finding]:
    """If the runtime refuses the model, asks it about each node alone."""
    try:
        backend.load(model)
    except ModelRunError as error:
        refused = list(_refused_nodes(flatten_functions(model), backend))
        yield from refused or [Finding("kernels", "error", str(error))]


def _refused_nodes(model: LoadedModel, backend: Backend) -> Iterator[Finding]:
    try:
        inferred = shape_inference.infer_shapes(model.proto).graph
    except Exception:
        return
    types = {value.name: value for value in (*inferred.value_info, *inferred.input, *inferred.output)}
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    seen: set[tuple[str, ...]] = set()
    for node in model.graph.node:
        known = all(name in types or name in constants for name in node.input if name)
        key = (node.domain, node.op_type, *(str(_code(name, types, constants)) for name in node.input))
        if not known or key in seen or list(subgraphs(node)):
            continue
        seen.add(key)
        try:
            backend.load(_single(node, model, types, constants))
        except ModelRunError as error:
            dtypes = [
                onnx.TensorProto.DataType.Name(_code(name, types, constants)).lower() for name in node.input if name
            ]
            text = f"{node.op_type} {node.name or node.output[0]} on {', '.join(dtypes)} is refused: {error}"
            yield Finding("kernels", "error", text)


def _code(name: str, types: Mapping[str, onnx.ValueInfoProto], constants: Mapping[str, onnx.TensorProto]) -> int:
    if name in constants:
        return int(constants[name].data_type)
    return int(types[name].type.tensor_type.elem_type) if name in types else 0


def _single(
    node: onnx.NodeProto,
    model: LoadedModel,
    types: Mapping[str, onnx.ValueInfoProto],
    constants: Mapping[str, onnx.TensorProto],
) -> LoadedModel:
    """Make a model of one node, with all that it reads as inputs except small constants."""
    graph = onnx.GraphProto(name="node", node=[node])
    for name in dict.fromkeys(name for name in node.input if name):
        if name in constants and name not in model.weights:
            graph.initializer.append(constants[name])
        elif name in constants:
            graph.input.append(
                helper.make_tensor_value_info(name, constants[name].data_type, list(constants[name].dims))
            )
        else:
            graph.input.append(types[name])
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
    proto = onnx.ModelProto(ir_version=model.proto.ir_version, graph=graph)
    proto.opset_import.extend(model.proto.opset_import)
    return LoadedModel(proto, source=model.source)


def _dimensions(model: LoadedModel, expected: Expectations, backend: Backend, spec: RandomInputs) -> Iterator[Finding]:
    """Run the model at several sizes of each dynamic dimension, the others held."""
    names = dimension_names(model)
    for name in expected.dynamic:
        if name not in names:
            yield Finding("dynamic dimensions", "error", f"no input has a dynamic dimension {name!r}; it is fixed")
    runtime = backend.load(model)
    base = {name: 2 + index for index, name in enumerate(names)}
    for name in names:
        failures: dict[int, str] = {}
        tried = (*range(1, 5), 7)
        for size in tried:
            sizes = {**base, name: size}
            fixed = RandomInputs(spec.seed, {key: (value,) for key, value in sizes.items()}, spec.ranges, False)
            try:
                feeds = bind_feeds(generate_inputs(model, fixed)[0], model.inputs)
                yield from _output_shapes(model, runtime.run_values(feeds), sizes)
            except OnnxVerifyError as error:
                failures[size] = str(error)
        if failures:
            first = next(iter(failures))
            text = f"{name!r} is declared dynamic, but the model fails at size {', '.join(map(str, failures))} "
            yield Finding("dynamic dimensions", "error", f"{text}(of {tried}): {failures[first]}")


def _output_shapes(model: LoadedModel, values: Sequence[Any], sizes: Mapping[str, int]) -> Iterator[Finding]:
    """Compare what the outputs declare with what they are."""
    for spec, value in zip(model.outputs, values, strict=True):
        if spec.shape is None or not isinstance(value, np.ndarray):
            continue
        declared = [sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in spec.shape]
        fits = len(declared) == value.ndim and all(
            not isinstance(dim, int) or dim == size for dim, size in zip(declared, value.shape, strict=True)
        )
        if not fits:
            shown = ", ".join(str(dim) for dim in spec.shape)
            text = f"output {spec.name!r} is declared [{shown}], at sizes {dict(sizes)} it is {list(value.shape)}"
            yield Finding("dynamic dimensions", "error", text)


def _determinism(model: LoadedModel, backend: Backend, spec: RandomInputs) -> Iterator[Finding]:
    """Run the model twice in one session and once in another."""
    first, second = backend.load(model), backend.load(model)
    for each in generate_inputs(model, spec)[:1]:
        try:
            feeds = bind_feeds(each, model.inputs)
            runs = [first.run_feeds(feeds), first.run_feeds(feeds), second.run_feeds(feeds)]
        except OnnxVerifyError:
            return  # a run that fails is the dimension check's business
        for (name, value), *others in zip(*runs, strict=True):
            if any(other.tobytes() != value.tobytes() for _, other in others):
                yield Finding("determinism", "warning", f"output {name!r} differs between runs on the same inputs")


def _states(model: LoadedModel, expected: Expectations, backend: Backend, spec: RandomInputs) -> Iterator[Finding]:
    """Feed each state back and run again."""
    inputs = {value.name: value for value in model.inputs}
    outputs = {value.name: value for value in model.outputs}
    for taken, given in expected.states.items():
        if taken not in inputs or given not in outputs:
            yield Finding("state", "error", f"there is no state from output {given!r} to input {taken!r}")
            return
        if inputs[taken].code != outputs[given].code:
            yield Finding("state", "error", f"input {taken!r} and output {given!r} are of different dtypes")
            return
    if not expected.states:
        return
    runtime = backend.load(model)
    feeds = bind_feeds(generate_inputs(model, spec)[0], model.inputs)
    for step in range(2):
        values = dict(zip(runtime.output_names, runtime.run_values(feeds), strict=True))
        for taken, given in expected.states.items():
            before, after = feeds[taken], values[given]
            if step == 0 and np.array_equal(before, after):
                yield Finding("state", "warning", f"state {given!r} is what came in as {taken!r}; it may be stale")
            feeds[taken] = after
        try:
            runtime.run_values(feeds)
        except ModelRunError as error:
            yield Finding("state", "error", f"the model does not take its own state back: {error}")
            return


def summarize(model: ModelLike | LoadedModel) -> dict[str, Any]:
    """Return what a model is made of: versions, inputs, outputs, operators, weights; plain values only.

    Raises:
        ModelLoadError: if it is broken or unsafe.
    """
    loaded = load_model(model)
    proto = loaded.proto
    elements = sum(int(np.prod(tensor.dims, dtype=np.float64)) for tensor in proto.graph.initializer)
    small = sum(tensor.ByteSize() for tensor in proto.graph.initializer if tensor.name not in loaded.weights)
    return {
        "source": loaded.source,
        "ir_version": proto.ir_version,
        "producer": f"{proto.producer_name} {proto.producer_version}".strip(),
        "opsets": {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import},
        "inputs": [_describe(value) for value in loaded.inputs],
        "outputs": [_describe(value) for value in loaded.outputs],
        "nodes": len(proto.graph.node),
        "operators": dict(Counter(node.op_type for node in all_nodes(proto.graph)).most_common()),
        "functions": [f"{function.domain}::{function.name}" for function in proto.functions],
        "initializers": len(proto.graph.initializer),
        "parameters": elements,
        "weight_bytes": small + sum(weight_bytes(weight) for weight in loaded.weights.values()),
    }


def _describe(value: Any) -> dict[str, Any]:
    dtype = onnx.TensorProto.DataType.Name(value.code).lower() if value.code else value.kind
    return {"name": value.name, "dtype": dtype, "shape": list(value.shape) if value.shape is not None else None}
