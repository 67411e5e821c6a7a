"""An fx graph as the right side of a search, and what its higher-order operators execute."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onnx_verify.errors import InputError
from onnx_verify.models.slicing import Graph, returning, standalone
from onnx_verify.search.bodies import CONTROL_FLOW, BodyNode
from onnx_verify.search.findings import NodeLabel
from onnx_verify.search.fxstream import GraphStream, copies, onnx_form, regions, tensor_names
from onnx_verify.search.pairing import fx_name
from onnx_verify.search.sides import INITIAL, Execution, paired_outputs
from onnx_verify.values.dtypes import is_known, numpy_dtype
from onnx_verify.values.torch_tensors import is_tensor, require_torch, to_numpy

if TYPE_CHECKING:
    import onnx
    from torch.fx import GraphModule, Node

    from onnx_verify.running.streaming import Values, ValueStream

_CONDITION = "condition/"


class FxSide:
    """An fx graph with the inputs that it is run on.

    Attributes:
        values: the graph's values.
        scope: the names of the operators whose nested graph it is, ``/`` between them; empty for the outermost.
    """

    def __init__(self, values: GraphStream, scope: str = "") -> None:
        """Keep the graph; nothing runs yet."""
        self.values = values
        self.scope = scope

    @property
    def output_names(self) -> list[str]:
        """The nodes whose values the graph returns; an empty name for a constant."""
        return _returned(self.values.module)

    def stream(self) -> ValueStream:
        """Interpret the graph from the start."""
        return self.values

    def pairs(self, candidate: Graph, match: str) -> dict[str, str]:
        """Pair values with the nodes that they are named like or that their metadata names, outputs by position."""
        del match
        pairs = dict(_claims(candidate, self.values.module, self.scope))
        pairs |= paired_outputs(candidate, self.output_names, self.values.names, pairs)
        return pairs | self._renamed_outputs(candidate, pairs)

    def only(self, sample: int) -> FxSide:
        """Return the graph on one sample."""
        return FxSide(self.values.only(sample), self.scope)

    def results(self) -> list[Any]:
        """Interpret the graph up to its end."""
        return [_array(value) for value in self.values.results()[0]]

    def executions(self, value: str, call: BodyNode) -> Iterator[Execution]:
        """Execute the nested graphs of the higher-order operator that makes the value."""
        region, inside, inner = value.partition("/")
        if inside:
            yield from FxSide(self.values.enter(region), _join(self.scope, region)).executions(inner, call)
            return
        node = next((node for node in self.values.module.graph.nodes if node.name == value), None)
        if node is not None and node.target is operator.getitem:
            node = node.args[0]
        enter = _entrances(call.node.op_type).get(node.target) if node is not None else None
        if node is not None and enter is not None:
            yield from enter(self.values.operands(node.name)[0], call, _join(self.scope, node.name))

    def _renamed_outputs(self, candidate: Graph, pairs: Mapping[str, str]) -> dict[str, str]:
        """Pair a graph output that was given a name of its own with the fx node that its metadata names."""
        known, taken = self.values.names, set(pairs.values())
        found = {}
        for name in candidate.outputs:
            if name in candidate.producer and name not in pairs:
                label = NodeLabel.of(candidate.nodes[candidate.producer[name]]).fx_node or ""
                scope, _, node = label.rpartition("/")
                if scope == self.scope and node in known and node not in taken:
                    found[name] = node
        return found


class _LoopSide(FxSide):
    """One iteration of a while loop: its body, then its condition on what the body returned.

    ONNX computes both in the body of Loop. The names of the condition's values begin with ``condition/``.
    """

    def __init__(self, body: GraphStream, condition: GraphStream, scope: str) -> None:
        super().__init__(body, scope)
        self.condition = condition

    @property
    def names(self) -> set[str]:
        """The values of both graphs."""
        return self.values.names | {_CONDITION + name for name in self.condition.names}

    @property
    def output_names(self) -> list[str]:
        """What Loop wants of its body: whether to go on, then the values for the next iteration."""
        return [_CONDITION + _returned(self.condition.module)[0], *super().output_names]

    def stream(self) -> ValueStream:
        """Interpret both graphs."""
        return _LoopValues(self)

    def results(self) -> list[Any]:
        """Interpret both graphs up to their ends."""
        return [_array(self.condition.results()[0][0]), *super().results()]

    def executions(self, value: str, call: BodyNode) -> Iterator[Execution]:
        """Execute the nested graphs of an operator in the body or in the condition."""
        if value.startswith(_CONDITION):
            yield from FxSide(self.condition, f"{self.scope}/condition").executions(
                value.removeprefix(_CONDITION), call
            )
        else:
            yield from super().executions(value, call)

    def pairs(self, candidate: Graph, match: str) -> dict[str, str]:
        """Pair the values of each graph by their metadata, and what is returned by position."""
        del match
        condition = _claims(candidate, self.condition.module, f"{self.scope}/condition")
        pairs = dict(_claims(candidate, self.values.module, self.scope))
        pairs |= {own: _CONDITION + name for own, name in condition}
        return pairs | paired_outputs(candidate, self.output_names, self.names, pairs)


class _LoopValues:
    """The values of a loop's body, then those of its condition."""

    def __init__(self, side: _LoopSide) -> None:
        self.side = side

    @property
    def names(self) -> set[str]:
        """The values of both graphs."""
        return self.side.names

    def values(self, wanted: set[str]) -> Iterator[tuple[str, Values]]:
        """Yield the wanted values in order."""
        body = {name for name in wanted if not name.startswith(_CONDITION)}
        yield from self.side.values.values(body)
        for name, values in self.side.condition.values({name.removeprefix(_CONDITION) for name in wanted - body}):
            yield _CONDITION + name, values


def _claims(candidate: Graph, module: GraphModule, scope: str) -> Iterator[tuple[str, str]]:
    """Yield each candidate value that says which fx node it is, with the node's name.

    A value is named like its fx node, with a number behind where that name was taken. Metadata that names a node of
    another graph rules a value out, for fx names are unique in their graph only. What control flow returns is told by
    its position.
    """
    known, parts = tensor_names(module), _parts(module)
    for region, inner in regions(module).items():
        for own, name in _claims(candidate, inner, _join(scope, region)):
            yield own, f"{region}/{name}"
    yield from _inlined_claims(candidate, module, scope)
    for name, index in candidate.producer.items():
        node = candidate.nodes[index]
        label = NodeLabel.of(node).fx_node
        if label is None or label.startswith("%") or NodeLabel.of(node).function:
            if name in known:
                yield name, name
            continue
        if label.rpartition("/")[0] != scope:
            continue
        origin = fx_name(label) or name
        if node.op_type in CONTROL_FLOW and origin in parts:
            part = parts[origin].get(list(node.output).index(name))
            if part is not None:
                yield name, part
        elif origin in known and re.fullmatch(rf"{re.escape(origin)}_\d+", name):
            if name not in known:
                yield name, origin
        elif name in known:
            yield name, name


def _inlined_claims(candidate: Graph, module: GraphModule, scope: str) -> Iterator[tuple[str, str]]:
    """Yield the values inside the calls of local functions.

    The body of a function is named after the fx nodes of one call. Which nodes another call stands for is found by
    walking the program backwards from what both return, side by side.
    """
    nodes = {node.name: node for node in module.graph.nodes}
    ends: dict[str, list[tuple[Node, Node]]] = {}
    inner: dict[str, list[tuple[str, str]]] = {}
    for name, index in candidate.producer.items():
        label = NodeLabel.of(candidate.nodes[index])
        if label.function is None or (label.fx_node or "").rpartition("/")[0] != scope:
            continue
        call, origin, base = label.name.rpartition("__")[2], fx_name(label.fx_node), name.rpartition("__")[0]
        if name in nodes and origin in nodes:
            ends.setdefault(call, []).append((nodes[origin], nodes[name]))
        elif base in nodes:
            inner.setdefault(call, []).append((name, base))
    for call, names in inner.items():
        twins = _twins(ends.get(call, []))
        yield from ((own, twins[name]) for own, name in names if name in twins)


def _twins(ends: Sequence[tuple[Node, Node]]) -> dict[str, str]:
    """Return the nodes that correspond to each other behind two nodes that do, by name."""
    twins: dict[str, str] = {}
    pending = list(ends)
    while pending:
        first, second = pending.pop()
        if first.name not in twins and first.op == second.op == "call_function" and first.target == second.target:
            twins[first.name] = second.name
            pending += zip(first.all_input_nodes, second.all_input_nodes, strict=False)
    return twins


def _parts(module: GraphModule) -> dict[str, dict[int, str]]:
    """Return the name of each part that is taken of a node with several results, by position."""
    parts: dict[str, dict[int, str]] = {}
    for node in module.graph.nodes:
        if node.target is operator.getitem and isinstance(node.args[1], int):
            parts.setdefault(node.args[0].name, {})[node.args[1]] = node.name
    return parts


def _join(scope: str, name: str) -> str:
    return f"{scope}/{name}" if scope else name


def _returned(module: GraphModule) -> list[str]:
    """Return the names of what a graph returns; empty for what no node makes."""
    output = next(node for node in module.graph.nodes if node.op == "output").args[0]
    return [getattr(value, "name", "") for value in (output if isinstance(output, (list, tuple)) else [output])]


def _array(value: Any) -> Any:
    return onnx_form(to_numpy(value)) if is_tensor(value) else np.asarray(value)


def _fed(value: Any, declared: onnx.ValueInfoProto) -> Any:
    """Return a value of the program as the candidate's body takes it; a number has the dtype that is declared."""
    array, code = _array(value), declared.type.tensor_type.elem_type
    return array if is_tensor(value) or not is_known(code) else array.astype(numpy_dtype(code))


Enter = Callable[[Sequence[Any], BodyNode, str], Iterator[Execution]]


def _entrances(op_type: str) -> dict[Any, Enter]:
    """Return the operators that an exporter writes as this one, with what executes them."""
    operators = require_torch("entering control flow").ops.higher_order
    if op_type == "If":
        return {operators.cond: _branch}
    if op_type == "Loop":
        return {operators.while_loop: _iterations}
    return {operators.scan: _scanned, operators.map_impl: _mapped} if op_type == "Scan" else {}


def _execution(side: FxSide, call: BodyNode, body: str, label: str, given: Sequence[Any]) -> Execution:
    """Pair a nested graph with a body whose inputs are given these values.

    Raises:
        InputError: if the body takes another number of them.
    """
    graph = call.body(body)
    if len(graph.input) != len(given):
        raise InputError(f"the body of {call.name} takes {len(graph.input)} values, the program's {len(given)}")
    feeds = call.captured(graph)
    feeds.update((info.name, _fed(value, info)) for info, value in zip(graph.input, given, strict=True))
    return Execution(f"{call.name} {label}", side, standalone(graph, call.model, feeds), feeds)


def _branch(operands: Sequence[Any], call: BodyNode, scope: str) -> Iterator[Execution]:
    predicate, true_graph, false_graph, given = operands
    graph, body = (true_graph, "then_branch") if bool(predicate) else (false_graph, "else_branch")
    yield _execution(FxSide(GraphStream(graph, [copies(given)]), scope), call, body, body, [])


def _iterations(operands: Sequence[Any], call: BodyNode, scope: str) -> Iterator[Execution]:
    condition_graph, body_graph, carried, extra = operands
    condition = GraphStream(condition_graph, [copies([*carried, *extra])])
    start = call.node.input[1] if len(call.node.input) > 1 else ""
    if call.before is not None and start in (value.name for value in call.before.outputs):
        before = returning(call.before, start)
        side = FxSide(condition, f"{scope}/condition")
        yield Execution(f"{call.name} {INITIAL}", side, before, call.before_feeds)
    iteration, going = 0, bool(condition.results()[0][0])
    while going:
        body = GraphStream(body_graph, [copies([*carried, *extra])])
        following = body.results()[0]
        condition = GraphStream(condition_graph, [copies([*following, *extra])])
        state = [np.asarray(iteration, np.int64), np.asarray(True), *carried]
        yield _execution(_LoopSide(body, condition, scope), call, "body", f"iteration {iteration}", state)
        carried, going = following, bool(condition.results()[0][0])
        iteration += 1


def _scanned(operands: Sequence[Any], call: BodyNode, scope: str) -> Iterator[Execution]:
    graph, carried, scanned, *rest = operands
    extra = rest[-1] if rest else ()
    for iteration in range(len(scanned[0])):
        state = [*carried, *(values[iteration] for values in scanned)]
        body = GraphStream(graph, [copies([*state, *extra])])
        yield _execution(FxSide(body, scope), call, "body", f"iteration {iteration}", state)
        carried = body.results()[0][: len(carried)]


def _mapped(operands: Sequence[Any], call: BodyNode, scope: str) -> Iterator[Execution]:
    graph, scanned, extra = operands
    yield from _scanned((graph, [], scanned, extra), call, scope)
