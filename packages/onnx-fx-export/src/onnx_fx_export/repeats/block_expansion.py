"""Puts copies of a captured block where a graph repeats it."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch.export.graph_signature import InputKind

from onnx_fx_export.repeats.markers import marker_operators

__all__ = ["NotRepeatableError", "expand"]


class NotRepeatableError(Exception):
    """A block turned out to depend on more, or to give more, than its call shows."""


@dataclasses.dataclass
class _Block:
    """What the graph shows of a recorded call: path of the module, operands, results, and the nodes in between."""

    path: str
    operands: list[torch.fx.Node]
    nodes: list[torch.fx.Node] = dataclasses.field(default_factory=list)
    results: list[torch.fx.Node] = dataclasses.field(default_factory=list)


def expand(program: torch.export.ExportedProgram, owed: Mapping[int, Sequence[torch.fx.Node]]) -> None:
    """Replace the stand-ins of repeated calls by copies of the recorded nodes, and drop the marks, in place.

    Args:
        program: Captured while :class:`~onnx_fx_export.repeats.blocks.RepeatedBlocks` was active.
        owed: The last operands of each repeated call that the graph lacks.

    Raises:
        NotRepeatableError: If a repeated block uses or gives tensors that are not arguments, parameters or results.
    """
    begin, end, repeat = marker_operators()
    blocks: dict[int, _Block] = {}
    current: _Block | None = None
    repetitions: list[torch.fx.Node] = []
    for node in list(program.graph.nodes):
        arguments: Any = node.args
        if node.target is begin:
            current = blocks[arguments[1]] = _Block(_path(node), list(arguments[0]))
        elif node.target is end and current is not None:
            current.results, current = list(arguments[0]), None
        elif node.target is repeat:
            repetitions.append(node)
        elif current is not None and node.op in ("call_function", "get_attr"):
            current.nodes.append(node)
    for number in {int(node.args[1]) for node in repetitions}:  # type: ignore[arg-type]
        _check(program, blocks[number])
    for block in blocks.values():
        for node in block.nodes:
            node.meta["nn_module_stack"] = _completed(node.meta.get("nn_module_stack") or {}, block.path)
    for node in repetitions:
        operands, recorded, call = cast(Any, node.args)
        _copy(node, blocks[recorded], [*operands, *owed[call]], call)
    for node in list(program.graph.nodes):
        if node.target in (begin, end):
            program.graph.erase_node(node)
    program.graph_module.recompile()


def _check(program: torch.export.ExportedProgram, block: _Block) -> None:
    """Make sure that what goes into a block are its operands, and what comes out of it its results."""
    specs = program.graph_signature.input_specs
    constants = {spec.arg.name for spec in specs if spec.kind is InputKind.CONSTANT_TENSOR}
    inside, operands, results = set(block.nodes), set(block.operands), set(block.results)
    for node in block.nodes:
        if node.meta.get("unbacked_bindings"):
            raise NotRepeatableError(f"{node} has a size that its data decides")
        for used in node.all_input_nodes:
            known = used in inside or used in operands or used.name in constants or used.op == "get_attr"
            if not known and not isinstance(used.meta.get("val"), torch.SymInt):
                raise NotRepeatableError(f"{node} uses {used}, which is not an argument")
        for user in node.users:
            given = node in results or isinstance(node.meta.get("val"), torch.SymInt)
            if user not in inside and not given and user.target not in marker_operators():
                raise NotRepeatableError(f"{user} uses {node}, which is not a result")


def _copy(stand_in: torch.fx.Node, block: _Block, operands: list[torch.fx.Node], call: int) -> None:
    """Put a copy of a block in the place of the node that stands for it."""
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for theirs, own in zip(block.operands, operands, strict=True):
        # One tensor in two places of the recorded call may have been two in this one.
        if copies.setdefault(theirs, own) is not own:
            raise NotRepeatableError(f"{theirs} is passed twice to one call, and not to another")
    graph, path = stand_in.graph, _path(stand_in)
    with graph.inserting_before(stand_in):
        for node in block.nodes:
            copy = graph.node_copy(node, lambda used: copies.get(used, used))
            copy.meta = dict(node.meta)
            copy.meta["nn_module_stack"] = _moved(node.meta.get("nn_module_stack") or {}, block.path, path, call)
            copies[node] = copy
    for user in list(stand_in.users):
        assert user.target is operator.getitem
        result = block.results[int(user.args[1])]  # type: ignore[arg-type]
        user.replace_all_uses_with(copies.get(result, result))
        graph.erase_node(user)
    graph.erase_node(stand_in)


def _path(node: torch.fx.Node) -> str:
    """Return the path of the module in whose call a mark was made."""
    return str(next(reversed(node.meta["nn_module_stack"].values()))[0])


def _completed(stack: Mapping[str, Any], block: str) -> dict[str, Any]:
    """Return a module stack in which the modules inside a block have their whole path.

    torch knows a module that stands in two places of the model by the way it was reached, here from the block on.
    """
    completed: dict[str, Any] = {}
    inside = False
    for key, (path, kind) in stack.items():
        whole = f"{block}.{path}" if inside and not path.startswith(f"{block}.") else path
        completed[key] = (whole, kind)
        inside = inside or path == block
    return completed


def _moved(stack: Mapping[str, Any], source: str, target: str, call: int) -> dict[str, Any]:
    """Return a module stack as the call of another module has it."""
    moved = {}
    for key, (path, kind) in stack.items():
        if path == source or path.startswith(f"{source}."):
            moved[f"{key}#{call}"] = (target + path[len(source) :], kind)
        else:
            moved[key] = (path, kind)
    return moved
