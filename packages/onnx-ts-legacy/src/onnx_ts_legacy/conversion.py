"""Runs a TorchScript graph on ONNX values: every operator is lowered by the shared table as it is reached."""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.calls.containers import CONTAINER_OPERATORS, container_operator, plain
from onnx_ts_legacy.calls.dispatch import OperatorCalls, frozen, functional_form, split_arguments
from onnx_ts_legacy.calls.fallback import write_as_it_is
from onnx_ts_legacy.calls.prims import PRIM_HANDLERS, TEXT_SINKS
from onnx_ts_legacy.calls.python_operators import convert_python_operator
from onnx_ts_legacy.calls.scalars import SCALAR_OPERATORS, Scalars
from onnx_ts_legacy.calls.sequences import PIECES, list_of_pieces
from onnx_ts_legacy.control_flow.if_ import CONTROL_FLOW
from onnx_ts_legacy.enumerations import OperatorExportTypes
from onnx_ts_legacy.errors import DynamicDimensionError, ScriptValueError, UnsupportedCall, UnsupportedOperatorsError
from onnx_ts_legacy.graph.autocast import autocasts_of
from onnx_ts_legacy.graph.parts import block_inputs, block_nodes, block_outputs, node_inputs, node_outputs
from onnx_ts_legacy.graph.sources import located, module_path, source_line
from onnx_ts_legacy.mutation.sometimes_views import SometimesViews
from onnx_ts_legacy.mutation.writes import unfitted_value
from onnx_ts_legacy.quantization.calls import convert_quantized, is_quantized_call, observed_fake_quantize
from onnx_ts_legacy.quantization.values import QUANTIZED_DTYPES
from onnx_ts_legacy.shapes.metadata import Metadata
from onnx_ts_legacy.shapes.size_conditions import squeeze_conditions
from onnx_ts_legacy.shapes.tensor_forms import is_tensor
from onnx_ts_legacy.state.attributes import Attributes
from onnx_ts_legacy.state.slots import StateSlot
from onnx_ts_legacy.state.values import (
    DictRef,
    Heap,
    ListRef,
    Maybe,
    Poison,
    RuntimeFloat,
    SequenceState,
    Tensor,
    VectorState,
    is_runtime,
)
from onnx_ts_legacy.symbolics.graph_context import run_symbolic
from onnxops_decomp import (
    LoweringError,
    LoweringTable,
    OpBuilder,
    UnsupportedOperatorError,
    UnsupportedOpsetError,
    builtin_table,
)
from onnxops_decomp.exporting import Decomposer, functional_overload, mark_complex, to_ir, to_torch

__all__ = ["Failure", "Interpreter"]


_NUMBERS = (bool, int, float, complex)
_OF_CONTAINERS = frozenset(f"aten::{name}" for name in ["len", "format", "__contains__", "mul", "dict", "eq", "ne"])
# What reads none of its operands.
_HOLDERS = frozenset(("prim::TupleConstruct", "prim::ListConstruct"))


@dataclasses.dataclass(frozen=True)
class Failure:
    """A call that could not be converted."""

    operator: str
    reason: str
    source: str


class Interpreter(OperatorCalls):
    """Converts one graph.

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
    """

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
        self.heap = Heap()
        self.metadata = Metadata(op)
        self.scalars = Scalars(self)
        self.sometimes_views = SometimesViews(self)
        self.decomposer = Decomposer()
        self.attributes = Attributes(self, root, prefix, slots or {})
        self.env: dict[int, Any] = {}
        self.failures: list[Failure] = []
        self.conditions: list[str] = []
        self._stand_in_values: set[ir.Value] = set()
        self.state_values: dict[str, Any] = {}
        self.cases: dict[str, tuple[Tensor, tuple[Any, ...]]] = {}
        self.node: Any = None
        self.custom_opsets: dict[str, int] = dict(custom_opsets or {})
        self.functions: dict[tuple[str, str], ir.Function] = {}
        self.inlines_python = inlines_python
        self.fallback = fallback

    # ---- running

    def run(self, graph: Any, inputs: Sequence[Any]) -> list[Any]:
        """Convert a graph and return what it returns."""
        return self.run_block(graph, inputs)

    def run_block(self, block: Any, inputs: Sequence[Any]) -> list[Any]:
        """Convert a graph or block."""
        for variable, value in zip(block_inputs(block), inputs, strict=True):
            self.env[variable.unique()] = value
        for node in block_nodes(block):
            self._run_node(node)
        return [self.env[variable.unique()] for variable in block_outputs(block)]

    def _run_node(self, node: Any) -> None:
        args = [self.env[variable.unique()] for variable in node_inputs(node)]
        outer, self.node, self.autocasts = self.node, node, autocasts_of(node)
        try:
            result = self._dispatch(node, node.kind(), args)
            _check_autocast(node, result)
        except (LoweringError, ScriptValueError, DynamicDimensionError) as error:
            if isinstance(error, DynamicDimensionError) and not self._falls_through(node):
                raise DynamicDimensionError(located(str(error), node)) from error
            result = self._failed(node, args, error)
        finally:
            self.node = outer
        count = node.outputsSize()
        if count == 1:
            self.env[node.output().unique()] = result
            return
        if count:
            for variable, value in zip(node_outputs(node), result, strict=True):
                self.env[variable.unique()] = value

    def _dispatch(self, node: Any, kind: str, args: list[Any]) -> Any:
        flow = CONTROL_FLOW.get(kind)
        if flow is not None:
            with self.op.origin(**self._origin(node, kind)):
                return self._control_flow(flow, node, args)
        if kind == "prim::PythonOp":
            return convert_python_operator(self, node, args)
        if self._translated(node) is not None:
            with self.op.origin(**self._origin(node, kind)):
                return self._operator(node, kind, args)
        custom = self.custom(kind)
        if custom is not None:
            with self.op.origin(**self._origin(node, kind)):
                return run_symbolic(self, node, args, custom)
        if is_quantized_call(kind, args):
            with self.op.origin(**self._origin(node, kind)):
                return convert_quantized(self, node, args)
        if kind == "aten::fused_moving_avg_obs_fake_quant":
            return observed_fake_quantize(self, node, args)
        handler = PRIM_HANDLERS.get(kind)
        # Values of prim:: nodes, such as lists, may hold what was not converted.
        read = () if kind in _HOLDERS else args[:1] if kind.startswith("prim::") else args
        if handler is not None and (kind in TEXT_SINKS or not any(isinstance(arg, Poison) for arg in read)):
            if kind.startswith("prim::"):
                return handler(self, node, args)
            with self.op.origin(**self._origin(node, kind)):
                return handler(self, node, args)
        with self.op.origin(**self._origin(node, kind)):
            return self._operator(node, kind, args)

    def _translated(self, node: Any) -> torch._ops.OpOverload | None:
        """Return the operator of a node if the user gave a lowering for it in ``custom_translation_table``."""
        if self.table is builtin_table():
            return None
        overload = private.overload_of_schema(node.schema())
        return overload if overload is not None and self.table.is_own(functional_overload(overload).name()) else None

    def _control_flow(self, flow: Callable[..., Any], node: Any, args: list[Any]) -> Any:
        with self.heap.watching() as written:
            try:
                return flow(self, node, args)
            except (LoweringError, ScriptValueError):
                for target in written:
                    if isinstance(target, ListRef | DictRef):
                        self.heap.write(target, Poison(f"It depends on {node.kind()}, which was not converted."))
                raise

    def _origin(self, node: Any, kind: str) -> dict[str, str]:
        found = {"operator": kind}
        source = source_line(node)
        if source:
            found["source"] = source
        module = module_path(node, self.attributes.prefix)
        if module:
            found["module"] = module
        return found

    def convert_call(self, node: Any, kind: str, args: list[Any]) -> Any:
        """Convert a call as it would be with other operands."""
        if kind == node.kind():
            return self._operator(node, kind, args)
        overload = private.overload_of_schema(node.schema())
        overload = None if overload is None else functional_form(overload)
        if overload is None:
            raise UnsupportedOperatorError("it changes a tensor and has no functional form", operator=kind)
        bound, keyword = split_arguments(overload, args)
        return self.call(overload, bound, keyword)

    def _operator(self, node: Any, kind: str, args: list[Any]) -> Any:
        for arg in args:
            if isinstance(arg, Poison):
                if node.outputsSize() == 1 and node.output().type().kind() == "StringType":
                    return arg
                raise arg.error()
            if isinstance(arg, Maybe):
                raise ScriptValueError("A value is used that is None or not, depending on what the runtime computes.")
        translated = self._translated(node)
        if translated is not None:
            return self.call(translated, *split_arguments(translated, args))
        if kind in ("aten::view", "aten::expand") and isinstance(args[0], Tensor):
            value = unfitted_value(self, node, args[0])
            if value is not None:
                return value
        handler = container_operator(kind, args) if args else None
        if handler is not None:
            return handler(self, *args)
        if kind in _OF_CONTAINERS:
            special = self._container_call(kind, args)
            if special is not None:
                return special[0]
        if kind in SCALAR_OPERATORS and self._is_scalar_call(kind, args):
            return self._declared_number(node, SCALAR_OPERATORS[kind](self, *args))
        overload = private.overload_of_schema(node.schema())
        if overload is None:
            raise UnsupportedOperatorError("it is not a torch operator", operator=kind)
        if not _returns_tensor(overload):
            if not any(self._holds_tensor(arg) for arg in args):
                return self._evaluated(overload, args)
            if all(isinstance(arg, _NUMBERS) or is_runtime(arg) for arg in args):
                raise UnsupportedOperatorError("only the runtime knows the numbers that it is called with")
        if overload in PIECES and not _is_unpacked(node):
            parts = list_of_pieces(self, overload, args)
            if parts is not None:
                return parts
        bound, keyword = split_arguments(overload, args)
        if kind in ("aten::squeeze", "aten::squeeze_"):
            self.conditions.extend(squeeze_conditions(self.metadata, node, bound))
        return self.call(overload, bound, keyword)

    def _declared_number(self, node: Any, number: Any) -> Any:
        """Return a number with the type of the operator, some of which give floats for integers and some do not."""
        if isinstance(number, torch.SymInt | RuntimeFloat):
            kind = node.output().type().kind()
            if kind == "FloatType":
                return self.scalars.as_float(number)
            if kind == "IntType":
                return self.scalars.as_int(number)
        return number

    def _evaluated(self, overload: torch._ops.OpOverload, args: list[Any]) -> Any:
        """Return the result of an operator on Python values that are all known."""
        if overload._schema.is_mutable:
            # The operator gets a copy, so that what it changes would be lost.
            raise UnsupportedOperatorError("it changes a list or dict in a way that is not known here")
        bound, keyword = split_arguments(overload, [plain(arg) for arg in args])
        try:
            return self.from_python(overload(*bound, **keyword))
        except (RuntimeError, ValueError, ArithmeticError, IndexError) as error:
            raise ScriptValueError(f"The program fails here: {str(error).splitlines()[0]}") from error

    def _container_call(self, kind: str, args: list[Any]) -> tuple[Any] | None:
        """Calls whose container is not the first argument, or that are meant for all kinds of them."""
        if kind in ("aten::len", "aten::dict") or (kind == "aten::format" and isinstance(args[0], str)):
            return (CONTAINER_OPERATORS[kind](self, *args),)
        if kind == "aten::mul" and isinstance(args[1], ListRef):
            return (CONTAINER_OPERATORS[kind](self, *args),)
        return None

    def _is_scalar_call(self, kind: str, args: list[Any]) -> bool:
        if any(is_runtime(arg) for arg in args) and not any(isinstance(arg, Tensor | ListRef) for arg in args):
            return True
        takes_tensor = ("Int", "Float", "Bool", "IntImplicit", "FloatImplicit", "ScalarImplicit", "item", "Scalar")
        return kind.removeprefix("aten::") in takes_tensor and isinstance(args[0], Tensor)

    def _holds_tensor(self, arg: Any) -> bool:
        if isinstance(arg, ListRef):
            unknown = isinstance(arg.state, SequenceState | VectorState)
            return unknown or any(map(self._holds_tensor, arg.items))
        return isinstance(arg, Tensor) or is_runtime(arg)

    # ---- failures

    def _failed(self, node: Any, args: list[Any], error: Exception) -> Any:
        """Note a call that cannot be converted and go on with stand-ins, so that all of them are found."""
        operator = getattr(error, "operator", "") or node.kind()
        overload = private.overload_of_schema(node.schema())
        if overload is not None:
            operator = str(overload.name())
        fakes = None if overload is None else self._forms_of_failed(overload, args)
        if fakes is None and self._falls_through(node):
            fakes = self._traced_forms(node, args)
        written = write_as_it_is(self, node, args, fakes)
        if written is not None:
            self.check(written, fakes, operator)
            return self.wrapped(written, fakes, None)
        # What torch or a lowering says of a stand-in is no news; that an operator cannot be converted at all is.
        unsupported = isinstance(error, UnsupportedOperatorError | UnsupportedOpsetError)
        if unsupported or self.custom(node.kind()) is not None or not self._reads_stand_in(args):
            self.failures.append(Failure(operator, str(error), source_line(node)))
        results = None if fakes is None else self._stand_ins(fakes)
        if results is None:
            results = tuple(
                Poison(f"It depends on {operator}, which was not converted.") for _ in range(node.outputsSize())
            )
            return results[0] if len(results) == 1 else results
        return results

    def _falls_through(self, node: Any) -> bool:
        """Tell whether a node is a call of a custom operator that is to be written as it is."""
        custom = node.kind().partition("::")[0] not in ("aten", "prim")
        return custom and self.fallback is OperatorExportTypes.ONNX_FALLTHROUGH

    def _traced_forms(self, node: Any, args: Sequence[Any]) -> Any:
        """Return the forms that the trace noted of what a node gives; None if it did not note all of them."""
        forms = self.result_forms(node, args)
        if any(form is None for form in forms):
            return None
        return forms[0] if node.outputsSize() == 1 and len(forms) == 1 else tuple(forms)

    def _forms_of_failed(self, overload: torch._ops.OpOverload, args: list[Any]) -> Any:
        functional = functional_overload(overload)
        try:
            bound, keyword = split_arguments(functional, [frozen(arg) for arg in args])
            return self.fake_call(functional, bound, keyword)
        except (ScriptValueError, DynamicDimensionError):
            return None

    def _stand_ins(self, fakes: Any) -> Any:
        return self.wrapped(pytree.tree_map(self._stand_in_value, fakes), fakes, None)

    def _stand_in_value(self, fake: Any) -> Any:
        if not is_tensor(fake):
            return fake
        dims = self.metadata.symbols.dims(fake)
        shape = (*dims, 2) if fake.is_complex() else dims
        name = self.op.context.names.new("unconverted")
        value = ir.Value(name=name, type=ir.TensorType(to_ir(fake.dtype)), shape=ir.Shape(shape))
        self._stand_in_values.add(value)
        return mark_complex(value) if fake.is_complex() else value

    def _reads_stand_in(self, args: Sequence[Any]) -> bool:
        """Tell whether a tensor among the arguments is computed from what a failed call was replaced by."""
        leaves = [
            leaf
            for arg in args
            for leaf in (arg.items if isinstance(arg, ListRef) and isinstance(arg.state, tuple) else [arg])
        ]
        waiting = [leaf.storage.state.value for leaf in leaves if isinstance(leaf, Tensor)]
        seen: set[ir.Value] = set()
        while waiting:
            value = waiting.pop()
            if value is None or value in seen:
                continue
            seen.add(value)
            if value in self._stand_in_values:
                return True
            producer = value.producer()
            waiting.extend(producer.inputs if producer is not None else ())
        return False

    def raise_failures(self) -> None:
        """Raise one exception for everything that could not be converted.

        Raises:
            UnsupportedOperatorsError: If there was anything.
        """
        if not self.failures:
            return
        grouped: dict[tuple[str, str], list[str]] = defaultdict(list)
        for failure in self.failures:
            grouped[failure.operator, failure.reason].append(failure.source)
        calls = [
            UnsupportedCall(operator, reason, tuple(dict.fromkeys(filter(None, sources))), len(sources))
            for (operator, reason), sources in grouped.items()
            if "which was not converted" not in reason
        ]
        raise UnsupportedOperatorsError(calls)

    def add_function(self, function: ir.Function) -> None:
        """Make a model-local function part of the model."""
        self.functions[function.domain, function.name] = function

    def result_forms(self, node: Any, args: Sequence[Any]) -> list[Any]:
        """Return the forms of what a node gives, None where nothing is known of it."""
        overload = private.overload_of_schema(node.schema())
        if overload is not None:
            try:
                bound, keyword = split_arguments(overload, [frozen(arg) for arg in args])
                result = self.fake_call(functional_form(overload) or overload, bound, keyword)
                return list(result) if isinstance(result, list | tuple) else [result]
            except (ScriptValueError, DynamicDimensionError):
                pass
        kinds = [variable.type() for variable in node_outputs(node)]
        if len(kinds) == 1 and kinds[0].kind() == "TupleType":
            kinds = kinds[0].elements()
        return [self._traced_form(kind) for kind in kinds]

    def _traced_form(self, kind: Any) -> Any:
        """Return the form for the type that tracing noted; its sizes count only if nothing is dynamic."""
        if kind.kind() != "TensorType" or kind.dtype() in (None, *QUANTIZED_DTYPES) or kind.sizes() is None:
            return None
        if not self.metadata.declared_names:
            return self.metadata.empty(kind.dtype(), kind.sizes())
        return self.metadata.empty(kind.dtype(), [self.metadata.unknown_size() for _ in kind.sizes()])

    def described(self, value: ir.Value, name: str) -> Any:
        """Return the form of an ONNX value whose type is known.

        Raises:
            LoweringError: If it is not.
        """
        if value.dtype is None or value.shape is None:
            raise LoweringError(f"Nothing tells the dtype and rank that {name} gives; declare them with setType().")
        sizes = [dim if isinstance(dim, int) else self.metadata.unknown_size() for dim in value.shape.dims]
        return self.metadata.empty(to_torch(value.dtype), sizes)

    def require_opset(self, lowest: int, what: str, *, types: str = "Sequence types") -> None:
        """Raise an error if the requested opset is below ``lowest``.

        Raises:
            UnsupportedOpsetError: If it is.
        """
        if self.op.opset < lowest:
            raise UnsupportedOpsetError(types, self.op.opset, lowest=lowest, reason=what)


def _check_autocast(node: Any, result: Any) -> None:
    """Refuse a call that gave another dtype when it was traced: under autocast, parts of it computed in half precision.

    Raises:
        LoweringError: If it is one.
    """
    if not node.kind().startswith("aten::"):
        return
    results = result if node.outputsSize() > 1 else [result]
    for variable, value in zip(node_outputs(node), results or (), strict=False):
        kind = variable.type()
        traced = kind.dtype() if kind.kind() == "TensorType" else None
        if not isinstance(value, Tensor) or value.fake.dtype != torch.float32:
            continue
        if traced in (torch.float16, torch.bfloat16):
            raise LoweringError(
                f"it gives {traced} under torch.autocast, which casts inside of it, and float32 in the trace; call the "
                "operators that it is made of, cast its operands, or use onnx-fx-export"
            )


@functools.cache
def _returns_tensor(overload: torch._ops.OpOverload) -> bool:
    return any("Tensor" in str(result.type) for result in overload._schema.returns)


def _is_unpacked(node: Any) -> bool:
    """Tell whether the program takes a fixed number of items of the list that a node gives."""
    return any(use.user.kind() == "prim::ListUnpack" for use in node.output().uses())
