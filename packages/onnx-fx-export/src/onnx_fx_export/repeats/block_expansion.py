"""Puts copies of a captured block where a graph repeats it."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from onnx_fx_export.repeats.attribute_reads import equal
from onnx_fx_export.repeats.markers import marker_operators

__all__ = ["NotRepeatableError", "expand"]


class NotRepeatableError(Exception):
    """A block turned out to depend on more, or to give more, than its call shows."""


@dataclasses.dataclass
class _Block:
    """What the graph shows of a recorded call: path of the module, the marks around it, and the nodes in between."""

    path: str
    begin: torch.fx.Node
    end: torch.fx.Node | None = None
    nodes: list[torch.fx.Node] = dataclasses.field(default_factory=list)

    # Both are read from the marks, as an operand may be the result of another repeated call, which a copy replaces.

    @property
    def operands(self) -> list[torch.fx.Node]:
        return list(cast(Any, self.begin.args[0]))

    @property
    def results(self) -> list[torch.fx.Node]:
        return [] if self.end is None else list(cast(Any, self.end.args[0]))


def expand(
    program: torch.export.ExportedProgram, owed: Mapping[int, Sequence[torch.fx.Node]], twins: Mapping[int, int]
) -> None:
    """Replace the stand-ins of repeated calls by copies of the recorded nodes, and drop the marks, in place.

    Args:
        program: Captured while :class:`~onnx_fx_export.repeats.blocks.RepeatedBlocks` was active.
        owed: The last operands of each repeated call that the graph lacks.
        twins: For recorded calls another one of which the nodes have to be the same.

    Raises:
        NotRepeatableError: If a repeated block uses or gives tensors that are not arguments, parameters or results, or
            its nodes are not those of its twin.
    """
    begin, end, repeat = marker_operators()
    blocks: dict[int, _Block] = {}
    current: _Block | None = None
    repetitions: list[torch.fx.Node] = []
    for node in list(program.graph.nodes):
        arguments: Any = node.args
        if node.target is begin:
            current = blocks[arguments[1]] = _Block(_path(node), node)
        elif node.target is end and current is not None:
            current.end, current = node, None
        elif node.target is repeat:
            repetitions.append(node)
        elif current is not None and node.op in ("call_function", "get_attr"):
            current.nodes.append(node)
    for number in {int(node.args[1]) for node in repetitions}:  # type: ignore[arg-type]
        _check(program, blocks[number])
        if number in twins and not _are_twins(program, blocks[number], blocks[twins[number]]):
            raise NotRepeatableError(f"{blocks[twins[number]].path} computes something else than {blocks[number].path}")
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


def _are_twins(program: torch.export.ExportedProgram, first: _Block, second: _Block) -> bool:
    """Tell whether two blocks have the same nodes, each of its own operands."""
    # What was computed of sizes in one block is there for the next one.
    nodes, others = ([node for node in block.nodes if not _is_number(node)] for block in (first, second))
    given = ((first.operands, second.operands), (nodes, others), (first.results, second.results))
    if any(len(mine) != len(theirs) for mine, theirs in given):
        return False
    pairs: dict[torch.fx.Node, torch.fx.Node] = {}
    if any(pairs.setdefault(mine, theirs) is not theirs for mine, theirs in zip(*given[0], strict=True)):
        return False

    def is_twin(one: Any, other: Any) -> bool:
        if isinstance(one, torch.fx.Node) and isinstance(other, torch.fx.Node):
            return pairs.get(one, one) is other or _is_same_size(one, other) or _is_same_constant(program, one, other)
        return equal(one, other)

    for mine, theirs in zip(nodes, others, strict=True):
        (leaves, spec), (other_leaves, other_spec) = (pytree.tree_flatten((n.args, n.kwargs)) for n in (mine, theirs))
        if mine.op != theirs.op or spec != other_spec or not all(map(is_twin, leaves, other_leaves)):
            return False
        if not (_is_same_attribute(program, mine, theirs) if mine.op == "get_attr" else mine.target is theirs.target):
            return False
        pairs[mine] = theirs
    return all(map(is_twin, first.results, second.results))


def _is_number(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)


def _is_same_size(one: torch.fx.Node, other: torch.fx.Node) -> bool:
    if not (_is_number(one) and _is_number(other)):
        return False
    return bool(str(one.meta["val"].node.expr) == str(other.meta["val"].node.expr))


def _is_same_constant(program: torch.export.ExportedProgram, one: torch.fx.Node, other: torch.fx.Node) -> bool:
    """Tell whether two inputs are constants that hold the same."""
    held = program.graph_signature.inputs_to_lifted_tensor_constants
    if one.name not in held or other.name not in held:
        return False
    first, second = (program.constants[held[node.name]] for node in (one, other))
    alike = first.dtype == second.dtype and first.shape == second.shape
    return alike and bool(torch.all((first == second) | ((first != first) & (second != second))))


def _is_same_attribute(program: torch.export.ExportedProgram, one: torch.fx.Node, other: torch.fx.Node) -> bool:
    """Tell whether two nodes get graphs that read alike."""
    first, second = (getattr(program.graph_module, str(node.target), None) for node in (one, other))
    if not isinstance(first, torch.fx.GraphModule) or not isinstance(second, torch.fx.GraphModule):
        return False
    return str(first.graph) == str(second.graph)


def _copy(stand_in: torch.fx.Node, block: _Block, operands: list[torch.fx.Node], call: int) -> None:
    """Put a copy of a block in place of the node that stands for it."""
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
