"""Makes loops of what was computed of pieces that stand for any number of them.

What leads from the places of the first piece to a result that joins all pieces is the body of a loop, whose iterations
write what they compute where their piece was.
"""

from __future__ import annotations

import operator
from typing import Any, cast

import torch

from onnx_fx_export.capture.conditions.answers import answer_mark
from onnx_fx_export.capture.loops.expansion import are_alike, constants_of, copied, rebound, submodule
from onnx_fx_export.capture.loops.pieces import COPIES, piece_marks
from onnx_fx_export.errors import CaptureError
from onnx_fx_export.origin import source_line
from onnxops_decomp.exporting import written_arguments

__all__ = ["join_pieces", "questions_of_pieces"]

aten = torch.ops.aten


def join_pieces(program: torch.export.ExportedProgram) -> None:
    """Replace what was computed of pieces by loops, in place; what was asked about their lengths must not matter.

    Raises:
        CaptureError: If the code does more with pieces than to compute of each what is joined.
    """
    graph, marks = program.graph, piece_marks()
    of_pieces = _descendants(graph)
    for node in [node for node in of_pieces if _asserts(node)]:
        graph.erase_node(node)
        del of_pieces[node]
    joins = [node for node in graph.nodes if node.target in (marks.join.default, marks.rows.default)]
    for join in joins:
        _Join(program, join, of_pieces).expand()
    for node in reversed(of_pieces):
        if node.users:
            raise CaptureError(
                f"What is computed of a piece of data-dependent length{_at(node)} is used for more than to be joined "
                "with that of the other pieces. Compute with tensors instead, as by a mask of what belongs together."
            )
        graph.erase_node(node)
    program.graph_module.recompile()


def questions_of_pieces(program: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    """Return the marks of what was asked about the lengths of pieces, which the data decides."""
    return [node for node in _descendants(program.graph) if node.target is answer_mark()]


def _descendants(graph: torch.fx.Graph) -> dict[torch.fx.Node, None]:
    """Return what depends on the places of pieces, in the order of the graph, until it is joined."""
    marks = piece_marks()
    places = graph.find_nodes(op="call_function", target=marks.places.default)
    found: dict[torch.fx.Node, None] = dict.fromkeys(places)
    for node in graph.nodes if places else ():
        is_joined = node.target in (marks.join.default, marks.rows.default)
        if not is_joined and any(used in found for used in node.all_input_nodes):
            found.setdefault(node)
    return found


def _at(node: torch.fx.Node) -> str:
    place = source_line(node)
    return f" at {place}" if place else ""


def _asserts(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns


class _Join:
    """A result that joins what was computed of pieces.

    Args:
        program: What was captured.
        join: The mark of the result.
        of_pieces: What depends on a piece.
    """

    def __init__(self, program: torch.export.ExportedProgram, join: torch.fx.Node, of_pieces: Any) -> None:
        self.module, self.graph, self.join = program.graph_module, program.graph, join
        self.parts = cast(list[torch.fx.Node], join.args[0])
        self.bodies = [self._leading_to(part, of_pieces) for part in self.parts]
        constants = constants_of(program)
        firsts = [[node for node in body if node.target is piece_marks().places.default] for body in self.bodies]
        alike = all(len(first) == 1 for first in firsts) and len(firsts) == COPIES
        if alike:
            self.places = firsts[0][0]
            same = {firsts[1][0]: self.places}
            ones, others = (
                [node for node in body if node not in {*first}] for body, first in zip(self.bodies, firsts, strict=True)
            )
            alike = are_alike(ones, others, same, constants) and same.get(self.parts[1]) is self.parts[0]
        if not alike:
            raise self._refuse("is not the same for every one, as with a counter or a list")

    def _refuse(self, reason: str) -> CaptureError:
        return CaptureError(f"What is joined{_at(self.join)}, of pieces of data-dependent length, {reason}.")

    def _leading_to(self, part: torch.fx.Node, of_pieces: Any) -> list[torch.fx.Node]:
        """Return what depends on a piece and leads to a part, in the order of the graph."""
        found, waiting = set[torch.fx.Node](), [part]
        while waiting:
            node = waiting.pop()
            if node in of_pieces and node not in found:
                found.add(node)
                waiting.extend(node.all_input_nodes)
        # A write has no users where what it wrote to is read by another name.
        if any(written_arguments(node) for node in of_pieces):
            raise self._refuse("is written to")
        return [node for node in of_pieces if node in found]

    def expand(self) -> None:
        """Put a loop in place of the mark."""
        lengths = cast(torch.fx.Node, self.places.args[0])
        shape, like = cast(list[Any], self.join.args[1]), self.join.meta["val"]
        in_rows = self.join.target is piece_marks().rows.default
        used = dict.fromkeys(node for each in self.bodies[0] for node in each.all_input_nodes)
        extra = [node for node in used if node not in {*self.bodies[0]} and node is not lengths]
        with self.graph.inserting_before(self.join):
            bounds = self._bounds(lengths)
            # A loop hands on something.
            size, dtype = ([], torch.bool) if in_rows else (shape, like.dtype)
            device = {"device": like.device, "pin_memory": False}
            initial = self.graph.call_function(aten.full.default, (size, 0), {"dtype": dtype, **device})
            initial.meta["val"] = like.new_empty(size if in_rows else like.shape, dtype=dtype)
            body = self._body(initial, bounds, extra, in_rows)
            name = submodule(self.module, "pieces", body)
            loop = self.graph.call_function(
                torch.ops.higher_order.scan, (self.graph.get_attr(name), [initial], bounds, tuple(extra))
            )
            loop.meta.update(self.join.meta)
            loop.meta["val"] = (initial.meta["val"], like) if in_rows else (like,)
            result = self.graph.call_function(operator.getitem, (loop, int(in_rows)))
            result.meta.update(self.join.meta)
        self.join.replace_all_uses_with(result)
        self.graph.erase_node(self.join)

    def _bounds(self, lengths: torch.fx.Node) -> list[torch.fx.Node]:
        """Return where pieces begin and end, each (pieces,), int64."""
        rows = self.places.args[0].meta["val"].shape  # type: ignore[union-attr]
        ends = self.graph.call_function(aten.cumsum.default, (lengths, 0))
        starts = self.graph.call_function(aten.sub.Tensor, (ends, lengths))
        for node in (ends, starts):
            node.meta["val"] = lengths.meta["val"].new_empty(rows, dtype=torch.int64)
        return [starts, ends]

    def _body(
        self, initial: torch.fx.Node, bounds: list[torch.fx.Node], extra: list[torch.fx.Node], in_rows: bool
    ) -> torch.fx.GraphModule:
        graph, root = torch.fx.Graph(), torch.nn.Module()
        inside: dict[torch.fx.Node, torch.fx.Node] = {}
        for number, operand in enumerate((initial, *bounds, *extra)):
            inside[operand] = graph.placeholder(f"arg{number}")
            value: Any = operand.meta.get("val")
            inside[operand].meta["val"] = value.new_empty(()) if operand in bounds else value
        start, end = (self._number(graph, inside[bound]) for bound in bounds)
        for node in self.bodies[0]:
            if node is self.places:
                inside[node] = graph.call_function(aten.arange.start, (start, end))
                inside[node].meta = dict(node.meta)
            elif node.target is aten.index_select.default and node.args[2] is self.places:
                whole, dim = cast(Any, node.args)[:2]
                inside[node] = graph.call_function(aten.slice.Tensor, (inside[whole], dim, start, end))
                inside[node].meta = dict(node.meta)
            else:
                inside[node] = copied(self.module, graph, root, node, inside)
        part = inside[self.parts[0]]
        if in_rows:
            results = [inside[initial], part]
        else:
            arguments = (inside[initial], part, self.join.args[3], start, end)
            results = [graph.call_function(aten.slice_scatter.default, arguments)]
            results[0].meta["val"] = initial.meta["val"]
        graph.output(tuple(rebound(graph, results)))
        graph.eliminate_dead_code()
        return torch.fx.GraphModule(root, graph)

    @staticmethod
    def _number(graph: torch.fx.Graph, tensor: torch.fx.Node) -> torch.fx.Node:
        return graph.call_function(aten._local_scalar_dense.default, (tensor,))
