"""What one conversion knows and writes; whatever converts a part of the program is given it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import torch

from onnx_ts_legacy.enumerations import OperatorExportTypes
from onnx_ts_legacy.graph.autocast import Autocasts
from onnx_ts_legacy.shapes.metadata import Metadata
from onnx_ts_legacy.state.slots import StateSlot
from onnx_ts_legacy.state.sometimes_views import SometimesViews
from onnx_ts_legacy.state.values import DictRef, Heap, ListRef, Mutable, ObjectRef, Storage, Tensor
from onnxops_decomp import LoweringError, LoweringTable, OpBuilder, UnsupportedOpsetError, builtin_table
from onnxops_decomp.exporting import Decomposer, to_torch

__all__ = ["AttributeStore", "ConversionContext", "Failure"]

SymbolSource = Callable[[Any], ir.Value]
_Told = dict[str, tuple[SymbolSource, Mutable]]
OperatorCall = Callable[[torch._ops.OpOverload, Sequence[Any], Mapping[str, Any]], Any]


@dataclasses.dataclass(frozen=True)
class Failure:
    """A call that could not be converted.

    Attributes:
        operator: Qualified name of the operator.
        reason: Why.
        source: Where it is called; empty where that is not known.
        depends: Whether that is only because of another call that could not be converted.
    """

    operator: str
    reason: str
    source: str
    depends: bool = False


@dataclasses.dataclass
class AttributeStore:
    """What was read from, and written to, the modules of a program.

    Attributes:
        root: The module that the graph's ``self`` is.
        prefix: Start of all qualified names that is left out.
        slots: Attributes that are inputs of the model.
        objects: The variables of modules and objects.
        tensors: The variables of weights and buffers, one for all names of the same memory.
        weights: Their values.
        kept: The tensors themselves: while an address names one, its memory must not be given to another.
        first: What attributes held before the program, by object and name.
        initializers: The weights of the model.
        ignored: Names of the weights that a call changes and the model keeps as they are before the first one.
        written: Object and name of the attributes that were set, by qualified name.
        containers: The lists and dicts in attributes that were read, each with what it held, by qualified name.
        states: Variables of the state inputs by name.
    """

    root: ObjectRef
    prefix: str
    slots: dict[str, StateSlot]
    objects: dict[Any, ObjectRef] = dataclasses.field(default_factory=dict)
    tensors: dict[Any, Tensor] = dataclasses.field(default_factory=dict)
    weights: dict[Any, ir.Value] = dataclasses.field(default_factory=dict)
    kept: list[torch.Tensor] = dataclasses.field(default_factory=list)
    first: dict[tuple[int, str], Any] = dataclasses.field(default_factory=dict)
    initializers: list[ir.Value] = dataclasses.field(default_factory=list)
    ignored: frozenset[str] = frozenset()
    written: dict[str, Any] = dataclasses.field(default_factory=dict)
    containers: dict[str, list[tuple[ListRef | DictRef, Any]]] = dataclasses.field(default_factory=dict)
    states: dict[str, Any] = dataclasses.field(default_factory=dict)


class ConversionContext:
    """The state of one conversion, and the two ways back into it.

    Args:
        op: Builder of the main graph.
        root: The module that the graph's ``self`` is, or None.
        prefix: Start of attribute names that is left out.
        slots: Attributes that are inputs of the model.
        table: Lowerings to use.
        custom: Finds the user's own conversion of an operator, by qualified name.
        custom_opsets: Versions of the user's own domains.
        fallback: What becomes of operators that cannot be converted.
        inlines_python: Whether an ``autograd.Function`` without a symbolic is converted as what its forward does.

    Attributes:
        op: Builder of the graph that is written now.
        main: Builder of the main graph.
        heap: What writes the contents of mutable objects.
        metadata: Source of dtypes and sizes.
        sometimes_views: What follows copies that are views at some sizes.
        attributes: What is known of the attributes of modules.
        env: What the variables of the graph stand for, by their numbers.
        node: The node that is converted, or None.
        autocasts: Under which autocast it was traced.
        cases: For symbols that tell the forms of a tensor apart, the tensor and the number that each form has.
        failures: What could not be converted.
        conditions: On which sizes it depends that the graph is right, each with the line that needs them, where that is
            to be reported.
        stand_ins: Values that stand for the results of failed calls.
        functions: Model-local functions.
        decomposer: What takes calls apart that the table has no lowering for.
        call: Converts a call of an operator on variables.
        run_block: Converts a graph or block, given what its inputs stand for, and returns what it returns.
        convert_call: Converts the call of a node as it would be with other operands.
    """

    call: OperatorCall
    run_block: Callable[[Any, Sequence[Any]], list[Any]]
    convert_call: Callable[[Any, str, list[Any]], Any]

    def __init__(
        self,
        op: OpBuilder,
        root: Any = None,
        *,
        prefix: str = "",
        slots: Mapping[str, StateSlot] | None = None,
        table: LoweringTable | None = None,
        custom: Callable[[str], Callable[..., Any] | None] | None = None,
        custom_opsets: Mapping[str, int] | None = None,
        inlines_python: bool = True,
        fallback: OperatorExportTypes = OperatorExportTypes.ONNX,
    ) -> None:
        self.op = self.main = op
        self.table = table or builtin_table()
        self.custom = custom or (lambda name: None)
        self.custom_opsets = dict(custom_opsets or {})
        self.inlines_python = inlines_python
        self.fallback = fallback
        self.heap = Heap()
        self.metadata = Metadata(op)
        self.sometimes_views = SometimesViews(self.heap, self.metadata)
        self.attributes = AttributeStore(ObjectRef(self.heap, "", root), prefix, dict(slots or {}))
        self.decomposer = Decomposer()
        self.env: dict[int, Any] = {}
        self.node: Any = None
        self.autocasts: Autocasts = ()
        self.cases: dict[str, tuple[Tensor, tuple[Any, ...]]] = {}
        self.failures: list[Failure] = []
        self.conditions: dict[str, str] = {}
        self.stand_ins: set[ir.Value] = set()
        self._told: _Told = {}
        # For each graph within another one its branch, and the sizes that only its own tensors tell.
        self._inside: dict[Any, tuple[int, _Told]] = {}
        self.functions: dict[tuple[str, str], ir.Function] = {}

    @contextmanager
    def writing_to(self, op: OpBuilder) -> Iterator[None]:
        """Write to another graph, such as that of a branch."""
        outer, self.op = self.op, op
        own, told = self._inside.get(op.scope, (self.heap.frame, {}))
        for symbol, (source, node) in told.items():
            self.tell_size(symbol, source, node)
        try:
            yield
        finally:
            self.op = outer
            self._inside[op.scope] = own, self._forget_sizes(self.heap.frames() - {own})

    def tell_size(self, symbol: str, source: SymbolSource, memory: Mutable) -> None:
        """Note how the size that a symbol stands for is computed: by asking a tensor of this memory."""
        self.op.context.symbols[symbol] = source
        self._told[symbol] = source, memory

    def _forget_sizes(self, frames: Collection[int]) -> _Told:
        """Forget and return what is told by what is not there outside: other tensors tell these sizes from now on."""
        lost = {symbol: (source, node) for symbol, (source, node) in self._told.items() if node.frame not in frames}
        for symbol in lost:
            del self._told[symbol]
            self.op.context.symbols.pop(symbol, None)
        return lost

    def is_visible(self, scope: Any) -> bool:
        """Tell whether values of ``scope`` can be used in the graph that is being written."""
        here: Any = self.op.scope
        while here is not None:
            if here is scope:
                return True
            here = here.outer
        return False

    def fresh(self, value: ir.Value | None, *forms: Any, origin: str | None = None, number: Any = None) -> Tensor:
        """Return a new tensor variable with memory of its own."""
        fake = forms[0] if len(forms) == 1 else None
        return Tensor(self.heap, Storage(self.heap, value, fake, origin=origin, number=number), *forms)

    def described(self, value: ir.Value, name: str) -> Any:
        """Return the form of an ONNX value whose type is known.

        Raises:
            LoweringError: If it is not.
        """
        if value.dtype is None or value.shape is None:
            raise LoweringError(f"Nothing determines the dtype and rank of {name}; declare them with setType().")
        sizes = [dim if isinstance(dim, int) else self.metadata.unknown_size() for dim in value.shape.dims]
        return self.metadata.empty(to_torch(value.dtype), sizes)

    def require_opset(self, lowest: int, what: str, *, types: str = "Sequence types") -> None:
        """Raise an error if the requested opset is below ``lowest``.

        Raises:
            UnsupportedOpsetError: If it is.
        """
        if self.op.opset < lowest:
            raise UnsupportedOpsetError(types, self.op.opset, lowest=lowest, reason=what)

    def add_function(self, function: ir.Function) -> None:
        """Make a model-local function part of the model."""
        self.functions[function.domain, function.name] = function
