"""State of a model under construction, and the graphs nested in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxops_decomp.builder.constants import ConstantPool

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["ModelContext", "NameAuthority", "Scope", "SymbolSource", "axis_size", "number_as_size", "remove_unused"]

SymbolSource = Callable[["OpBuilder"], ir.Value]


def axis_size(value: ir.Value, axis: int, op: OpBuilder) -> ir.Value:
    """Emit one size of ``value`` as a vector of one element: with its first arguments bound, a source of a symbol."""
    return op.Shape(value, start=axis, end=axis + 1)


def number_as_size(value: ir.Value, op: OpBuilder) -> ir.Value:
    """Emit a number as a vector of one INT64: with its first argument bound, a source of a symbol."""
    return op.Reshape(op.cast(value, ir.DataType.INT64), [1])


class NameAuthority:
    """Hands out names that are unique in the whole model, subgraphs included."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._counters: dict[str, int] = {}

    def reserve(self, name: str) -> str:
        """Take ``name`` itself if it is free, else the first free ``name_N``."""
        if name not in self._taken:
            self._taken.add(name)
            return name
        return self.new(name)

    def new(self, prefix: str) -> str:
        """Return the next free ``prefix_N``."""
        count = self._counters.get(prefix, 0)
        while (name := f"{prefix}_{count}") in self._taken:
            count += 1
        self._counters[prefix] = count + 1
        self._taken.add(name)
        return name


class Scope:
    """Nodes of one graph, with the lookup table of equal nodes that it and its outer graphs already have."""

    def __init__(self, outer: Scope | None = None) -> None:
        self.outer = outer
        self.nodes: list[ir.Node] = []
        self.inputs: list[ir.Value] = []
        self._known: dict[Hashable, tuple[ir.Value, ...]] = {}

    def find(self, key: Hashable) -> tuple[ir.Value, ...] | None:
        """Return the outputs of an equal node that is visible here."""
        scope: Scope | None = self
        while scope is not None:
            found = scope._known.get(key)
            if found is not None:
                return found
            scope = scope.outer
        return None

    def remember(self, key: Hashable, outputs: tuple[ir.Value, ...]) -> None:
        """Offer the outputs of a node to later equal ones."""
        self._known[key] = outputs


@dataclasses.dataclass
class ModelContext:
    """What all graphs of one model share while it is built.

    Attributes:
        opset: Requested opset of the default domain.
        target: The runtime whose own operators may be used, one of :data:`onnxops_decomp.runtimes.TARGETS`.
        names: Names taken so far.
        constants: Constants, merged over the whole model.
        origin: Metadata that every node emitted now is stamped with.
        domains: Opset versions of the other domains in use.
        expressions: SymPy expression behind the text of each symbolic dimension.
        symbols: For each symbol, how to compute it as a 1-D INT64 value of one element.
        widen_bfloat16: Whether operators compute in FLOAT where CPU runtimes have no BFLOAT16 kernel.
    """

    opset: int
    target: str | None = None
    names: NameAuthority = dataclasses.field(default_factory=NameAuthority)
    origin: dict[str, str] = dataclasses.field(default_factory=dict)
    domains: dict[str, int] = dataclasses.field(default_factory=dict)
    expressions: dict[str, Any] = dataclasses.field(default_factory=dict)
    symbols: dict[str, SymbolSource] = dataclasses.field(default_factory=dict)
    widen_bfloat16: bool = False
    constants: ConstantPool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.constants = ConstantPool(self.names.new)


def remove_unused(nodes: list[ir.Node], results: Collection[ir.Value]) -> Iterator[ir.Node]:
    """Yield, in order, the nodes that ``results`` need; the others are cut off from their operands."""
    kept: list[ir.Node] = []
    for node in reversed(nodes):
        if any(output.uses() or output in results for output in node.outputs):
            kept.append(node)
        else:
            _detach(node)
    return reversed(kept)


def _detach(node: ir.Node) -> None:
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            for inner in list(attribute.as_graph()):
                _detach(inner)
