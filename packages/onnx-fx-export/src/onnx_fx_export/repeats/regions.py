"""Which nodes of a captured graph belong to one call of a module."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.repeats.functions import Body, FunctionStore
from onnx_fx_export.sizes.sources import define_new_symbols
from onnxops_decomp.exporting import GraphLowering, RegionHandler, is_computable, unneeded_nodes, written_roots

__all__ = ["ModuleClasses", "module_regions", "qualified_name"]

ModuleClasses = bool | Collection[type[torch.nn.Module]]


@dataclasses.dataclass
class _Call:
    """Nodes of one call of a module.

    Attributes:
        key: What the call is known by; two calls of one module differ.
        path: Dotted path of the module.
        kind: Qualified name of its class.
        depth: Its place in the module stack of the nodes.
        nodes: The nodes, in order.
    """

    key: str
    path: str
    kind: str
    depth: int
    nodes: list[torch.fx.Node]


def module_regions(
    graph: torch.fx.Graph, classes: ModuleClasses, store: FunctionStore
) -> Mapping[torch.fx.Node, RegionHandler]:
    """Find the calls of modules that become functions.

    Args:
        graph: Captured graph.
        classes: Classes of the modules, or True for all.
        store: Where the functions go.

    Returns:
        For the first node of each call, what lowers the call.

    Raises:
        InvalidArgumentError: If no module of a class is called.
    """
    if not classes:
        return {}
    names = None if classes is True else {qualified_name(kind) for kind in classes}
    if names is not None:
        _check_called(graph, names)
    written = written_roots(graph)
    unneeded = unneeded_nodes(graph)
    calls = _calls((node for node in graph.nodes if node not in unneeded), 1, names)
    return {call.nodes[0]: _Region(call, names, written, store) for call in calls}


def qualified_name(kind: Any) -> str:
    """Return the name of a module's class, which torch notes as a class or as its name."""
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


def _stack(node: torch.fx.Node) -> list[tuple[str, str, str]]:
    """Return key, path and class name of each module that was running, the outermost first."""
    entries = (node.meta.get("nn_module_stack") or {}).items()
    # Passes of torch.export give the nodes that they insert an entry that is not a module.
    entries = [(key, value) for key, value in entries if not key.startswith("_empty_nn_module_stack")]
    return [(key, path, qualified_name(kind)) for key, (path, kind) in entries]


def _check_called(graph: torch.fx.Graph, names: set[str]) -> None:
    called = {kind for node in graph.nodes for _, _, kind in _stack(node)[1:]}
    if missing := sorted(names - called):
        raise InvalidArgumentError(
            f"export_modules_as_functions names {', '.join(missing)}, but no module inside the model that computes "
            f"something is of that class. The model calls {', '.join(sorted(called)) or 'no modules'}."
        )


def _calls(nodes: Iterable[torch.fx.Node], depth: int, names: set[str] | None) -> Iterator[_Call]:
    """Yield the outermost wanted calls at ``depth`` or deeper in the module stacks of ``nodes``."""
    current: _Call | None = None
    # Sizes and checks that torch inserts belong to no module; between two nodes of a call they go with it.
    pending: list[torch.fx.Node] = []
    for node in nodes:
        if node.op not in ("call_function", "get_attr"):
            continue
        stack = _stack(node)
        if not stack:
            pending.append(node)
            continue
        found = next(
            ((i, *entry) for i, entry in enumerate(stack) if i >= depth and (names is None or entry[2] in names)), None
        )
        if current is not None and found is not None and found[1] == current.key:
            current.nodes += [*pending, node]
        else:
            if current is not None:
                yield current
            current = None if found is None else _Call(found[1], found[2], found[3], found[0], [node])
        pending = []
    if current is not None:
        yield current


class _Region:
    """Lowers the nodes of one call of a module as a call of a function."""

    def __init__(
        self,
        call: _Call,
        names: set[str] | None,
        written: Mapping[torch.fx.Node, torch.fx.Node],
        store: FunctionStore,
        prefix: str = "",
    ) -> None:
        self._call, self._names, self._written, self._store, self._prefix = call, names, written, store, prefix
        self._inside = set(call.nodes)

    def __call__(self, lowering: GraphLowering, graph_module: torch.fx.GraphModule) -> Sequence[torch.fx.Node]:
        """Emit the call and give the nodes that are used elsewhere their values."""
        call, results, parameters = self._call, self._results(), self._parameters()
        sizes = {node: found for node in results if (found := self._known_size(lowering, node)) is not None}
        computed = [node for node in results if node not in sizes]
        domain, _, name = call.kind.rpartition(".")
        body = Body(
            domain=domain,
            name=name,
            graph_module=graph_module,
            nodes=call.nodes,
            parameters=parameters,
            results=computed,
            written=self._written,
            regions=self._inner_regions(),
            prefix=call.path,
        )
        with lowering.op.origin(module=call.path.removeprefix(self._prefix).removeprefix(".")):
            values = self._store.call(lowering, body, [lowering.value_of(node) for node in parameters])
        lowering.written.update((node, self._written[node]) for node in call.nodes if node in self._written)
        for node, value in [*zip(computed, values, strict=True), *sizes.items()]:
            lowering.env[node] = value
            lowering.name_value(node)
            define_new_symbols(lowering.op.context, node.meta.get("val"), value)
        return call.nodes

    def _inner_regions(self) -> dict[torch.fx.Node, RegionHandler]:
        calls = _calls(self._call.nodes, self._call.depth + 1, self._names)
        return {c.nodes[0]: _Region(c, self._names, self._written, self._store, self._call.path) for c in calls}

    def _parameters(self) -> list[torch.fx.Node]:
        """Return the nodes outside that the call uses; a tensor that was written to, as the node it began as."""
        used = (operand for node in self._call.nodes for operand in node.all_input_nodes if operand not in self._inside)
        return list(dict.fromkeys(self._written.get(operand, operand) for operand in used))

    def _results(self) -> list[torch.fx.Node]:
        """Return the nodes whose values are used elsewhere, with those outside that the call writes to."""
        found: dict[torch.fx.Node, None] = {}
        for node in self._call.nodes:
            root = self._written.get(node, node)
            if root not in self._inside or any(user not in self._inside for user in node.users):
                found[root] = None
        return list(found)

    def _known_size(self, lowering: GraphLowering, node: torch.fx.Node) -> Any:
        """Return a size that the caller can compute itself, so that it need not be a result; None for others."""
        val = node.meta.get("val")
        if not isinstance(val, torch.SymInt):
            return None
        expression = lowering.symbols.expression(val)
        return lowering.number(val, expression) if is_computable(lowering.op, expression) else None
