"""Writes to views as writes to what they show, so that letting names stand for new values is enough.

``y[:, 1:].mul_(2)`` becomes a product with a copy of the part, which is scattered into ``y``; views of ``y`` that are
read later are taken anew. torch's functionalization does that for all programs, by a second trace of the whole.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from onnxops_decomp.exporting import (
    AtenTrait,
    hands_through,
    has_aten_trait,
    shared_writes,
    shown_nodes,
    written_arguments,
)

__all__ = ["written_through"]

aten = torch.ops.aten
_Node = torch.fx.Node


class _View(NamedTuple):
    """How a node shows the memory of another one.

    Attributes:
        parent: The node that it shows a part of.
        back: Writes what the parent is once the part is another; None if both are the same.
        piece: The call that gave this node as one of several results.
    """

    parent: _Node
    back: Callable[[torch.fx.Graph, _Node, _Node], _Node] | None
    piece: _Node | None = None


def written_through(graph: torch.fx.Graph) -> bool:
    """Let writes to views be writes to what they show, in place.

    Args:
        graph: Left as it is where that is not possible.

    Returns:
        Whether it was: all that shows memory which is written to has to be a view that is known how to write through,
        unless it is not used after the write.
    """
    views = _views(graph)
    if views is None:
        return False
    roots = {node: _root(node, views) for node in graph.nodes}
    written = {roots[node] for nodes in shared_writes(graph) for node in nodes}
    if not _are_told_apart(graph, views, roots, written):
        return False
    _Rewriting(graph, views, roots, written).run()
    return True


def _root(node: _Node, views: Mapping[_Node, _View]) -> _Node:
    while node in views:
        node = views[node].parent
    return node


def _views(graph: torch.fx.Graph) -> dict[_Node, _View] | None:
    """Return how nodes show the memory of others, as far as that is known; None where a write has no such form."""
    found: dict[_Node, _View] = {}
    for node in graph.nodes:
        written = written_arguments(node)
        if written and (len(written) > 1 or node.args[0] is not written[0] or not _changes_contents(node)):
            return None
        if has_aten_trait(node.target, AtenTrait.STATISTICS) and any(node.args[5:6]):
            return None
        view = _View(written[0], None) if written else _view(node)
        if view is not None and "unbacked_bindings" not in node.meta:
            found[node] = view
    return found


def _changes_contents(node: _Node) -> bool:
    """Tell whether a call that writes changes what its first operand holds, not its shape, and returns that alone."""
    assert isinstance(node.target, torch._ops.OpOverload)
    returns = node.target._schema.returns
    if len(returns) != 1 or returns[0].alias_info is None or not returns[0].alias_info.is_write:
        return False
    return torch.Tag.inplace_view not in node.target.tags or node.target is aten.detach_.default


def _are_told_apart(
    graph: torch.fx.Graph, views: Mapping[_Node, _View], roots: Mapping[_Node, _Node], written: set[_Node]
) -> bool:
    """Tell whether nothing that may or may not show written memory is written to, or used after a write to it."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    writes: dict[_Node, list[int]] = {}
    shown_by: dict[_Node, list[_Node]] = {}
    for node in graph.nodes:
        shown_by.setdefault(roots[node], []).append(node)
        if written_arguments(node):
            writes.setdefault(roots[node], []).append(order[node])
    for node in graph.nodes:
        if node in views or node.op == "output":
            continue
        shown = {roots[other] for other in shown_nodes(node)} & written - {node}
        later = [place for root in shown for place in writes.get(root, ()) if place > order[node]]
        last_use = max((order[user] for one in shown_by[node] for user in one.users), default=-1)
        if (shown and node in writes) or (later and last_use > min(later)):
            return False
    return True


# ---- views


def _argument(node: _Node, name: str) -> Any:
    """Return an argument of a call, or its default."""
    for index, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if argument.name == name:
            return node.args[index] if index < len(node.args) else node.kwargs.get(name, argument.default_value)
    raise KeyError(name)


def _scatter(scatter: torch._ops.OpOverload, *arguments: Any) -> Callable[[torch.fx.Graph, _Node, _Node], _Node]:
    def back(graph: torch.fx.Graph, whole: _Node, part: _Node) -> _Node:
        return _call(graph, scatter, (whole, part, *arguments), whole)

    return back


def _call(graph: torch.fx.Graph, target: Any, args: tuple[Any, ...], like: _Node) -> _Node:
    """Add a call whose result is like what a node gives."""
    node = graph.call_function(target, args)
    node.meta = dict(like.meta)
    return node


def _permuted_back(node: _Node) -> Callable[[torch.fx.Graph, _Node, _Node], _Node]:
    # On a tensor whose sizes are all different, the order of the dimensions is to be seen.
    source = node.args[0]
    assert isinstance(source, _Node)
    probe = torch.empty([2 + axis for axis in range(source.meta["val"].dim())], device="meta")
    shape = node.target(probe, *node.args[1:], **node.kwargs).shape  # type: ignore[operator]
    order = [size - 2 for size in shape]
    inverse = [order.index(axis) for axis in range(len(order))]

    def back(graph: torch.fx.Graph, whole: _Node, part: _Node) -> _Node:
        return _call(graph, aten.permute.default, (part, inverse), whole)

    return back


def _shaped_back(graph: torch.fx.Graph, whole: _Node, part: _Node) -> _Node:
    sizes: list[Any] = []
    for axis, size in enumerate(whole.meta["val"].shape):
        if isinstance(size, torch.SymInt):
            number = graph.call_function(aten.sym_size.int, (whole, axis))
            number.meta["val"] = size
            sizes.append(number)
        else:
            sizes.append(size)
    return _call(graph, aten.reshape.default, (part, sizes), whole)


_SAME = (aten.alias.default, aten.detach.default)
_PIECES = (aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unsafe_chunk.default)


def _view(node: _Node) -> _View | None:
    """Return how a node shows the memory of one of its operands; None if it does not, or that is not known."""
    if node.target is operator.getitem:
        return _piece(node)
    source = node.args[0] if node.args else None
    if not isinstance(source, _Node):
        return None
    shown, value = source.meta.get("val"), node.meta.get("val")
    if not isinstance(shown, torch.Tensor) or not isinstance(value, torch.Tensor) or shown.dtype != value.dtype:
        return None
    if node.target in _SAME or hands_through(node):
        return _View(source, None)
    if has_aten_trait(node.target, AtenTrait.CONJUGATES) or has_aten_trait(node.target, AtenTrait.MAY_COPY):
        return None
    if has_aten_trait(node.target, AtenTrait.RESHAPES):
        return _View(source, _shaped_back)
    if has_aten_trait(node.target, AtenTrait.PERMUTES):
        return _View(source, _permuted_back(node))
    if node.target is aten.select.int:
        return _View(source, _scatter(aten.select_scatter.default, *node.args[1:]))
    if node.target is aten.slice.Tensor:
        arguments = [_argument(node, name) for name in ("dim", "start", "end", "step")]
        return _View(source, _scatter(aten.slice_scatter.default, *arguments))
    if node.target is aten.narrow.default:
        dim, start, length = node.args[1:]
        if not isinstance(start, int) or not isinstance(length, int) or start < 0:
            return None
        return _View(source, _scatter(aten.slice_scatter.default, dim, start, start + length, 1))
    if node.target is aten.diagonal.default:
        arguments = [_argument(node, name) for name in ("offset", "dim1", "dim2")]
        return _View(source, _scatter(aten.diagonal_scatter.default, *arguments))
    return None


def _piece(node: _Node) -> _View | None:
    """Return how one of several results shows the operand of the call, cut along a dimension."""
    whole, index = node.args
    source = whole.args[0] if isinstance(whole, _Node) and whole.args else None
    if not isinstance(whole, _Node) or not isinstance(source, _Node) or not isinstance(index, int):
        return None
    if whole.target is aten.unbind.int:
        return _View(source, _scatter(aten.select_scatter.default, _argument(whole, "dim"), index), whole)
    if whole.target not in _PIECES:
        return None
    dim = _argument(whole, "dim")
    sizes = [piece.shape[dim] for piece in whole.meta["val"]]
    if not all(isinstance(size, int) for size in sizes[: index + 1]) or index < 0:
        return None
    start = sum(sizes[:index])
    return _View(source, _scatter(aten.slice_scatter.default, dim, start, start + sizes[index], 1), whole)


# ---- rewriting


class _Rewriting:
    """Replaces writes through a graph, node by node.

    Args:
        graph: The graph.
        views: How nodes show the memory of others.
        roots: Of each node that which shows its memory whole.
        written: The memory that is written to and read under other names: its roots.
    """

    def __init__(
        self,
        graph: torch.fx.Graph,
        views: Mapping[_Node, _View],
        roots: Mapping[_Node, _Node],
        written: set[_Node],
    ) -> None:
        self._graph = graph
        self._views = views
        self._roots = roots
        self._written = written
        # How often memory was written to, what stands for a node and since which write.
        self._versions = dict.fromkeys(written, 0)
        self._standing: dict[_Node, tuple[_Node, int]] = {}

    def run(self) -> None:
        """Replace the writes."""
        for node in list(self._graph.nodes):
            root = self._roots[node]
            with self._graph.inserting_before(node):
                if root in self._written and written_arguments(node):
                    self._replace(node, root)
                    continue
                node.args = torch.fx.map_arg(node.args, self._now)
                node.kwargs = torch.fx.map_arg(node.kwargs, self._now)
            if root in self._written:
                self._standing[node] = node, self._versions[root]

    def _now(self, node: _Node) -> _Node:
        """Return what gives now what a node shows."""
        root = self._roots[node]
        if root not in self._written:
            return node
        found, version = self._standing[node]
        if node is root or version == self._versions[root]:
            return found
        view = self._views[node]
        parent = self._now(view.parent)
        found = parent if view.back is None else self._taken(node, view, parent)
        self._standing[node] = found, self._versions[root]
        return found

    def _taken(self, node: _Node, view: _View, parent: _Node) -> _Node:
        """Take a view anew."""
        source = parent if view.piece is None else self._copy(view.piece, parent)
        return self._copy(node, source)

    def _copy(self, node: _Node, source: _Node) -> _Node:
        copy = self._graph.node_copy(node)
        copy.args = (source, *node.args[1:])
        copy.meta = dict(node.meta)
        return copy

    def _replace(self, node: _Node, root: _Node) -> None:
        """Write to a copy of what a call writes to, and put the result in its place."""
        target = node.args[0]
        assert isinstance(target, _Node)
        operands = {used: self._now(used) for used in node.all_input_nodes}
        above = [(one, self._now(view.parent), view) for one, view in self._above(target)]
        copy = self._like(aten.clone.default, (operands[target],), target, node)
        node.args = (copy, *torch.fx.map_arg(node.args[1:], operands.__getitem__))
        node.kwargs = torch.fx.map_arg(node.kwargs, operands.__getitem__)
        part, version = node, self._versions[root] + 1
        with self._graph.inserting_before(node.next):
            for one, whole, view in above:
                self._standing[one] = part, version
                part = part if view.back is None else view.back(self._graph, whole, part)
                part.meta = part.meta | _place(node)
            if not _is_made(root):
                self._like(aten.copy_.default, (root, part), root, node)
        self._standing[root] = part if _is_made(root) else root, version
        self._standing[node] = node, version
        self._versions[root] = version

    def _like(self, target: Any, args: tuple[Any, ...], like: _Node, write: _Node) -> _Node:
        """Add a call of a write whose result is like what another node gives."""
        node = _call(self._graph, target, args, like)
        node.meta |= _place(write)
        return node

    def _above(self, node: _Node) -> Iterator[tuple[_Node, _View]]:
        """Yield a view and those that it is one of, up to what shows the memory whole."""
        while node in self._views:
            yield node, self._views[node]
            node = self._views[node].parent


def _is_made(root: _Node) -> bool:
    """Tell whether memory is the program's own, and no input's."""
    return root.op == "call_function"


def _place(node: _Node) -> dict[str, Any]:
    """Return where a node comes from in the user's code."""
    return {key: value for key, value in node.meta.items() if key in ("stack_trace", "nn_module_stack")}
