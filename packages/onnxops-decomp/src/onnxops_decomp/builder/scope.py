"""State of a model under construction, the graphs nested in it, and what writes them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Any, Literal, Self

import numpy.typing as npt
import onnx_ir as ir

from onnxops_decomp.builder.constants import ConstantPool
from onnxops_decomp.builder.parts import DEFAULT_RUNTIME
from onnxops_decomp.builder.runtime import Runtime
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.spec.schemas import NEWEST_OPSET, check_opset
from onnxops_decomp.spec.signs import is_never_negative

__all__ = [
    "DEFAULT_NAN",
    "ModelContext",
    "NameAuthority",
    "NanHandling",
    "NodeWriter",
    "Scope",
    "SymbolSource",
    "axis_size",
    "number_as_size",
    "remove_unused",
]

NanHandling = Literal["exact", "finite"]
DEFAULT_NAN: NanHandling = "finite"

_NARROW = (ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32)

SymbolSource = Callable[["NodeWriter"], ir.Value]


def axis_size(value: ir.Value, axis: int, op: NodeWriter) -> ir.Value:
    """Emit one size of ``value`` as a vector of one element: with its first arguments bound, a source of a symbol."""
    return op.Shape(value, start=axis, end=axis + 1)


def number_as_size(value: ir.Value, op: NodeWriter) -> ir.Value:
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
        nan: ``"exact"`` where extrema, positions and orders are torch's among numbers of which some are NaN;
            ``"finite"`` where they are the runtime's then, and the plain operators are written.
        runtime: The runtime whose missing kernels are written otherwise; None for all that ONNX specifies.
        results: How many tensors the call that is written gives in the captured program; None where nobody knows.
    """

    opset: int
    target: str | None = None
    names: NameAuthority = dataclasses.field(default_factory=NameAuthority)
    origin: dict[str, str] = dataclasses.field(default_factory=dict)
    domains: dict[str, int] = dataclasses.field(default_factory=dict)
    expressions: dict[str, Any] = dataclasses.field(default_factory=dict)
    symbols: dict[str, SymbolSource] = dataclasses.field(default_factory=dict)
    widen_bfloat16: bool = False
    nan: NanHandling = DEFAULT_NAN
    runtime: Runtime | None = dataclasses.field(default_factory=DEFAULT_RUNTIME.get)
    results: int | None = None
    constants: ConstantPool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.constants = ConstantPool(self.names.new)


class NodeWriter:
    """The builder as its own parts see it: what takes calls of ONNX operators, in the forms of one opset.

    Args:
        opset: Requested opset of the default domain.
        context: State shared by all graphs of the model; a new one if left out.
        scope: The graph that is written.
        dialect: Opset in whose forms calls are written.

    Raises:
        UnsupportedOpsetError: If ``opset`` lies outside 7 to 28.
    """

    def __init__(
        self,
        opset: int,
        *,
        context: ModelContext | None = None,
        scope: Scope | None = None,
        dialect: int = NEWEST_OPSET,
    ) -> None:
        check_opset(opset)
        self.opset = opset
        self.dialect = dialect
        self.context = context or ModelContext(opset)
        self.scope = scope or Scope()
        self._views: dict[int, Any] = {dialect: self}

    def at(self, dialect: int) -> Self:
        """Return a view on this builder that takes calls in the forms of opset ``dialect``."""
        view: Self | None = self._views.get(dialect)
        if view is None:
            view = type(self)(self.opset, context=self.context, scope=self.scope, dialect=dialect)
            view._views = self._views
            self._views[dialect] = view
        return view

    @property
    def newest(self) -> Self:
        """The view on this builder that takes calls in their newest forms, whatever this one takes."""
        return self.at(NEWEST_OPSET)

    def __getattr__(self, op_type: str) -> Callable[..., ir.Value]:
        if not op_type[:1].isupper():
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {op_type!r}")
        emitter = functools.partial(self.emit, op_type)
        self.__dict__[op_type] = emitter
        return emitter

    def emit(self, op_type: str, *inputs: Any, **attributes: Any) -> ir.Value:
        """Emit an operator of the default domain and return its one output."""
        raise NotImplementedError

    def constant(self, value: object, dtype: ir.DataType | None = None) -> ir.Value:
        """Return a constant; Python ints become INT64, floats FLOAT and bools BOOL unless ``dtype`` is given."""
        return self.context.constants.of_python(value, dtype)

    def static(self, value: ir.Value | None) -> npt.NDArray[Any] | None:
        """Return the contents of a constant, or None if ``value`` is not one (weights are not)."""
        return None if value is None else self.context.constants.array(value)

    def dtype(self, value: ir.Value) -> ir.DataType:
        """Return the dtype of ``value``.

        Raises:
            LoweringError: If the dtype is not known.
        """
        if value.dtype is None:
            raise LoweringError(f"The dtype of {value.name} has to be known here, but nothing determines it.")
        return value.dtype

    def rank(self, value: ir.Value) -> int:
        """Return the rank of ``value``.

        Raises:
            LoweringError: If the rank is not known.
        """
        if value.shape is None:
            raise LoweringError(f"The rank of {value.name} has to be known here, but nothing determines it.")
        return len(value.shape)

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Cast ``value`` to ``dtype``; nothing is emitted if it has that dtype already."""
        return value if value.dtype == dtype else self.Cast(value, to=dtype)

    def floor_div(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Divide integers and round down, where ONNX's Div rounds towards zero."""
        op = self.newest
        if a.dtype is not None and a.dtype.is_floating_point():
            return op.Floor(op.Div(a, b))
        if is_never_negative(a, self.static) and is_never_negative(b, self.static):
            return op.Div(a, b)
        if a.dtype in _NARROW:
            # The multiple of b below may lie below the smallest number.
            wide = (self.cast(each, ir.DataType.INT64) for each in (a, b))
            return self.cast(self.floor_div(*wide), a.dtype)
        # a - (a mod b) is a multiple of b, so rounding no longer matters; ONNX's Mod has the sign of b.
        return op.Div(op.Sub(a, op.Mod(a, b)), b)


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
