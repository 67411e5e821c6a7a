"""Passes and the bodies of functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import onnx_ir as ir
import onnx_ir.passes.common as common

__all__ = ["HoistWeightTransposes", "as_model", "constants_to_nodes", "inline_functions"]

_MODULE = "onnxops.module"


@contextmanager
def as_model(model: ir.Model, function: ir.Function) -> Iterator[ir.Model]:
    """Give passes over models the body of a function: its constants are initializers until the end."""
    graph = function.graph
    for node in [node for node in graph if node.op_type == "Constant" and "value" in node.attributes]:
        old = node.outputs[0]
        if old.is_graph_output():
            continue
        tensor = node.attributes["value"].as_tensor()
        name = old.name
        value = ir.Value(name=name, type=old.type, shape=old.shape, const_value=tensor)
        ir.convenience.replace_all_uses_with(old, value)
        graph.remove(node, safe=True)
        graph.initializers.add(value)
    try:
        yield ir.Model(graph, ir_version=model.ir_version)
    finally:
        constants_to_nodes(graph)


def constants_to_nodes(graph: ir.Graph) -> None:
    """Replace the initializers of a graph by Constant nodes, as functions have no initializers; unused ones go."""
    for name, value in list(graph.initializers.items()):
        del graph.initializers[name]
        if not value.uses():
            continue
        node = ir.node("Constant", [], {"value": value.const_value}, name=name)
        output = node.outputs[0]
        output.name, output.type, output.shape = name, value.type, value.shape
        ir.convenience.replace_all_uses_with(value, output)
        graph.insert_before(graph[0], node)


class HoistWeightTransposes(ir.passes.InPlacePass):
    """Moves the transposition of a weight out of the function that it is passed to.

    Where a function uses an input as one and the same Transpose of it, and all its calls pass weights, the calls
    transpose instead. In the main graph FoldWeightTransposes then stores the
    weight the way it is read. Functions inside functions come first, so that one walk over all of them is enough.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on all functions."""
        calls = _calls(model)
        modified = False
        for identifier, function in model.functions.items():
            for index, value in enumerate(function.inputs):
                perm = _common_transpose(value)
                nodes = calls.get(identifier, [])
                if perm is None or not all(_is_weight(model, calls, node.inputs[index]) for node in nodes):
                    continue
                self._hoist(function, index, perm, nodes)
                modified = True
        return ir.passes.PassResult(model, modified)

    def _hoist(self, function: ir.Function, index: int, perm: tuple[int, ...], calls: Iterable[ir.Node]) -> None:
        value = function.inputs[index]
        for usage in list(value.uses()):
            ir.convenience.replace_all_uses_with(usage.node.outputs[0], value)
            assert isinstance(usage.node.graph, ir.Graph)
            usage.node.graph.remove(usage.node, safe=True)
        if value.shape is not None:
            value.shape = ir.Shape([value.shape[axis] for axis in perm])
        for node in calls:
            operand = node.inputs[index]
            graph = node.graph
            assert operand is not None
            assert isinstance(graph, ir.Graph)
            name = f"{node.name}_{index}_transpose"
            output = ir.Value(name=f"{name}d", type=operand.type, shape=value.shape)
            transpose = ir.Node("", "Transpose", [operand], [ir.AttrInt64s("perm", perm)], outputs=[output], name=name)
            graph.insert_before(node, transpose)
            node.replace_input_with(index, output)


def _calls(model: ir.Model) -> dict[ir.OperatorIdentifier, list[ir.Node]]:
    """Return the calls of each function, those inside other functions and in subgraphs included."""
    found: dict[ir.OperatorIdentifier, list[ir.Node]] = {}
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        for node in graph.all_nodes():
            if (identifier := node.op_identifier()) in model.functions:
                found.setdefault(identifier, []).append(node)
    return found


def _common_transpose(value: ir.Value) -> tuple[int, ...] | None:
    """Return the permutation if all uses of ``value`` are the same Transpose of it, else None."""
    nodes = [usage.node for usage in value.uses()]
    if not nodes or any(n.op_type != "Transpose" or n.domain or n.outputs[0].is_graph_output() for n in nodes):
        return None
    perms = {tuple(node.attributes.get_ints("perm", ())) for node in nodes}
    return next(iter(perms)) if len(perms) == 1 and all(perms) else None


def _is_weight(model: ir.Model, calls: dict[ir.OperatorIdentifier, list[ir.Node]], value: ir.Value | None) -> bool:
    """Tell whether a value is an initializer, or an input of a function for which all calls pass one."""
    if value is None:
        return False
    if not value.is_graph_input():
        return value.is_initializer()
    for identifier, function in model.functions.items():
        if value in function.inputs:
            index = function.inputs.index(value)
            return all(_is_weight(model, calls, node.inputs[index]) for node in calls.get(identifier, []))
    return False


def inline_functions(model: ir.Model) -> None:
    """Replace the calls of all functions by their bodies; the constants of the bodies become initializers."""
    domains = {domain for domain, _, _ in model.functions}
    levels = _paths_by_level(model)
    common.InlinePass()(model)
    common.NameFixPass()(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    for domain in domains:
        model.graph.opset_imports.pop(domain, None)
    for node in model.graph.all_nodes():
        parts = [node.metadata_props.pop(key, "") for key in (*levels, _MODULE)]
        if path := ".".join(part for part in parts if part):
            node.metadata_props[_MODULE] = path


def _paths_by_level(model: ir.Model) -> list[str]:
    """Keep the module path of each call under a key of its own level; return the keys from the outermost in.

    Inlining gives nodes the metadata of the calls around them, and of two equal keys only the innermost survives.
    """
    levels: dict[ir.OperatorIdentifier, int] = {}
    # A function stands after those that it calls.
    for identifier, function in model.functions.items():
        called = [levels[each] for node in function.graph.all_nodes() if (each := node.op_identifier()) in levels]
        levels[identifier] = max(called, default=-1) + 1
    for identifier, nodes in _calls(model).items():
        for node in nodes:
            node.metadata_props[f"{_MODULE}.{levels[identifier]}"] = node.metadata_props.pop(_MODULE, "")
    return [f"{_MODULE}.{level}" for level in sorted(set(levels.values()), reverse=True)]
