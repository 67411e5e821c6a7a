"""Makes one loop of the recorded ways through its body.

What the loop hands from one row to the next are the variables that the body binds to other tensors, and the tensors
that it writes to. Each way computes them from the start; conditions choose between the ways.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.capture.aliases import separate_results
from onnx_fx_export.capture.loops.recording import loop_marks
from onnx_fx_export.errors import CaptureError
from onnx_fx_export.origin import source_line
from onnxops_decomp.exporting import functional_overload, shared_writes, shown_nodes, written_arguments

__all__ = ["are_alike", "constants_of", "copied", "expand_loops", "rebound", "submodule"]

aten = torch.ops.aten
_Nodes = Sequence[torch.fx.Node]


@dataclasses.dataclass
class _Way:
    """One way through the body.

    Attributes:
        row: The mark with which it begins.
        nodes: What it computes.
        decisions: Its marks of conditions, in order.
        before: What the variables held when it began.
        after: What they held in the end.
    """

    row: torch.fx.Node
    nodes: list[torch.fx.Node] = dataclasses.field(default_factory=list)
    decisions: list[torch.fx.Node] = dataclasses.field(default_factory=list)
    before: _Nodes = ()
    after: _Nodes = ()

    @property
    def answers(self) -> list[bool]:
        """What its conditions were taken for."""
        return [cast(bool, mark.args[3]) for mark in self.decisions]


def expand_loops(program: torch.export.ExportedProgram) -> None:
    """Replace the recorded ways by loops, in place.

    Raises:
        CaptureError: If what a body does is more than a loop of tensors can hold.
    """
    marks = loop_marks()
    _name_by_memory(program.graph)
    loops: dict[int, list[_Way]] = {}
    current: _Way | None = None
    for node in list(program.graph.nodes):
        arguments: Any = node.args
        if node.target is marks.row.default:
            current = _Way(node)
            loops.setdefault(arguments[1], []).append(current)
        elif node.target is marks.finish.default and current is not None:
            current.before, current.after = arguments[:2]
            current = None
            program.graph.erase_node(node)
        elif node.target is marks.decide.default and current is not None:
            current.decisions.append(node)
        elif current is not None:
            _take(current, node)
    # What one loop leaves to a later one is used by that then.
    for ways in reversed(loops.values()):
        _Loop(program, ways).expand()
    program.graph_module.recompile()


def _name_by_memory(graph: torch.fx.Graph) -> None:
    """Read what the calls of a body write by the name of the tensor that they write to, in place."""
    marks, inside = loop_marks(), False
    for node in graph.nodes:
        if node.target in (marks.row.default, marks.finish.default):
            inside = node.target is marks.row.default
        elif inside and len(written := written_arguments(node)) == 1:
            node.replace_all_uses_with(written[0])


def _take(way: _Way, node: torch.fx.Node) -> None:
    """Let a node belong to a way, unless it stands there by chance: sizes are read where they are first needed."""
    if isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns:
        # Assertions, of which no result is made.
        node.graph.erase_node(node)
        return
    inside = {way.row, *way.nodes}
    by_chance = isinstance(node.meta.get("val"), torch.SymInt | torch.SymBool | torch.SymFloat) or node.op == "get_attr"
    if by_chance and not any(used in inside for used in node.all_input_nodes):
        way.row.prepend(node)
    else:
        way.nodes.append(node)


class _Loop:
    """A loop that was recorded.

    Args:
        program: What was captured.
        ways: The ways through its body, the last one twice.
    """

    def __init__(self, program: torch.export.ExportedProgram, ways: Sequence[_Way]) -> None:
        self.module, self.graph = program.graph_module, program.graph
        self.constants = constants_of(program)
        self.ways, again = ways[:-1], ways[-1]
        self.all = {node for way in ways for node in (way.row, *way.nodes, *way.decisions)}
        self.place = source_line(ways[0].row)
        self.latest = again
        self._compare(self.ways[-1], again)
        self.rebound = [
            index
            for index, node in enumerate(ways[0].before)
            if any(way.after[index] is not way.before[index] for way in ways)
            and _fits(node, ways[-1].after[index])
            and self._is_needed(index)
        ]
        writes = [written for way in self.ways for node in way.nodes for written in written_arguments(node)]
        roots = dict.fromkeys(map(self._outer_root, writes))
        self.written = [root for root in roots if root is not None]

    def expand(self) -> None:
        """Put the loop in place of the ways."""
        first = self.ways[0]
        initial = [first.before[index] for index in self.rebound] + self.written
        self._check_aliases()
        extra = self._operands(initial)
        body = self._body(self.ways, 0, initial, [*initial, first.row, *extra])
        with self.graph.inserting_before(first.row):
            scanned = cast(torch.fx.Node, first.row.args[0])
            name = submodule(self.module, "rows", body)
            loop = self.graph.call_function(
                torch.ops.higher_order.scan, (self.graph.get_attr(name), initial, [scanned], tuple(extra))
            )
            loop.meta.update(first.row.meta)
            loop.meta["val"] = tuple(node.meta["val"] for node in initial)
            results = [self._part(loop, index, node) for index, node in enumerate(initial)]
            for root, result in zip(self.written, results[len(self.rebound) :], strict=True):
                copy = self.graph.call_function(aten.copy_.default, (root, result))
                copy.meta.update(root.meta)
        self._use(dict(zip(self.rebound, results, strict=False)))
        self._erase()

    # ---- checks

    def _refuse(self, reason: str) -> CaptureError:
        where = f" at {self.place}" if self.place else ""
        return CaptureError(
            f"The loop{where}, of data-dependent length, {reason}. Use torch.while_loop or torch.cond instead."
        )

    def _compare(self, way: _Way, again: _Way) -> None:
        """Make sure that the body does the same each time."""
        same = dict(zip(again.before, way.before, strict=True)) | {again.row: way.row}
        if not are_alike(way.nodes, again.nodes, same, self.constants):
            raise self._refuse("does not do the same in every iteration, as with a counter or a list")

    def _is_needed(self, index: int) -> bool:
        """Tell whether a body reads what a variable held before, or something else what it holds after the loop."""
        inside = {used for way in self.ways for node in (*way.nodes, *way.decisions) for used in node.all_input_nodes}
        if any(way.before[index] in inside and way.before[index] not in way.nodes for way in self.ways):
            return True
        return any(user not in self.all for user in self.latest.after[index].users)

    def _outer_root(self, node: torch.fx.Node) -> torch.fx.Node | None:
        """Return the tensor from outside that a write reaches, None for one that the body made.

        Raises:
            CaptureError: If it is reached through a view.
        """
        if node not in self.all:
            return node
        if any(other not in self.all for other in shown_nodes(node)):
            raise self._refuse(
                f"writes to a part of a tensor (in {node}); use index_put or index_add on the whole tensor"
            )
        return None

    def _check_aliases(self) -> None:
        used = {used for way in self.ways for node in way.nodes for used in node.all_input_nodes} - self.all
        for root in self.written:
            memory = shown_nodes(root)
            if any(other is not root and memory & shown_nodes(other) for other in used):
                raise self._refuse(f"reads, under another name, memory that it writes to ({root})")

    def _use(self, results: Mapping[int, torch.fx.Node]) -> None:
        """Let what comes after the loop take the results of variables, given by their numbers."""
        behind = _following(self.latest.row) - self.all
        ends = {index: self.latest.after[index] for index in results}
        users = {end: [user for user in end.users if user in behind] for end in ends.values()}
        starts: dict[torch.fx.Node, torch.fx.Node] = {}
        for index, end in ends.items():
            start = self.ways[0].before[index]
            # After a loop over no rows the variables would hold what they did before.
            if users[end] and (end not in self.all or starts.setdefault(end, start) is not start):
                raise self._refuse(f"lets two variables stand for one tensor, {end}; assign a copy, as by clone()")
            for user in users[end]:
                user.replace_input_with(end, results[index])

    def _erase(self) -> None:
        order = [node for node in self.graph.nodes if node in self.all]
        for node in reversed(order):
            if node.users:
                user = next(iter(node.users))
                raise self._refuse(f"hands {node} to {user}, and a loop over no rows would not have computed it")
            self.graph.erase_node(node)

    # ---- graphs

    def _operands(self, initial: _Nodes) -> list[torch.fx.Node]:
        """Return what the body uses from outside besides what it hands on."""
        used = [used for way in self.ways for node in (*way.nodes, *way.decisions) for used in node.all_input_nodes]
        used += [way.after[index] for way in self.ways for index in self.rebound]
        return [node for node in dict.fromkeys(used) if node not in self.all and node not in {*initial}]

    def _part(self, node: torch.fx.Node, index: int, like: torch.fx.Node) -> torch.fx.Node:
        part = node.graph.call_function(operator.getitem, (node, index))
        part.meta["val"] = like.meta["val"]
        return part

    def _body(
        self, ways: Sequence[_Way], decided: int, initial: _Nodes, operands: Sequence[torch.fx.Node]
    ) -> torch.fx.GraphModule:
        """Return a graph of ways that have their first decisions in common.

        Args:
            ways: The ways.
            decided: How many decisions they have in common.
            initial: What is handed from row to row.
            operands: What the placeholders stand for: these, the row, and what is used from outside.
        """
        graph, root = torch.fx.Graph(), torch.nn.Module()
        inside: dict[torch.fx.Node, torch.fx.Node] = {}
        for number, operand in enumerate(operands):
            inside[operand] = graph.placeholder(f"arg{number}")
            inside[operand].meta.update({"val": operand.meta.get("val")})
        open_ways = [way for way in ways if len(way.decisions) > decided]
        way = open_ways[0] if open_ways else ways[0]
        for number, index in enumerate(self.rebound):
            inside[way.before[index]] = inside[initial[number]]
        inside[way.row] = inside[self.ways[0].row]
        end = way.decisions[decided] if open_ways else None
        for node in way.nodes:
            if end is not None and node in _following(end):
                break
            inside[node] = self._copied(graph, root, node, inside)
        if end is None:
            results = [inside[way.after[index]] for index in self.rebound] + [inside[node] for node in self.written]
            graph.output(tuple(rebound(graph, results)))
        else:
            # The branches start anew, with what the row was given: what was written until here is not for them.
            (condition,) = rebound(graph, [inside[cast(torch.fx.Node, end.args[0])]])
            given = [inside[operand] for operand in operands]
            branches = [
                self._body([w for w in ways if w.answers[decided] is answer], decided + 1, initial, operands)
                for answer in (True, False)
            ]
            names = [f"way_{index}" for index in (0, 1)]
            for place, branch in zip(names, branches, strict=True):
                root.add_module(place, branch)
            parts = [graph.get_attr(place) for place in names]
            choice = graph.call_function(torch.ops.higher_order.cond, (condition, *parts, tuple(given)))
            choice.meta["val"] = tuple(node.meta["val"] for node in initial)
            graph.output(tuple(self._part(choice, index, node) for index, node in enumerate(initial)))
        graph.eliminate_dead_code()
        return torch.fx.GraphModule(root, graph)

    def _copied(
        self,
        graph: torch.fx.Graph,
        root: torch.nn.Module,
        node: torch.fx.Node,
        inside: dict[torch.fx.Node, torch.fx.Node],
    ) -> torch.fx.Node:
        if missing := [used for used in node.all_input_nodes if used not in inside]:
            raise self._refuse(f"uses {missing[0]}, which was computed for another row")
        return copied(self.module, graph, root, node, inside)


def constants_of(program: torch.export.ExportedProgram) -> dict[str, Any]:
    """Return the constants of a program by the names of the inputs that stand for them."""
    named = program.graph_signature.inputs_to_lifted_tensor_constants
    return {name: program.constants.get(target) for name, target in named.items()}


def are_alike(
    ones: _Nodes, others: _Nodes, same: dict[torch.fx.Node, torch.fx.Node], constants: Mapping[str, Any]
) -> bool:
    """Tell whether two iterations compute the same.

    Args:
        ones: The nodes of one, in order.
        others: Those of the other.
        same: What stands in the first for what the other one starts from; its nodes are added.
        constants: Those of the program, by the names of their nodes.
    """
    if len(ones) != len(others):
        return False
    for one, other in zip(ones, others, strict=True):
        first, second = (pytree.tree_leaves((node.args, node.kwargs)) for node in (one, other))
        if one.target != other.target or len(first) != len(second):
            return False
        second = [same.get(leaf, leaf) if isinstance(leaf, torch.fx.Node) else leaf for leaf in second]
        if not all(_is_same(a, b, constants) for a, b in zip(first, second, strict=True)):
            return False
        same[other] = one
    return True


def _is_same(one: object, other: object, constants: Mapping[str, Any]) -> bool:
    """Tell whether two arguments are the same; a tensor made of Python numbers is a new constant each time."""
    if not isinstance(one, torch.fx.Node) or not isinstance(other, torch.fx.Node):
        return type(one) is type(other) and one == other
    first, second = (constants.get(node.name) for node in (one, other))
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return torch.equal(first, second)
    return one is other or (_is_made_anew(one) and _is_made_anew(other) and _are_equal_calls(one, other, constants))


def _is_made_anew(node: torch.fx.Node) -> bool:
    """Tell whether a call makes a tensor of numbers alone, as ``ones`` does, which nothing writes to or shows."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    operands = [operand.meta.get("val") for operand in node.all_input_nodes]
    schemas = [getattr(user.target, "_schema", None) for user in node.users]
    is_plain = not any(isinstance(operand, torch.Tensor) for operand in operands)
    return is_plain and all(s is not None and not any(a.alias_info for a in s.arguments) for s in schemas)


def _are_equal_calls(one: torch.fx.Node, other: torch.fx.Node, constants: Mapping[str, Any]) -> bool:
    first, second = (pytree.tree_leaves((node.args, node.kwargs)) for node in (one, other))
    is_alike = one.target == other.target and len(first) == len(second)
    return is_alike and all(_is_same(a, b, constants) for a, b in zip(first, second, strict=True))


def submodule(home: torch.fx.GraphModule, name: str, module: torch.fx.GraphModule) -> str:
    """Add a module under a name that is free, and return that."""
    number = 0
    while hasattr(home, f"{name}_{number}"):
        number += 1
    home.add_submodule(f"{name}_{number}", module)
    return f"{name}_{number}"


def copied(
    module: torch.fx.GraphModule,
    graph: torch.fx.Graph,
    root: torch.nn.Module,
    node: torch.fx.Node,
    inside: Mapping[torch.fx.Node, torch.fx.Node],
) -> torch.fx.Node:
    """Copy a node into the body of a loop.

    Args:
        module: What the node belongs to.
        graph: The body.
        root: What holds the attributes of the body.
        node: The node.
        inside: What its operands are in the body.
    """
    if node.op == "get_attr":
        value: Any = operator.attrgetter(str(node.target))(module)
        setattr(root, str(node.target).replace(".", "_"), value)
        copy = graph.get_attr(str(node.target).replace(".", "_"))
    else:
        copy = graph.node_copy(node, lambda used: inside[used])
        if copy.target is aten.item.default:
            # The one that torch traces again where writes become values.
            copy.target = aten._local_scalar_dense.default
    copy.meta = dict(node.meta)
    return copy


def _following(mark: torch.fx.Node) -> set[torch.fx.Node]:
    """Return the nodes after a mark, in its graph."""
    found, node = set[torch.fx.Node](), mark.next
    while node.op != "root":
        found.add(node)
        node = node.next
    return found


def _fits(first: torch.fx.Node, last: torch.fx.Node) -> bool:
    """Tell whether a variable holds the same kind of tensor before and after the loop."""
    one, other = first.meta["val"], last.meta["val"]
    return bool(one.dtype == other.dtype and list(map(str, one.shape)) == list(map(str, other.shape)))


def rebound(graph: torch.fx.Graph, results: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """Let calls that write return new tensors, in place; return what results stand for in the end.

    Raises:
        CaptureError: If a write is read under another name.
    """
    if any(True for _ in shared_writes(graph)):
        raise CaptureError("A loop of data-dependent length reads, under another name, memory that it writes to.")
    standing: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        written = written_arguments(node)
        node.args = torch.fx.map_arg(node.args, lambda used: standing.get(used, used))
        node.kwargs = torch.fx.map_arg(node.kwargs, lambda used: standing.get(used, used))
        if written:
            assert isinstance(node.target, torch._ops.OpOverload)
            target = written[0]
            for alias in [key for key, value in standing.items() if value is standing.get(target, target)]:
                standing[alias] = node
            standing[target] = node
            node.target = functional_overload(node.target)
    return separate_results(graph, [standing.get(result, result) for result in results])
