"""Which of the things that a model changes are state: those that a later call depends on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

__all__ = ["needed_state"]


def needed_state(
    outputs: Iterable[ir.Value], state: Mapping[str, tuple[ir.Value | None, ir.Value | None]], own: Collection[str]
) -> set[str]:
    """Return the names of what a later call depends on.

    What is written before it is read, or comes back as it went in, is not state.

    Args:
        outputs: The outputs of the model that are not its state.
        state: For each thing that the model changes, its value before a call and after it.
        own: Names of those that the model declares as its state, as buffers are: they are needed also where nothing
            but their own next value depends on them.
    """
    changed = {name: pair for name, pair in state.items() if pair[0] is not None and pair[0] is not pair[1]}
    if not changed:
        return set()
    seen: set[ir.Value] = set()
    _ancestors(outputs, seen)
    needed = {name for name in own if name in changed and _reaches(*changed[name])}
    _ancestors((after for name in needed if (after := changed[name][1]) is not None), seen)
    while found := {name for name, (before, _) in changed.items() if before in seen} - needed:
        needed |= found
        _ancestors((after for name in found if (after := changed[name][1]) is not None), seen)
    return needed


def _reaches(before: ir.Value | None, after: ir.Value | None) -> bool:
    seen: set[ir.Value] = set()
    _ancestors([after] if after is not None else [], seen)
    return before in seen


def _ancestors(values: Iterable[ir.Value], seen: set[ir.Value]) -> None:
    """Add the values and all that they are computed from, in nested graphs too."""
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        node = value.producer()
        if node is None:
            continue
        nodes = [node, *(inner for graph in _graphs(node) for inner in ir.traversal.RecursiveGraphIterator(graph))]
        waiting.extend(source for each in nodes for source in each.inputs if source is not None)
        waiting.extend(output for graph in _graphs(node) for output in graph.outputs)


def _graphs(node: ir.Node) -> list[ir.Graph]:
    return [attribute.as_graph() for attribute in node.attributes.values() if attribute.type is ir.AttributeType.GRAPH]
