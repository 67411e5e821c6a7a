"""One program of two ways through a model that part at a condition."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import operator
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.utils import _pytree as pytree

from onnx_fx_export.capture.aliases import separate_results
from onnx_fx_export.capture.conditions.answers import answer_mark, way_mark
from onnx_fx_export.capture.ways.shapes import SameShapes
from onnx_fx_export.errors import CaptureError
from onnx_fx_export.torch_private import fake_beside, is_decided_by_data

__all__ = ["Join", "merge_ways"]

aten = torch.ops.aten
_Node = torch.fx.Node
_Pairs = list[tuple[_Node, _Node]]
_NUMBERS = itertools.count()
_SYMBOLIC = torch.SymInt | torch.SymBool | torch.SymFloat
_BY_CONTENT = "way_"


def merge_ways(program: torch.export.ExportedProgram, other: torch.export.ExportedProgram) -> None:
    """Put a ``torch.cond``, marked as a way, in place of the last question, in place.

    Args:
        program: What was captured with one answer.
        other: What was captured with the other one, and the same answers before.

    Raises:
        CaptureError: If they give results of different shapes or structures, or differ before the question.
    """
    join = Join.of(program, other)
    join.ending.use(join.insert())
    join.erase()
    program.graph.lint()
    program.graph_module.recompile()


@dataclasses.dataclass(frozen=True)
class Join:
    """How two ways become one program.

    Attributes:
        program: The program of the first way, which is to hold both.
        mark: The question in it.
        inside: The nodes that the first way alone has, and those of the second.
        ending: What both do alike behind them.
        operands: What the branches take from before the question.
        graphs: The branches: of the first way, and of the second.
    """

    program: torch.export.ExportedProgram
    mark: _Node
    inside: tuple[Sequence[_Node], Sequence[_Node]]
    ending: _Ending
    operands: Sequence[_Node]
    graphs: tuple[torch.fx.GraphModule, torch.fx.GraphModule]

    @classmethod
    def of(cls, program: torch.export.ExportedProgram, other: torch.export.ExportedProgram, question: int = -1) -> Join:
        """Find out how two ways become one program.

        Args:
            program: What was captured with one answer.
            other: What was captured with the other one to one question, and the same answers to those before.
            question: The number of that question.

        Raises:
            CaptureError: If they give results of different shapes or structures, or differ before the question.
        """
        marks = [one.graph.find_nodes(op="call_function", target=answer_mark()) for one in (program, other)]
        mark, other_mark = (each[question] for each in marks)
        if _outputs(program) != _outputs(other):
            raise CaptureError("The paths through the model change different buffers.")
        if program.call_spec.out_spec != other.call_spec.out_spec:
            raise CaptureError("The data decides the structure of what the model returns.")
        same, own = _same_before(program, mark, other, other_mark)
        ours, theirs = _after(mark), _after(other_mark)
        ending = _Ending(ours, theirs, same, SameShapes.of(program, other))
        results = ending.results
        inside = ours[: len(ours) - ending.length], [*own, *theirs[: len(theirs) - ending.length]]
        operands = _operands(mark, inside, results, same)
        back = {ours: theirs for theirs, ours in same.items()}
        # Constants of one value stand for one.
        equal = {theirs: back[ours] for theirs, ours in same.items()}
        graphs = (
            _branch(program, inside[0], [pair[0] for pair in results], operands, {}),
            _branch(
                other, inside[1], [pair[1] for pair in results], [back.get(node, node) for node in operands], equal
            ),
        )
        for symbol, bounds in other.range_constraints.items():
            program.range_constraints.setdefault(symbol, bounds)
        return cls(program, mark, inside, ending, operands, graphs)

    def insert(self) -> dict[tuple[_Node, _Node], _Node]:
        """Insert the condition before its mark, and return its results."""
        graphs = self.graphs if self.mark.args[1] else self.graphs[::-1]
        results = self.ending.results
        return _cond(self.program, self.mark, graphs, results, self.operands) if results else {}

    def erase(self) -> None:
        """Take away the mark, and what the branches have."""
        for node in [*reversed(self.inside[0]), self.mark]:
            self.program.graph.erase_node(node)


def _outputs(program: torch.export.ExportedProgram) -> list[tuple[Any, str | None]]:
    return [(spec.kind, spec.target) for spec in program.graph_signature.output_specs]


def _after(mark: _Node) -> list[_Node]:
    """Return the nodes behind a mark, with the output."""
    found, node = [], mark.next
    while node.op != "root":
        found.append(node)
        node = node.next
    return found


# ---- before the question


def _same_before(
    program: torch.export.ExportedProgram, mark: _Node, other: torch.export.ExportedProgram, other_mark: _Node
) -> tuple[dict[_Node, _Node], list[_Node]]:
    """Return the nodes of a program that stand for those of another one before their marks, and what only that has.

    A size is read before the question where it is needed behind it.

    Raises:
        CaptureError: If they differ in anything else.
    """
    same, own = _same_inputs(program, other), list[_Node]()
    ours, theirs = deque(_before(program, mark)), deque(_before(other, other_mark))
    while ours or theirs:
        pairs = _arguments(ours[0], theirs[0]) if ours and theirs else None
        if pairs is not None and all(same.get(right) is left or _are_one_size(left, right) for left, right in pairs):
            same[theirs.popleft()] = ours.popleft()
        elif theirs and _is_size(theirs[0]):
            own.append(theirs.popleft())
        elif ours and _is_size(ours[0]):
            ours.popleft()
        else:
            raise CaptureError("The model does not do the same each time before the data decides.")
    return same, own


def _before(program: torch.export.ExportedProgram, mark: _Node) -> Iterator[_Node]:
    nodes = itertools.takewhile(lambda node: node is not mark, program.graph.nodes)
    return (node for node in nodes if node.op != "placeholder")


def _is_size(node: _Node) -> bool:
    """Tell whether a node computes with sizes that are no data."""
    value = node.meta.get("val")
    return isinstance(value, _SYMBOLIC) and not _bound(node) and not is_decided_by_data(value.node.expr)


def _are_one_size(first: _Node, second: _Node) -> bool:
    """Tell whether two nodes compute the same size, perhaps in other steps."""
    return _is_size(first) and _is_size(second) and bool(first.meta["val"].node.expr == second.meta["val"].node.expr)


def _same_inputs(program: torch.export.ExportedProgram, other: torch.export.ExportedProgram) -> dict[_Node, _Node]:
    """Return which inputs stand for those of another program, which gives its constants to the first."""
    known = {(spec.kind, spec.target or spec.arg.name): node for spec, node in _inputs(program)}
    same = {}
    for spec, node in _inputs(other):
        if spec.kind is InputKind.CONSTANT_TENSOR:
            same[node] = _constant(program, other.constants[str(spec.target)])
        elif (key := (spec.kind, spec.target or spec.arg.name)) in known:
            same[node] = known[key]
        else:
            raise CaptureError("The paths through the model have different inputs.")
    return same


def _inputs(program: torch.export.ExportedProgram) -> Iterator[tuple[InputSpec, _Node]]:
    placeholders = program.graph.find_nodes(op="placeholder")
    return zip(program.graph_signature.input_specs, placeholders, strict=True)


def _constant(program: torch.export.ExportedProgram, value: Any) -> _Node:
    """Return the input of a program that is this constant; a new one if there is none."""
    for spec, node in _inputs(program):
        if spec.kind is InputKind.CONSTANT_TENSOR and _is_equal(program.constants[str(spec.target)], value):
            return node
    specs = program.graph_signature.input_specs
    name = f"constant_of_a_way_{next(_NUMBERS)}"
    place = next((index for index, spec in enumerate(specs) if spec.kind is InputKind.USER_INPUT), len(specs))
    nodes = program.graph.find_nodes(op="placeholder")
    before = nodes[place] if place < len(nodes) else nodes[-1].next
    with program.graph.inserting_before(before):
        added: _Node = program.graph.placeholder(name)
    added.meta["val"] = fake_beside(nodes, value)
    program.constants[name] = value
    specs.insert(place, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(added.name), name))
    return added


def _is_equal(first: Any, second: Any) -> bool:
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return first is second
    return first is second or (
        first.dtype == second.dtype and first.shape == second.shape and bool(torch.equal(first, second))
    )


def _arguments(first: _Node, second: _Node) -> _Pairs | None:
    """Return the nodes in the same places of two calls; None if these are not calls of the same."""
    if first.op != second.op or first.target != second.target:
        return None
    ours, structure = pytree.tree_flatten((first.args, dict(first.kwargs)))
    theirs, others = pytree.tree_flatten((second.args, dict(second.kwargs)))
    if structure != others:
        return None
    pairs: _Pairs = []
    for left, right in zip(ours, theirs, strict=True):
        if isinstance(left, _Node) and isinstance(right, _Node):
            pairs.append((left, right))
        elif isinstance(left, _Node) or type(left) is not type(right):
            return None
        elif left != right and first.target is not aten._assert_scalar.default:
            # An assertion names nodes in its message.
            return None
    return pairs


# ---- where the ways meet again


@dataclasses.dataclass
class _Ending:
    """What two ways do alike behind their branches.

    Attributes:
        ours: The nodes of the first way behind the question.
        theirs: Those of the second.
        same: The nodes of the first way that stand for those of the second before the question.
        shapes: Compares their shapes.
        length: How many of the last nodes are the same.
        results: What these take from the branches.
    """

    ours: Sequence[_Node]
    theirs: Sequence[_Node]
    same: Mapping[_Node, _Node]
    shapes: SameShapes
    length: int = 0
    results: _Pairs = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        """Find the longest ending that takes nothing but tensors of the same shapes.

        Raises:
            CaptureError: If there is none.
        """
        self._behind = set(self.ours)
        self._decided = {str(symbol) for way in (self.ours, self.theirs) for node in way for symbol in _bound(node)}
        wanted: dict[tuple[_Node, _Node], None] = {}
        for count, (left, right) in enumerate(zip(reversed(self.ours), reversed(self.theirs), strict=False), 1):
            pairs = _arguments(left, right)
            # What one of them is taken for must be what the other one is.
            apart = any((a is left) is not (b is right) for a, b in wanted)
            if pairs is None or apart or (left.op == "get_attr" and not str(left.target).startswith(_BY_CONTENT)):
                break
            wanted = {pair: None for pair in (*wanted, *pairs) if pair != (left, right)}
            results = [pair for pair in wanted if not self._is_known(*pair)]
            if self._fit(results):
                self.length, self.results = count, results
        if not self.length:
            raise CaptureError("The data decides the shape or the type of what the model returns.")

    def _is_known(self, left: _Node, right: _Node) -> bool:
        """Tell whether what the first way has from before the question is the value of the second way, too."""
        ours, theirs = left.meta.get("val"), right.meta.get("val")
        if isinstance(ours, _SYMBOLIC) and isinstance(theirs, _SYMBOLIC) and left not in self._behind:
            return not is_decided_by_data(ours.node.expr) and bool(ours.node.expr == theirs.node.expr)
        return self.same.get(right) is left

    def _fit(self, results: _Pairs) -> bool:
        shapes = [size for node, _ in results for size in getattr(node.meta.get("val"), "shape", ())]
        free = {
            str(symbol) for size in shapes if isinstance(size, torch.SymInt) for symbol in size.node.expr.free_symbols
        }
        return not self._decided & free and all(itertools.starmap(self._are_alike, results))

    def _are_alike(self, first: _Node, second: _Node) -> bool:
        ours, theirs = first.meta.get("val"), second.meta.get("val")
        return isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor) and self.shapes.alike(ours, theirs)

    def use(self, found: Mapping[tuple[_Node, _Node], _Node]) -> None:
        """Let the ending take what the branches give."""
        start = len(self.ours) - self.length, len(self.theirs) - self.length
        for node, counterpart in zip(self.ours[start[0] :], self.theirs[start[1] :], strict=True):
            pairs = iter(_arguments(node, counterpart) or ())

            def taken(value: Any, pairs: Iterator[tuple[_Node, _Node]] = pairs) -> Any:
                return found.get(next(pairs), value) if isinstance(value, _Node) else value

            args, kwargs = pytree.tree_map(taken, (node.args, dict(node.kwargs)))
            node.args, node.kwargs = args, kwargs


def _bound(node: _Node) -> Sequence[Any]:
    """Return the symbols that data gives a value at a node."""
    return [*(node.meta.get("unbacked_bindings") or {})]


# ---- the condition


def _operands(
    mark: _Node, inside: tuple[Sequence[_Node], Sequence[_Node]], results: _Pairs, same: Mapping[_Node, _Node]
) -> list[_Node]:
    """Return what the branches take from before the question."""
    own, others = set(inside[0]), set(inside[1])
    found: dict[_Node, None] = {}
    for node in (*(used for each in inside[0] for used in each.all_input_nodes), *(left for left, _ in results)):
        if node not in own:
            found[node] = None
    for node in (*(used for each in inside[1] for used in each.all_input_nodes), *(right for _, right in results)):
        if node not in others:
            found[same[node]] = None
    return [*found]


def _branch(
    program: torch.export.ExportedProgram,
    nodes: Sequence[_Node],
    results: Sequence[_Node],
    operands: Sequence[_Node],
    equal: Mapping[_Node, _Node],
) -> torch.fx.GraphModule:
    """Return a graph of some nodes of a program; others may be equal to its operands."""
    graph, copies = torch.fx.Graph(), dict[_Node, _Node]()
    for index, operand in enumerate(operands):
        copies[operand] = graph.placeholder(f"operand_{index}")
        copies[operand].meta = {key: value for key, value in operand.meta.items() if key != "unbacked_bindings"}
    copies.update({node: copies[operand] for node, operand in equal.items() if operand in copies})
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(separate_results(graph, [copies[node] for node in results])))
    return torch.fx.GraphModule(program.graph_module, graph)


def _cond(
    program: torch.export.ExportedProgram,
    mark: _Node,
    graphs: Sequence[torch.fx.GraphModule],
    results: _Pairs,
    operands: Sequence[_Node],
) -> dict[tuple[_Node, _Node], _Node]:
    """Insert a ``torch.cond`` before a mark, with a mark of its own, and return its results."""
    graph, where = program.graph, {k: v for k, v in mark.meta.items() if k in ("stack_trace", "nn_module_stack")}
    with graph.inserting_before(mark):
        branches = []
        for module in graphs:
            # Branches that do the same have the same name.
            name = _BY_CONTENT + hashlib.sha256(str(module.code).encode()).hexdigest()[:16]
            setattr(program.graph_module, name, module)
            branches.append(graph.get_attr(name))
        graph.call_function(way_mark(), (mark.args[0], mark.args[2])).meta = {**where, "val": None}
        condition = graph.call_function(torch.ops.higher_order.cond, (mark.args[0], *branches, tuple(operands)))
        condition.meta = {**where, "val": tuple(left.meta["val"] for left, _ in results)}
        found = {}
        for index, pair in enumerate(results):
            found[pair] = graph.call_function(operator.getitem, (condition, index))
            found[pair].meta = {**where, "val": pair[0].meta["val"]}
    return found
