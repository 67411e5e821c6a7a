"""In-place operators of an fx graph: whether rebinding names is all that they need.

``y = x + 1; y.add_(2); z = y * 3`` needs no more than letting ``y`` stand for the sum from then on. As soon as another
view of the same memory is read later, the graph has to be functionalized first.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping

import torch

from onnxops_decomp.spec.aten_traits import AtenTrait, has_aten_trait
from onnxops_decomp.torch_private import is_composite

__all__ = [
    "hands_through",
    "is_written_while_used",
    "needs_functionalization",
    "shared_writes",
    "shown_inputs",
    "shown_nodes",
    "shows_silently",
    "written_arguments",
    "written_inputs",
    "written_roots",
]

# Control flow, whose results share no memory with its operands.
_WITHOUT_ALIASES = (
    torch.ops.higher_order.cond,
    torch.ops.higher_order.scan,
    torch.ops.higher_order.while_loop,
)

_CASTS = frozenset(("to", "type_as"))
# What a cast may change.
_OF_CASTS = ("dtype", "device", "layout")


def written_arguments(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the operands of a call that it writes to, in schema order."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return []
    found: list[torch.fx.Node] = []
    for index, name in _written_places(target):
        found.extend(_nodes_in(node.args[index] if index < len(node.args) else node.kwargs.get(name)))
    return found


@functools.cache
def _written_places(target: torch._ops.OpOverload) -> tuple[tuple[int, str], ...]:
    """Return the positions and names of the operands that an operator writes to."""
    arguments = enumerate(target._schema.arguments)
    return tuple((index, each.name) for index, each in arguments if each.alias_info and each.alias_info.is_write)


def written_roots(graph: torch.fx.Graph) -> dict[torch.fx.Node, torch.fx.Node]:
    """Return, for each in-place call of a graph, the node that first stood for the tensor that it writes to."""
    roots: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        for operand in written_arguments(node):
            roots[node] = roots.get(operand, operand)
    return roots


def shown_inputs(graph: torch.fx.Graph) -> dict[torch.fx.Node, set[torch.fx.Node]]:
    """Return for each node the placeholders whose memory it may show."""
    shown: dict[torch.fx.Node, set[torch.fx.Node]] = {}
    for node in graph.nodes:
        operands = {node} if node.op == "placeholder" else set()
        shown[node] = operands.union(*(shown.get(operand, ()) for operand in _aliased_operands(node)))
    return shown


def shown_nodes(node: torch.fx.Node) -> set[torch.fx.Node]:
    """Return the nodes whose memory a node may show, itself among them."""
    found, ahead = set[torch.fx.Node](), [node]
    while ahead:
        one = ahead.pop()
        if one not in found:
            found.add(one)
            ahead.extend(_aliased_operands(one))
    return found


def written_inputs(graph: torch.fx.Graph) -> dict[torch.fx.Node, torch.fx.Node]:
    """Return the placeholders whose memory a graph writes to, through views too, each with the first call that does."""
    if not any(map(_writes, graph.nodes)):
        return {}
    shown = shown_inputs(graph)
    found: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        for operand in _written_operands(node):
            for root in shown.get(operand, ()):
                found.setdefault(root, node)
    return found


def is_written_while_used(view: torch.fx.Node) -> bool:
    """Tell whether anything may write to the memory that a view shows before the view, or one of it, is used last."""
    memory, shown, written, node = shown_nodes(view), {view}, False, view.next
    while node.op != "root":
        written = written or any(not memory.isdisjoint(shown_nodes(operand)) for operand in _written_operands(node))
        if not shown.isdisjoint(node.all_input_nodes):
            if written:
                return True
            if not shown.isdisjoint(_aliased_operands(node)):
                shown.add(node)
        node = node.next
    return False


def _written_operands(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the operands that a call writes to, running statistics among them."""
    if _writes_silently(node):
        return [statistic for statistic in node.args[3:5] if isinstance(statistic, torch.fx.Node)]
    return written_arguments(node)


def _writes_silently(node: torch.fx.Node) -> bool:
    if not has_aten_trait(node.target, AtenTrait.STATISTICS) or not any(node.args[5:6]):
        return False
    # Without running statistics there is nothing to write to.
    return any(isinstance(statistic, torch.fx.Node) for statistic in node.args[3:5])


def _aliased_operands(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yield the operands whose memory the result may share."""
    target = node.target
    if target in _WITHOUT_ALIASES or _is_fresh_part(node) or _casts(node):
        return
    if not isinstance(target, torch._ops.OpOverload):
        yield from node.all_input_nodes
        return
    if target._opname in _CASTS:  # what gives the dtype is not shown
        yield from _nodes_in(node.args[0] if node.args else None)
        return
    places = _shared_places(target)
    if places is not None:
        for index in places:
            yield from _nodes_in(node.args[index] if index < len(node.args) else None)
    elif shows_silently(node):
        yield from node.all_input_nodes


def shows_silently(node: torch.fx.Node) -> bool:
    """Tell whether the result of a call may share memory with an operand although the schema says that it is new."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or _shared_places(target) is not None:
        return False
    return is_composite(target) and not has_aten_trait(target, AtenTrait.FRESH)


def _casts(node: torch.fx.Node) -> bool:
    """Tell whether a call that hands its operand through if it has the wanted dtype is given one of another dtype."""
    return (kinds := _cast_kinds(node)) is not None and kinds[0].dtype != kinds[1].dtype


def hands_through(node: torch.fx.Node) -> bool:
    """Tell whether a call that may cast its operand, or drop some of it, gives the operand itself."""
    kinds, given = _cast_kinds(node), _named_arguments(node)
    if has_aten_trait(node.target, AtenTrait.DROPOUT):
        return given.get("train") is False or given.get("p") == 0
    if kinds is None or any(getattr(kinds[0], name) != getattr(kinds[1], name) for name in _OF_CASTS):
        return False
    return not given.get("copy") and given.get("memory_format") in (None, torch.preserve_format)


def _named_arguments(node: torch.fx.Node) -> Mapping[str, object]:
    """Return what a call of an operator is given, by the names of its schema."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return {}
    arguments = node.target._schema.arguments
    return {argument.name: value for argument, value in zip(arguments, node.args, strict=False)} | node.kwargs


def _cast_kinds(node: torch.fx.Node) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return what is known of the operand and the result of a call that may cast."""
    source = node.args[0] if getattr(node.target, "_opname", "") in _CASTS and node.args else None
    before, after = (one.meta.get("val") if isinstance(one, torch.fx.Node) else None for one in (source, node))
    return (before, after) if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor) else None


@functools.cache
def _shared_places(target: torch._ops.OpOverload) -> tuple[int, ...] | None:
    """Return the positions of the operands that share memory with a result by the schema; None if no result does."""
    schema = target._schema
    if all(result.alias_info is None for result in schema.returns):
        return None
    return tuple(index for index, argument in enumerate(schema.arguments) if argument.alias_info is not None)


def _is_fresh_part(node: torch.fx.Node) -> bool:
    """Tell whether a node is one of several new results of a call, and the only node that stands for it."""
    if node.target is not operator.getitem:
        return False
    whole, index = node.args
    if not isinstance(whole, torch.fx.Node) or not isinstance(whole.target, torch._ops.OpOverload):
        return False
    schema = whole.target._schema
    makes = not is_composite(whole.target) or has_aten_trait(whole.target, AtenTrait.FRESH)
    makes = makes and len(schema.returns) > 1 and all(result.alias_info is None for result in schema.returns)
    same = [user for user in whole.users if user.target is operator.getitem and user.args[1] == index]
    return makes and len(same) == 1


def _nodes_in(argument: object) -> Iterator[torch.fx.Node]:
    items = argument if isinstance(argument, list | tuple) else [argument]
    return (item for item in items if isinstance(item, torch.fx.Node))


def needs_functionalization(graph_module: torch.fx.GraphModule) -> bool:
    """Tell whether the graph writes to memory that is read later under another name, in it or in a nested graph."""
    for name, child in graph_module.named_modules():
        if name and isinstance(child, torch.fx.GraphModule) and any(map(_writes, child.graph.nodes)):
            return True
    return any(True for _ in shared_writes(graph_module.graph))


def shared_writes(graph: torch.fx.Graph) -> Iterator[set[torch.fx.Node]]:
    """Yield, for each write to memory that is read later under another name, the nodes that may stand for that memory.

    Nodes that come after the write are not among them.
    """
    nodes = list(graph.nodes)
    if not any(map(_writes, nodes)):
        return
    order = {node: position for position, node in enumerate(nodes)}
    group: dict[torch.fx.Node, set[torch.fx.Node]] = {}
    same: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in nodes:
        group[node] = {node}
        written = written_arguments(node)
        for operand in written:
            root = same.get(operand, operand)
            others = [other for other in group[root] if same.get(other, other) is not root]
            # Inputs and attributes are read once more when the model is called again.
            again = any(other.op != "call_function" for other in others)
            if again or any(order[user] > order[node] for other in others for user in other.users):
                yield set(group[root])
        if _writes_silently(node) or len(written) > 1 or (written and not _returns_itself(node)):
            yield {member for operand in node.all_input_nodes for member in group[operand]}
        for operand in _aliased_operands(node):
            group[operand] |= group[node]
            for member in list(group[operand]):
                group[member] = group[operand]
        if written:
            same[node] = same.get(written[0], written[0])


def _returns_itself(node: torch.fx.Node) -> bool:
    """Tell whether the call returns the one tensor that it writes to, as ``add_`` does."""
    returns = node.target._schema.returns  # type: ignore[union-attr]
    return len(returns) == 1 and returns[0].alias_info is not None and bool(returns[0].alias_info.is_write)


def _writes(node: torch.fx.Node) -> bool:
    return bool(written_arguments(node)) or _writes_silently(node)
