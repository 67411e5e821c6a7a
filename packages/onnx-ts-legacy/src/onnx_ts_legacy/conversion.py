"""Runs a TorchScript graph on ONNX values: every operator is lowered by the shared table as it is reached."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.attributes import Attributes
from onnx_ts_legacy.containers import CONTAINER_OPERATORS, plain
from onnx_ts_legacy.control_flow import CONTROL_FLOW
from onnx_ts_legacy.decomposition import lower_by_pieces
from onnx_ts_legacy.dtypes import argument_converters
from onnx_ts_legacy.errors import DynamicDimensionError, ScriptValueError, UnsupportedCall, UnsupportedOperatorsError
from onnx_ts_legacy.fallback import write_as_it_is
from onnx_ts_legacy.graph_context import run_symbolic
from onnx_ts_legacy.metadata import Metadata
from onnx_ts_legacy.mutation import VIEWS_IN_PLACE, assign, node_value
from onnx_ts_legacy.prims import PRIM_HANDLERS, ProgramRaisesError
from onnx_ts_legacy.python_operators import convert_python_operator
from onnx_ts_legacy.recurrent import CELLS, SHAPES
from onnx_ts_legacy.scalars import SCALAR_OPERATORS, Scalars
from onnx_ts_legacy.sources import source_line
from onnx_ts_legacy.state import StateSlot, program_value
from onnx_ts_legacy.types import OperatorExportTypes
from onnx_ts_legacy.values import (
    Call,
    Content,
    DictRef,
    Heap,
    ListRef,
    Poison,
    RuntimeBool,
    RuntimeFloat,
    SequenceState,
    Storage,
    Tensor,
    View,
    is_runtime,
)
from onnxops_decomp.builder import OpBuilder
from onnxops_decomp.calls import apply_lowering, check_result, find_lowering, functional_overload
from onnxops_decomp.decompose import Decomposer
from onnxops_decomp.dtypes import mark_complex, to_ir, to_torch
from onnxops_decomp.errors import LoweringError, UnsupportedOperatorError, UnsupportedOpsetError
from onnxops_decomp.lowerings.registry import LoweringTable, builtin_table

__all__ = ["Failure", "Interpreter"]

aten = torch.ops.aten
_RUNTIME_SCALARS = (torch.SymInt, RuntimeBool, RuntimeFloat)


@dataclasses.dataclass(frozen=True)
class Failure:
    """A call that could not be converted."""

    operator: str
    reason: str
    source: str


class Interpreter:
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
        self.decomposer = Decomposer()
        self.attributes = Attributes(self, root, prefix, slots or {})
        self.env: dict[int, Any] = {}
        self.failures: list[Failure] = []
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
        for variable, value in zip(block.inputs(), inputs, strict=True):
            self.env[variable.unique()] = value
        for node in block.nodes():
            self._run_node(node)
        returned = block.outputs() if hasattr(block, "outputs") else block.returnNode().inputs()
        return [self.env[variable.unique()] for variable in returned]

    def _run_node(self, node: Any) -> None:
        args = [self.env[variable.unique()] for variable in node.inputs()]
        outer, self.node = self.node, node
        try:
            result = self._dispatch(node, node.kind(), args)
        except (LoweringError, ScriptValueError) as error:
            result = self._failed(node, args, error)
        except DynamicDimensionError as error:
            raise DynamicDimensionError(_located(str(error), node)) from error
        finally:
            self.node = outer
        count = node.outputsSize()
        if count == 1:
            self.env[node.output().unique()] = result
            return
        if count:
            for variable, value in zip(node.outputs(), result, strict=True):
                self.env[variable.unique()] = value

    def _dispatch(self, node: Any, kind: str, args: list[Any]) -> Any:
        flow = CONTROL_FLOW.get(kind)
        if flow is not None:
            return flow(self, node, args)
        if kind == "prim::PythonOp":
            return convert_python_operator(self, node, args)
        custom = self.custom(kind)
        if custom is not None:
            with self.op.origin(**self._origin(node, kind)):
                return run_symbolic(self, node, args, custom)
        handler = PRIM_HANDLERS.get(kind)
        if handler is not None and not (args and isinstance(args[0], Poison)):
            return handler(self, node, args)
        with self.op.origin(**self._origin(node, kind)):
            return self._operator(node, kind, args)

    def _origin(self, node: Any, kind: str) -> dict[str, str]:
        found = {"operator": kind}
        source = source_line(node)
        if source:
            found["source"] = source
        scope = node.scopeName()
        if scope:
            found["module"] = scope.rpartition("/")[2].removeprefix("__module.")
        return found

    def _operator(self, node: Any, kind: str, args: list[Any]) -> Any:
        for arg in args:
            if isinstance(arg, Poison):
                raise arg.error()
        if kind in CONTAINER_OPERATORS and args and isinstance(args[0], ListRef | DictRef | tuple):
            return CONTAINER_OPERATORS[kind](self, *args)
        if kind in (
            "aten::len",
            "aten::format",
            "aten::__contains__",
            "aten::mul",
            "aten::dict",
            "aten::eq",
            "aten::ne",
        ):
            special = self._container_call(kind, args)
            if special is not None:
                return special[0]
        if kind in SCALAR_OPERATORS and self._is_scalar_call(kind, args):
            return SCALAR_OPERATORS[kind](self, *args)
        overload = private.overload_of_schema(node.schema())
        if overload is None:
            raise UnsupportedOperatorError("it is not a torch operator", operator=kind)
        if not any(self._holds_tensor(arg) for arg in args) and not _returns_tensor(overload):
            return self._evaluated(overload, args)
        bound, keyword = _split(overload, args)
        return self.call(overload, bound, keyword)

    def _evaluated(self, overload: torch._ops.OpOverload, args: list[Any]) -> Any:
        """Return the result of an operator on Python values that are all known."""
        bound, keyword = _split(overload, [plain(arg) for arg in args])
        try:
            return self.from_python(overload(*bound, **keyword))
        except (RuntimeError, ValueError, ArithmeticError) as error:
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
            return isinstance(arg.state, SequenceState) or any(self._holds_tensor(item) for item in arg.items)
        return isinstance(arg, Tensor) or is_runtime(arg)

    # ---- failures

    def _failed(self, node: Any, args: list[Any], error: Exception) -> Any:
        """Note a call that cannot be converted and go on with stand-ins, so that all of them are found."""
        operator = getattr(error, "operator", "") or node.kind()
        overload = private.overload_of_schema(node.schema()) if node.schema() != "(no schema)" else None
        if overload is not None:
            operator = str(overload.name())
        fakes = None if overload is None else self._forms_of_failed(overload, args)
        written = write_as_it_is(self, node, args, fakes)
        if written is not None:
            self._check(written, fakes, operator)
            return self._wrap_values(written, fakes, None)
        self.failures.append(Failure(operator, str(error), source_line(node)))
        results = None if fakes is None else self._stand_ins(fakes)
        if results is None:
            results = tuple(Poison(f"It depends on {operator}, which was not converted.") for _ in node.outputs())
            return results[0] if len(results) == 1 else results
        return results

    def _forms_of_failed(self, overload: torch._ops.OpOverload, args: list[Any]) -> Any:
        functional = functional_overload(overload)
        try:
            bound, keyword = _split(functional, [_frozen(arg) for arg in args])
            return self._fake_call(functional, bound, keyword)
        except (ScriptValueError, DynamicDimensionError):
            return None

    def _stand_ins(self, fakes: Any) -> Any:
        return self._wrap_values(pytree.tree_map(self._stand_in_value, fakes), fakes, None)

    def _stand_in_value(self, fake: Any) -> Any:
        if not isinstance(fake, torch.Tensor):
            return fake
        dims = self.metadata.symbols.dims(fake)
        shape = (*dims, 2) if fake.is_complex() else dims
        value = ir.Value(type=ir.TensorType(to_ir(fake.dtype)), shape=ir.Shape(shape))
        return mark_complex(value) if fake.is_complex() else value

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
        """Return fake tensors for what a node gives, None where nothing is known of it."""
        overload = private.overload_of_schema(node.schema()) if node.schema() != "(no schema)" else None
        if overload is not None:
            try:
                bound, keyword = _split(overload, [_frozen(arg) for arg in args])
                result = self._fake_call(_functional(overload) or overload, bound, keyword)
                return list(result) if isinstance(result, list | tuple) else [result]
            except (ScriptValueError, DynamicDimensionError):
                pass
        return [self._traced_form(variable.type()) for variable in node.outputs()]

    def _traced_form(self, kind: Any) -> Any:
        """Return a fake tensor for the type that tracing noted; its sizes count only if nothing is dynamic."""
        if kind.kind() != "TensorType" or kind.dtype() is None or kind.sizes() is None:
            return None
        if not self.metadata.declared_names:
            return self.metadata.empty(kind.dtype(), kind.sizes())
        return self.metadata.empty(kind.dtype(), [self.metadata.unknown_size() for _ in kind.sizes()])

    def described(self, value: ir.Value, name: str) -> Any:
        """Return a fake tensor for an ONNX value whose type is known.

        Raises:
            LoweringError: If it is not.
        """
        if value.dtype is None or value.shape is None:
            raise LoweringError(f"Nothing tells the dtype and rank that {name} gives; declare them with setType().")
        sizes = [dim if isinstance(dim, int) else self.metadata.unknown_size() for dim in value.shape.dims]
        return self.metadata.empty(to_torch(value.dtype), sizes)

    def require_opset(self, lowest: int, what: str) -> None:
        """Raise an error if the requested opset is below ``lowest``.

        Raises:
            UnsupportedOpsetError: If it is.
        """
        if self.op.opset < lowest:
            raise UnsupportedOpsetError("Sequence types", self.op.opset, lowest=lowest, reason=what)

    # ---- variables

    def fresh(self, value: ir.Value | None, *forms: Any, origin: str | None = None, number: Any = None) -> Tensor:
        """Return a new tensor variable with memory of its own."""
        fake = forms[0] if len(forms) == 1 else None
        return Tensor(self.heap, Storage(self.heap, value, fake, origin=origin, number=number), *forms)

    def number_tensor(self, number: Any) -> Tensor:
        """Return a 0-d tensor that holds a number."""
        if isinstance(number, Tensor):
            return number
        dtype = torch.int64
        if isinstance(number, bool | RuntimeBool):
            dtype = torch.bool
        elif isinstance(number, float | RuntimeFloat):
            dtype = torch.get_default_dtype()
            return self.fresh(self.scalars.to_value(number, to_ir(dtype)), self.metadata.empty(dtype, []))
        return self.fresh(None, self.metadata.empty(dtype, []), number=number)

    def tensor_constant(self, tensor: torch.Tensor) -> Tensor:
        """Return a variable for a tensor that stands in the program."""
        return self.attributes.anonymous(tensor)

    def from_python(self, value: Any, path: str = "constant") -> Any:
        """Return a Python value as a variable of the program."""
        if isinstance(value, torch.Tensor):
            return self.attributes.tensor(path, value) if path != "constant" else self.tensor_constant(value)
        if isinstance(value, list):
            items = tuple(self.from_python(item, f"{path}.{index}") for index, item in enumerate(value))
            return ListRef(self.heap, items)
        if isinstance(value, dict):
            return DictRef(self.heap, {key: self.from_python(item, f"{path}.{key}") for key, item in value.items()})
        if isinstance(value, tuple):
            return tuple(self.from_python(item, f"{path}.{index}") for index, item in enumerate(value))
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return value
        return value

    def state_input(self, slot: StateSlot) -> Any:
        """Return the variable for an attribute that is an input of the model."""
        if slot.name in self.state_values:
            return self.state_values[slot.name]
        if isinstance(slot.initial, torch.Tensor):
            result: Any = self._state_tensor(slot)
        else:
            kind = {bool: ir.DataType.BOOL, int: ir.DataType.INT64, float: ir.DataType.DOUBLE}.get(type(slot.initial))
            if kind is None:
                raise ScriptValueError(
                    f"Attribute {slot.name!r} is changed by the program and holds a {type(slot.initial).__name__}; "
                    "only tensors and numbers can be state of an ONNX model."
                )
            result = self.scalars.runtime(self.main.input(slot.name, kind, ()))
        self.state_values[slot.name] = result
        return result

    def _state_tensor(self, slot: StateSlot) -> Tensor:
        forms = [self._state_form(dtype, sizes) for dtype, sizes in slot.forms]
        given = forms[0] if len(forms) == 1 else self._state_form(slot.forms[0][0], slot.interface)
        value = self.main.input(slot.name, to_ir(given.dtype), self.metadata.symbols.dims(given))
        return self.fresh(program_value(self, slot, value), *forms, origin=slot.name)

    def _state_form(self, dtype: torch.dtype, sizes: tuple[int | None, ...]) -> torch.Tensor:
        named = [self.metadata.unknown_size() if size is None else size for size in sizes]
        return self.metadata.empty(dtype, named)

    def is_visible(self, scope: Any) -> bool:
        """Tell whether values of ``scope`` can be used in the graph that is being written."""
        here: Any = self.op.scope
        while here is not None:
            if here is scope:
                return True
            here = here.outer
        return False

    def value(self, tensor: Any) -> ir.Value:
        """Return the ONNX value of what a tensor variable holds now."""
        if isinstance(tensor, Poison):
            raise tensor.error()
        if not isinstance(tensor, Tensor):
            return self.scalars.to_value(tensor)
        value = node_value(self, tensor.node)
        if value.shape is None and len(tensor.forms) == 1:
            dims = self.metadata.symbols.dims(tensor.fake)
            assert value.dtype is not None
            value = self.op.emit_custom("", "Identity", [value], {}, [value.dtype], shapes=[dims])[0]
        return value

    def content_value(self, content: Content) -> ir.Value:
        """Return the ONNX value of what a storage holds."""
        return self.scalars.to_value(content.number) if content.value is None else content.value

    def zeros(self, dtype: torch.dtype, sizes: Sequence[int]) -> ir.Value:
        """Return a constant, to stand where a variable has no value and is never read."""
        return self.op.constant(np.zeros(sizes, to_ir(dtype).numpy()), to_ir(dtype))

    def any_value(self, variable: Tensor) -> ir.Value:
        """Return the ONNX value of a tensor variable, of whatever rank it is."""
        return node_value(self, variable.node) if len(variable.forms) > 1 else self.value(variable)

    # ---- sizes, also of tensors that may have several ranks

    def rank(self, tensor: Tensor) -> Any:
        """Return ``tensor.dim()``."""
        ranks = tuple(form.dim() for form in tensor.forms)
        if len(set(ranks)) == 1:
            return ranks[0]
        value = node_value(self, tensor.node)
        return self._case(tensor, self.op.Size(self.op.Shape(value)), ranks)

    def size(self, tensor: Tensor, axis: Any) -> Any:
        """Return ``tensor.size(axis)``."""
        if len(tensor.forms) == 1:
            shape = tensor.fake.shape
            if not -len(shape) <= axis < len(shape):
                raise ProgramRaisesError(f"Dimension {axis} of a tensor of rank {len(shape)} is read.")
            size = shape[axis]
            return size if isinstance(size, int) else self._sized(tensor, size, range(len(shape))[axis])
        sizes = tuple(form.shape[axis] if -form.dim() <= axis < form.dim() else None for form in tensor.forms)
        value = node_value(self, tensor.node)
        return self._case(tensor, self.op.Gather(self.op.Shape(value), [axis]), sizes)

    def _sized(self, tensor: Tensor, size: torch.SymInt, axis: int) -> torch.SymInt:
        """Give symbols that only this tensor knows a source, so that they can be computed."""
        expression = self.metadata.symbols.expression(size)
        context = self.op.context
        unknown = [str(symbol) for symbol in expression.free_symbols if str(symbol) not in context.symbols]
        if not unknown:
            return size
        source = partial(_size_of, self.value(tensor), axis)
        if expression.is_Symbol:
            context.symbols[str(expression)] = source
            return size
        return self.metadata.runtime_int(source(self.op.newest))

    def sizes(self, tensor: Tensor) -> list[Any]:
        """Return ``tensor.size()``."""
        return [self.size(tensor, axis) for axis in range(tensor.fake.dim())]

    def count(self, tensor: Tensor) -> Any:
        """Return ``tensor.numel()``."""
        if len(tensor.forms) > 1:
            counts = tuple(form.numel() for form in tensor.forms)
            return self._case(tensor, self.op.Size(node_value(self, tensor.node)), counts)
        total: Any = 1
        for size in self.sizes(tensor):
            total = total * size
        return total

    def _case(self, tensor: Tensor, value: ir.Value, numbers: tuple[Any, ...]) -> Any:
        """Return a number that tells which of its possible forms a tensor has."""
        number = self.metadata.runtime_int(value)
        self.cases[str(number.node.expr)] = (tensor, numbers)
        return number

    # ---- calls of operators

    def call(self, overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Convert one call of an operator; the result is a variable, or a tuple or list of them."""
        converters = argument_converters(overload)
        schema = overload._schema
        args = [converters[i](a) if i in converters and a is not None else a for i, a in enumerate(args)]
        if converters and kwargs:
            names = {argument.name: index for index, argument in enumerate(schema.arguments)}
            kwargs = {
                name: converters[names[name]](value) if names[name] in converters and value is not None else value
                for name, value in kwargs.items()
            }
        overload, args, kwargs = _plain_form(overload, list(args), dict(kwargs))
        if overload is None:
            return args[0]
        if overload._schema.is_mutable:
            return self._call_in_place(overload, args, kwargs)
        cell = CELLS.get(overload)
        if cell is not None:
            return cell(self, args)
        number = self._number_result(overload, args)
        if number is not None:
            return number
        args = [_frozen(arg) for arg in args]
        kwargs = {name: _frozen(arg) for name, arg in kwargs.items()}
        fake = self._fake_call(overload, args, kwargs)
        position = _viewed(overload, args, fake)
        values = self._lower(overload, args, kwargs, fake)
        view = None if position is None else (position, Call(overload, tuple(args), kwargs, position, None))
        return self._wrap_values(values, fake, view)

    def _number_result(self, overload: torch._ops.OpOverload, args: Sequence[Any]) -> Tensor | None:
        """Compute with the numbers inside tensors that were made of sizes, as traced programs do."""
        name = _NUMBER_FUNCTIONS.get(overload._schema.name)
        if name is None or not args or not isinstance(args[0], Tensor):
            return None
        numbers = []
        for arg in args[:2]:
            number = arg.storage.state.number if isinstance(arg, Tensor) and not isinstance(arg.node, View) else arg
            if number is None or isinstance(number, bool) or not isinstance(number, int | torch.SymInt):
                return None
            numbers.append(number)
        rest = [arg for arg in args[2:] if arg is not None]
        if name == "div":
            if len(args) < 3 or args[2] != "floor":
                return None
            name = "floordiv"
        elif any(arg != 1 for arg in rest):
            return None
        if not any(isinstance(number, torch.SymInt) for number in numbers):
            return None
        if name == "neg":
            return self.number_tensor(-numbers[0])
        return self.number_tensor(self.scalars.binary(name, *numbers))

    def _fake_call(self, overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        fake_args = [self._fake(arg) for arg in args]
        fake_kwargs = {name: self._fake(arg) for name, arg in kwargs.items()}
        return self.metadata.run(SHAPES.get(overload, overload), fake_args, fake_kwargs)

    def _fake(self, arg: Any) -> Any:
        if isinstance(arg, Tensor):
            return arg.fake
        if isinstance(arg, RuntimeFloat):
            return self.metadata.unknown_float()
        if isinstance(arg, RuntimeBool):
            return True
        if isinstance(arg, list | tuple):
            return [self._fake(item) for item in arg]
        if isinstance(arg, SequenceState):
            return [arg.element, arg.element]
        if isinstance(arg, Poison):
            raise arg.error()
        return arg

    def operand(self, arg: Any) -> Any:
        """Return an argument as lowerings take it."""
        if isinstance(arg, Tensor):
            return self.value(arg)
        if isinstance(arg, list | tuple):
            return [self.operand(item) for item in arg]
        if isinstance(arg, _RUNTIME_SCALARS):
            return self.scalars.to_argument(arg)
        if isinstance(arg, SequenceState):
            raise ScriptValueError(
                "A list whose length only the runtime knows can be stacked, concatenated and indexed, nothing else."
            )
        return arg

    def _lower(self, overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any], fake: Any) -> Any:
        joined = _JOINS.get(overload)
        if joined is not None and isinstance(args[0], SequenceState):
            dim = args[1] if len(args) > 1 else 0
            value = self.op.emit_custom(
                "", "ConcatFromSequence", [args[0].value], {"axis": dim, "new_axis": joined}, [to_ir(fake.dtype)]
            )[0]
            sizes = list(fake.shape)
            value.shape = ir.Shape(self.metadata.symbols.dims(fake)[: len(sizes)])
            return value
        values = [self.operand(arg) for arg in args]
        keyword = {name: self.operand(arg) for name, arg in kwargs.items()}
        entry = find_lowering(self.table, overload, values, keyword)
        if entry is not None:
            result = apply_lowering(self.op, entry, overload, values, keyword)
        else:
            result = self._decomposed(overload, args, kwargs, values, keyword)
        self._check(result, fake, str(overload.name()))
        return result

    def _decomposed(
        self, overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any], values: list[Any], keyword: dict[str, Any]
    ) -> Any:
        fake_args = [self._fake(arg) for arg in args]
        fake_kwargs = {name: self._fake(arg) for name, arg in kwargs.items()}
        return lower_by_pieces(self, overload, (fake_args, fake_kwargs), (values, keyword))

    def _check(self, result: Any, fake: Any, name: str) -> None:
        if isinstance(fake, torch.Tensor):
            if not isinstance(result, ir.Value):
                raise LoweringError(f"{name} gives a tensor in torch, but its lowering {type(result).__name__}.")
            check_result(result, fake, self.metadata.symbols.dims(fake), name)
        elif isinstance(fake, list | tuple):
            if not isinstance(result, list | tuple) or len(result) < len(fake):
                raise LoweringError(f"{name} gives {len(fake)} results in torch, its lowering fewer.")
            for part, expected in zip(result, fake, strict=False):
                if isinstance(expected, torch.Tensor) and part is not None:
                    self._check(part, expected, name)

    def _wrap_values(self, values: Any, fake: Any, view: tuple[int, Call] | None) -> Any:
        """Turn ONNX values into variables: views of an operand, or tensors of their own."""
        if isinstance(fake, torch.Tensor):
            if view is None:
                return self.fresh(values, fake)
            position, call = view
            return self._viewed_tensor(call.args[position], call, values, fake)
        if isinstance(fake, list | tuple):
            parts = []
            for index, (part, expected) in enumerate(zip(values, fake, strict=False)):
                inner = None if view is None else (view[0], dataclasses.replace(view[1], output=index))
                parts.append(self._wrap_values(part, expected, inner))
            return ListRef(self.heap, tuple(parts)) if isinstance(fake, list) else tuple(parts)
        if isinstance(values, ir.Value):
            return self.scalars.runtime(values)
        return values

    def _viewed_tensor(self, parent: Tensor, call: Call, value: ir.Value, fake: Any) -> Tensor:
        view = View(parent.node, dataclasses.replace(call, args=_without(call.args, call.position)), fake)
        view.cached = (node_value(self, parent.node), value, self.op.scope)
        return Tensor(self.heap, view)

    # ---- calls that change a tensor

    def _call_in_place(self, overload: torch._ops.OpOverload, args: list[Any], kwargs: dict[str, Any]) -> Any:
        replaced = VIEWS_IN_PLACE.get(str(overload.name()))
        if replaced is not None:
            view = self.call(replaced, args, kwargs)
            self.heap.write(args[0], view.state)
            return args[0]
        targets = [_argument(overload, i, args, kwargs) for i, a in enumerate(overload._schema.arguments) if _writes(a)]
        if overload._schema.name == "aten::copy_":
            self.write(targets[0], args[1])
            return targets[0]
        functional = _functional(overload)
        if functional is None:
            raise UnsupportedOperatorError("it changes a tensor and has no functional form", operator=overload.name())
        outs = {argument.name for argument in overload._schema.arguments if argument.is_out}
        kept = {name: value for name, value in kwargs.items() if name not in outs}
        results = self.call(functional, args[: len(functional._schema.arguments)], kept)
        for target, result in zip(targets, results if isinstance(results, tuple) else (results,), strict=False):
            self.write(target, result)
        return targets[0] if len(targets) == 1 else tuple(targets)

    def write(self, target: Tensor, source: Any) -> None:
        """Write a tensor or number to the memory of ``target``, as ``copy_`` does."""
        fake = target.fake
        if not isinstance(source, Tensor):
            source = self.number_tensor(source)
        value = self.op.cast(self.value(source), to_ir(fake.dtype))
        if str(tuple(source.fake.shape)) != str(tuple(fake.shape)):
            cast = self.fresh(value, self.metadata.empty(fake.dtype, source.fake.shape))
            value = self.value(self.call(aten.expand.default, [cast, self.sizes(target)], {}))
        assign(self, target, value)


def _size_of(value: ir.Value, axis: int, op: OpBuilder) -> ir.Value:
    return op.Shape(value, start=axis, end=axis + 1)


_NUMBER_FUNCTIONS = {
    "aten::add": "add",
    "aten::sub": "sub",
    "aten::mul": "mul",
    "aten::floor_divide": "floordiv",
    "aten::div": "div",
    "aten::remainder": "remainder",
    "aten::neg": "neg",
}
_JOINS = {aten.cat.default: 0, aten.stack.default: 1}


def _without(args: tuple[Any, ...], position: int) -> tuple[Any, ...]:
    return tuple(None if index == position else arg for index, arg in enumerate(args))


def _located(text: str, node: Any) -> str:
    source = source_line(node)
    return f"{text} ({node.kind()} at {source})" if source and " at " not in text else text


def _split(overload: torch._ops.OpOverload, args: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Tell the keyword-only arguments of a node from the others."""
    positional: list[Any] = []
    keyword: dict[str, Any] = {}
    for argument, value in zip(overload._schema.arguments, args, strict=False):
        if argument.kwarg_only:
            keyword[argument.name] = value
        else:
            positional.append(value)
    return positional, keyword


def _frozen(arg: Any) -> Any:
    """Return a list argument as it is now."""
    if isinstance(arg, ListRef):
        return arg.state if isinstance(arg.state, SequenceState) else [_frozen(item) for item in arg.items]
    return arg


def _returns_tensor(overload: torch._ops.OpOverload) -> bool:
    return any("Tensor" in str(result.type) for result in overload._schema.returns)


def _writes(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _argument(overload: torch._ops.OpOverload, index: int, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return args[index] if index < len(args) else kwargs[overload._schema.arguments[index].name]


def _functional(overload: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    found = functional_overload(overload)
    if found is not overload:
        return found
    namespace, name = overload._schema.name.split("::")
    if name.startswith("__i") and name.endswith("__"):
        packet = getattr(getattr(torch.ops, namespace), f"__{name[3:]}", None)
        return getattr(packet, overload._overloadname, None)
    return None


def _viewed(overload: torch._ops.OpOverload, args: Sequence[Any], fake: Any) -> int | None:
    """Return the position of the tensor whose memory the result shows, or None."""
    first = fake[0] if isinstance(fake, list | tuple) and fake else fake
    if not isinstance(first, torch.Tensor):
        return None
    for position, arg in enumerate(args):
        if isinstance(arg, Tensor) and private.same_storage(arg.fake, first):
            return position
    return None


def _plain_form(
    overload: torch._ops.OpOverload, args: list[Any], kwargs: dict[str, Any]
) -> tuple[Any, list[Any], dict[str, Any]]:
    """Return a call in the form that eager programs use, where TorchScript has one of its own."""
    name = str(overload.name())
    if name in ("aten::to.prim_Device", "aten::to.prim_dtype", "aten::to.device"):
        at = {"aten::to.prim_dtype": 1}.get(name, 2)
        dtype = args[at] if len(args) > at else None
        if dtype is None:
            copy = len(args) > at + 2 and args[at + 2]
            return (aten.clone.default if copy else None), args[:1], {}
        from onnx_ts_legacy.dtypes import dtype_of_code

        return aten.to.dtype, [args[0], dtype_of_code(dtype), *args[at + 1 : at + 3]], {}
    if name == "aten::to.prim_other":
        return None, args, {}
    return overload, args, kwargs
