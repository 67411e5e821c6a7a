"""Assertions of an fx graph, which the exported graph does without, and what is computed for them alone."""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree

from onnxops_decomp.graph.mutation import written_arguments
from onnxops_decomp.lowerings.layout.shapes import ASSERTIONS

__all__ = ["unneeded_nodes"]

aten = torch.ops.aten


def unneeded_nodes(graph: torch.fx.Graph) -> frozenset[torch.fx.Node]:
    """Return the assertions of a graph and the calls whose results nothing but assertions reads.

    A call that writes to an operand, or gives a size that other nodes have, is needed.
    """
    found: set[torch.fx.Node] = set()
    if not any(node.target in ASSERTIONS or node.target is torch._check for node in graph.nodes):
        return frozenset()
    # Printing the sizes of all nodes costs more than the rest, and most graphs have none that data decides.
    binds = any(node.meta.get("unbacked_bindings") for node in graph.nodes)
    symbols: set[str] = set()
    for node in reversed(graph.nodes):
        asserts = node.target in ASSERTIONS or node.target is torch._check
        unread = node.op == "call_function" and found.issuperset(node.users)
        bound = {str(symbol) for symbol in node.meta.get("unbacked_bindings") or ()}
        for_assertions = node.users and not written_arguments(node) and symbols.isdisjoint(bound)
        if unread and (asserts or for_assertions):
            found.add(node)
        elif binds:
            symbols.update(_symbols(node))
    return frozenset(found)


def _symbols(node: torch.fx.Node) -> set[str]:
    """Return the symbols in the sizes of a node's value that data decides."""
    numbers: list[object] = []
    for leaf in pytree.tree_leaves(node.meta.get("val")):
        numbers += leaf.shape if isinstance(leaf, torch.Tensor) else [leaf]
    symbolic = (number for number in numbers if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool))
    return {str(symbol) for number in symbolic for symbol in number.node.expr.free_symbols}
