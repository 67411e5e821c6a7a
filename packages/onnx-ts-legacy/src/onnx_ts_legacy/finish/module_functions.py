"""Modules as functions of the model (``export_modules_as_functions``).

Every run of neighbouring nodes that one module wrote becomes a call of a function; innermost modules first, so that
functions call each other as the modules do. Neighbours in the order of a graph can always be taken together: what one
of them needs of another node outside stands before the first. Weights are inputs of a function and small constants are
part of it, so that modules which do the same with other weights share one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import onnx_ir as ir
import torch

from onnx_ts_legacy.errors import ArgumentsError
from onnxops_decomp.exporting import class_name

__all__ = ["ModuleClass", "check_opset", "module_classes", "outline_modules"]

_LOWEST_OPSET = 15
_MODULE = "onnxops.module"


@dataclasses.dataclass(frozen=True)
class ModuleClass:
    """Class of a module, which its function is named after.

    Attributes:
        domain: Python module that defines it.
        name: Its name.
    """

    domain: str
    name: str


def check_opset(opset: int) -> None:
    """Refuse opsets in which models have no functions.

    Raises:
        ArgumentsError: If this is one.
    """
    if opset < _LOWEST_OPSET:
        raise ArgumentsError(
            f"export_modules_as_functions needs opset_version {_LOWEST_OPSET} or above, got {opset}: "
            "older models have no functions."
        )


def module_classes(model: Any, chosen: bool | set[type[torch.nn.Module]]) -> dict[str, ModuleClass]:
    """Return the classes of the modules inside ``model`` that are to become functions, by their paths.

    Args:
        model: The model; anything but a module has none.
        chosen: True for all modules, or the classes that are meant.
    """
    if not isinstance(model, torch.nn.Module):
        return {}
    found = {path: _class_of(module) for path, module in model.named_modules() if path}
    if isinstance(chosen, bool):
        return found if chosen else {}
    wanted = {ModuleClass(kind.__module__, kind.__qualname__) for kind in chosen}
    return {path: kind for path, kind in found.items() if kind in wanted}


def _class_of(module: torch.nn.Module) -> ModuleClass:
    if isinstance(module, torch.jit.ScriptModule):
        domain, _, name = class_name(module).rpartition(".")
        return ModuleClass(domain, name)
    return ModuleClass(type(module).__module__, type(module).__qualname__)


def outline_modules(model: ir.Model, classes: Mapping[str, ModuleClass], weights: Sequence[ir.Value]) -> None:
    """Replace what modules wrote in the main graph by calls of functions.

    Args:
        model: The model; its functions are added to.
        classes: Classes by the paths of the modules.
        weights: Parameters and buffers: inputs of the functions, where other initializers become constants in them.
    """
    outlining = _Outlining(model, weights)
    for path in sorted(classes, key=lambda path: path.count("."), reverse=True):
        outlining.outline(path, classes[path])
    initializers = model.graph.initializers
    for name in [name for name, value in initializers.items() if not value.uses() and not value.is_graph_output()]:
        if initializers[name] not in outlining.weights:
            del initializers[name]


class _Outlining:
    def __init__(self, model: ir.Model, weights: Sequence[ir.Value]) -> None:
        self.weights = set(weights)
        self._model = model
        self._known: dict[str, ir.Function] = {}
        self._count: dict[ModuleClass, int] = {}
        self._calls: dict[str, int] = {}

    def outline(self, path: str, kind: ModuleClass) -> None:
        graph = self._model.graph
        for inside, run in groupby(list(graph), lambda node: _is_inside(node, path)):
            nodes = list(run)
            if inside:
                self._outline_run(nodes, path, kind)

    def _outline_run(self, nodes: list[ir.Node], path: str, kind: ModuleClass) -> None:
        graph = self._model.graph
        taken = set(nodes)
        nested = [inner for node in nodes for inner in _nested(node)]
        inner = {id(value) for node in nested for value in node.outputs}
        inner.update(id(value) for node in nodes for value in _graph_inputs(node))
        read = dict.fromkeys(v for node in nested for v in node.inputs if v is not None and id(v) not in inner)
        results = [v for node in nodes for v in node.outputs if v.is_graph_output() or _is_read_outside(v, nested)]
        constants = [v for v in read if v.is_initializer() and v not in self.weights and not v.is_graph_input()]
        operands = [value for value in read if value not in constants]
        call = ir.Node(
            kind.domain,
            kind.name,
            operands,
            num_outputs=len(results),
            name=self._call_name(path),
            metadata_props={_MODULE: path.rpartition(".")[0]} if "." in path else {},
        )
        graph.insert_before(nodes[0], call)
        for result, output in zip(results, call.outputs, strict=True):
            output.name, output.type, output.shape = result.name, result.type, result.shape
            for use in result.uses():
                if use.node not in taken and use.node not in nested:
                    use.node.replace_input_with(use.idx, output)
        for index, output in enumerate(graph.outputs):
            if output in results:
                graph.outputs[index] = call.outputs[results.index(output)]
        graph.remove(nodes)
        inputs = [self._local_input(value, nested, path, index) for index, value in enumerate(operands)]
        made = [_local_constant(value, nested, index) for index, value in enumerate(constants)]
        function = self._function(ir.Graph(inputs, results, nodes=[*made, *nodes]), path, kind)
        call.op_type = function.name
        self._model.opset_imports.setdefault(kind.domain, 1)

    def _call_name(self, path: str) -> str:
        count = self._calls[path] = self._calls.get(path, -1) + 1
        return f"{path}.{count}" if count else path

    def _local_input(self, value: ir.Value, nested: list[ir.Node], path: str, index: int) -> ir.Value:
        name = str(value.name).removeprefix(f"{path}.") if value in self.weights else f"input_{index}"
        local = ir.Value(name=name, type=value.type, shape=value.shape)
        _read_instead(value, local, nested)
        return local

    def _function(self, graph: ir.Graph, path: str, kind: ModuleClass) -> ir.Function:
        """Return the function for a graph: an equal one that is there already, or a new one."""
        _name_locally(graph, path)
        domains = {"", *(inner.domain for node in graph for inner in _nested(node))}
        graph.opset_imports.update({domain: self._model.opset_imports[domain] for domain in sorted(domains)})
        function = ir.Function(kind.domain, kind.name, graph=graph, attributes=[])
        proto = ir.to_proto(function)
        for node in proto.node:
            del node.metadata_props[:]
        key = str(proto)
        if key not in self._known:
            count = self._count[kind] = self._count.get(kind, -1) + 1
            function.name = f"{kind.name}.{count}" if count else kind.name
            self._known[key] = function
            self._model.functions[function.identifier()] = function
        return self._known[key]


def _is_inside(node: ir.Node, path: str) -> bool:
    module = node.metadata_props.get(_MODULE, "")
    return module == path or module.startswith(f"{path}.")


def _nested(node: ir.Node) -> Iterator[ir.Node]:
    yield node
    for graph in _subgraphs(node):
        for inner in graph:
            yield from _nested(inner)


def _subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()


def _graph_inputs(node: ir.Node) -> Iterator[ir.Value]:
    for inner in _nested(node):
        for graph in _subgraphs(inner):
            yield from graph.inputs


def _is_read_outside(value: ir.Value, nested: list[ir.Node]) -> bool:
    return any(use.node not in nested for use in value.uses())


def _read_instead(old: ir.Value, new: ir.Value, nested: list[ir.Node]) -> None:
    for use in old.uses():
        if use.node in nested:
            use.node.replace_input_with(use.idx, new)


def _local_constant(value: ir.Value, nested: list[ir.Node], index: int) -> ir.Node:
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", value.const_value)], num_outputs=1)  # type: ignore[arg-type]
    node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
    node.outputs[0].name = f"constant_{index}"
    _read_instead(value, node.outputs[0], nested)
    return node


def _name_locally(graph: ir.Graph, path: str) -> None:
    """Name nodes and values by their places, so that functions that do the same are equal."""
    taken = {value.name for value in graph.inputs}
    count = 0
    for node in (inner for outer in list(graph) for inner in _nested(outer)):
        node.name = f"node_{count}"
        if _MODULE in node.metadata_props:
            inside = node.metadata_props.pop(_MODULE).removeprefix(path).removeprefix(".")
            node.metadata_props.update({_MODULE: inside} if inside else {})
        for value in (*(v for subgraph in _subgraphs(node) for v in subgraph.inputs), *node.outputs):
            name = f"val_{count}"
            while name in taken:
                count += 1
                name = f"val_{count}"
            value.name = name
            count += 1
