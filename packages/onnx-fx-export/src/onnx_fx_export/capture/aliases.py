"""Control flow without aliases: torch takes none whose operands, or whose results, share memory.

Where nothing writes to that memory meanwhile, a copy is the same; none is left of it in the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch.utils import _pytree as pytree

from onnxops_decomp.exporting import shown_nodes

__all__ = ["separate_results", "separated_operands"]

aten = torch.ops.aten
_CONTROL_FLOW = (
    torch.ops.higher_order.cond,
    torch.ops.higher_order.map_impl,
    torch.ops.higher_order.scan,
    torch.ops.higher_order.while_loop,
)


def separate_results(graph: torch.fx.Graph, results: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """Return results of a graph in tensors that show neither an input nor each other, copied at its end if need be."""
    shown, separate = set[torch.fx.Node](), list[torch.fx.Node]()
    for result in results:
        memory = shown_nodes(result)
        if not memory.isdisjoint(shown) or any(node.op != "call_function" for node in memory):
            separate.append(_copy(graph, result))
        else:
            separate.append(result)
            shown |= memory
    return separate


@contextlib.contextmanager
def separated_operands(module: torch.fx.GraphModule) -> Iterator[None]:
    """Let no operand of control flow share memory with another one in the body."""
    before: list[tuple[torch.fx.Node, tuple[torch.fx.node.Argument, ...]]] = []
    copies: list[torch.fx.Node] = []
    graphs = [child.graph for child in module.modules() if isinstance(child, torch.fx.GraphModule)]
    for node in [node for graph in graphs for node in graph.nodes if node.target in _CONTROL_FLOW]:
        before.append((node, node.args))
        copies.extend(_separate_operands(node))
    try:
        yield
    finally:
        for node, args in before:
            node.args = args
        for copy in copies:
            copy.graph.erase_node(copy)


def _separate_operands(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Give a call copies of the operands that share memory with one before them, in place; yield the copies."""
    shown = set[torch.fx.Node]()
    leaves, structure = pytree.tree_flatten(node.args)
    for index, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.fx.Node) or not isinstance(leaf.meta.get("val"), torch.Tensor):
            continue
        memory = shown_nodes(leaf)
        if not memory.isdisjoint(shown):
            with leaf.graph.inserting_before(node):
                leaves[index] = _copy(leaf.graph, leaf)
            yield leaves[index]
        shown |= memory
    node.args = pytree.tree_unflatten(leaves, structure)


def _copy(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    copy = graph.call_function(aten.clone.default, (node,))
    copy.meta = {key: value for key, value in node.meta.items() if key != "unbacked_bindings"}
    return copy
