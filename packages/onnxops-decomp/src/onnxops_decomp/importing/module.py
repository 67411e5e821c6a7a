"""The module that an import gives: a graph of torch.fx that can be pickled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from onnxops_decomp.importing.registry import implementations
from onnxops_decomp.importing.sizes import NUMBER_FUNCTIONS

__all__ = ["ImportedModule"]

_META = "onnx"


@dataclasses.dataclass(frozen=True)
class _Node:
    """A node of a graph, by its name."""

    name: str


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A function of the table of operators; ``since`` is None for one of Python numbers."""

    domain: str
    op_type: str
    since: int | None


@dataclasses.dataclass(frozen=True)
class _Overload:
    """An operator of torch."""

    name: str


Row = tuple[str, str, Any, Any, Any, Any]
"""Operation, name, target, arguments by position and by name, and metadata of a node."""


class ImportedModule(fx.GraphModule):
    """A module whose graph calls the functions of the table of operators.

    Pickling writes the graph, node by node. A module of torch.fx writes its code instead, and traces that when it is
    read, which no function stands that computes with sizes as Python numbers.
    """

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return what builds the module again."""
        state = {name: value for name, value in self.__dict__.items() if name not in ("_graph", "meta")}
        return _rebuilt, (state, _rows(self.graph), self.meta)


def _rebuilt(state: dict[str, Any], rows: Sequence[Row], meta: dict[str, Any]) -> ImportedModule:
    holder = torch.nn.Module()
    holder.__dict__.update(state)
    graph, nodes = fx.Graph(), dict[str, fx.Node]()

    def found(value: Any) -> Any:
        return nodes[value.name] if isinstance(value, _Node) else value

    for op, name, target, args, kwargs, origin in rows:
        args, kwargs = map_aggregate(args, found), map_aggregate(kwargs, found)
        node = nodes[name] = graph.create_node(op, _target(target), args, kwargs, name)
        if origin is not None:
            node.meta[_META] = origin
    made = ImportedModule(holder, graph)
    made.meta.update(meta)
    made.train(holder.training)
    return made


def _rows(graph: fx.Graph) -> list[Row]:
    entries: dict[int, Any] = {
        id(entry.function): _Entry(*key, entry.since) for key, group in implementations().items() for entry in group
    }
    entries |= {id(function): _Entry("", op_type, None) for op_type, function in NUMBER_FUNCTIONS.items()}

    def named(value: Any) -> Any:
        return _Node(value.name) if isinstance(value, fx.Node) else value

    def written(target: Any) -> Any:
        overload = isinstance(target, torch._ops.OpOverload)
        return _Overload(target.name()) if overload else entries.get(id(target), target)

    return [
        (
            node.op,
            node.name,
            written(node.target),
            map_aggregate(node.args, named),
            map_aggregate(node.kwargs, named),
            node.meta.get(_META),
        )
        for node in graph.nodes
    ]


def _target(written: Any) -> Any:
    """Return the target of a node as it was before it was written."""
    if isinstance(written, _Overload):
        space, _, rest = written.name.partition("::")
        op_type, _, overload = rest.partition(".")
        return getattr(getattr(getattr(torch.ops, space), op_type), overload or "default")
    if not isinstance(written, _Entry):
        return written
    if written.since is None:
        return NUMBER_FUNCTIONS.get(written.op_type)
    group = implementations()[written.domain, written.op_type]
    return next(entry.function for entry in group if entry.since == written.since)
