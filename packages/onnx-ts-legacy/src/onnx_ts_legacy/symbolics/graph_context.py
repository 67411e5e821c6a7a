"""``g``: what custom symbolics write ONNX with."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.calls.containers import plain
from onnx_ts_legacy.calls.forms import result_forms, view_of
from onnx_ts_legacy.calls.results import wrapped
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.graph.parts import node_outputs
from onnx_ts_legacy.quantization.modules import unpack_weights
from onnx_ts_legacy.shapes.tensor_forms import is_tensor
from onnx_ts_legacy.state.arguments import operand
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import number_value, runtime_number
from onnx_ts_legacy.state.values import ListRef, Tensor, is_runtime
from onnx_ts_legacy.state.variables import value_of
from onnx_ts_legacy.symbolics.blocks import BLOCKS, BlockNode
from onnx_ts_legacy.symbolics.values import SymbolicValue
from onnxops_decomp.exporting import ScriptFunction, Trait, check_result, has_trait, to_ir

__all__ = ["GraphContext", "run_symbolic"]

_ATTRIBUTE = re.compile(r"^(?P<name>.+)_(?P<kind>[ifstgz])$")
_ATEN_DOMAIN = "org.pytorch.aten"


class GraphContext:
    """Writes the nodes of one call.

    Attributes:
        original_node: The TorchScript node that is converted.
        opset: Opset of the default domain that is written.
        params_dict: Kept for compatibility; weights are values like others, so it is empty.
        env: Kept for compatibility; empty.
        builder: What the nodes are written with.
        inputs: Inputs of the block, if this is the context of one.
        outputs: Outputs of the block, if this is the context of one.
    """

    def __init__(
        self,
        context: ConversionContext,
        node: Any = None,
        custom_opsets: dict[str, int] | None = None,
        owner: BlockNode | None = None,
    ) -> None:
        self.context = context
        self.builder = context.op if owner is None else context.op.subgraph()
        self.inputs: list[SymbolicValue] = []
        self.outputs: list[ir.Value] = []
        self._owner = owner
        self.original_node = node
        self.opset = context.op.opset
        self.params_dict: dict[str, Any] = {}
        self.env: dict[Any, Any] = {}
        self._custom_opsets = custom_opsets if custom_opsets is not None else context.custom_opsets

    @property
    def graph(self) -> GraphContext:
        """The graph that is written, which is this context itself."""
        return self

    @property
    def block(self) -> GraphContext:
        """The block that is written, which is this context itself."""
        return self

    def nested(self, owner: BlockNode) -> GraphContext:
        """Return the context of a new block of a node that is written here."""
        with self.writing():
            return GraphContext(self.context, self.original_node, self._custom_opsets, owner)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Let everything that is converted inside go to the graph or block of this context."""
        outer, self.context.op = self.context.op, self.builder
        try:
            yield
        finally:
            self.context.op = outer

    def addInputToBlock(self) -> SymbolicValue:
        """Add an input to the block; see :meth:`BlockNode.add_input`.

        Raises:
            ScriptValueError: If this is not a context of a block, or the block has all its inputs.
        """
        return self._owning_node().add_input(self)

    def registerOutput(self, value: Any) -> int:
        """Add an output to the block; see :meth:`BlockNode.add_output`.

        Raises:
            ScriptValueError: If this is not a context of a block, or the block has all its outputs.
        """
        return self._owning_node().add_output(self, value)

    def _owning_node(self) -> BlockNode:
        if self._owner is None:
            raise ScriptValueError("Only the blocks of If and Loop are given inputs and outputs.")
        return self._owner

    def op(self, opname: str, *raw_args: Any, outputs: int = 1, **kwargs: Any) -> Any:
        """Write an ONNX node.

        Args:
            opname: Operator of the default domain in the form of the requested opset, or ``"domain::Operator"``.
            raw_args: Inputs: values, None for an omitted one, or Python numbers and tensors.
            outputs: How many outputs are wanted.
            kwargs: Attributes, each with its kind as a suffix: ``axis_i``, ``alpha_f``, ``mode_s``, ``value_t``; lists
                have the suffix of their elements. None stands for an omitted one.

        Returns:
            The output, or a tuple if several are wanted. Those of an If or Loop without attributes can be used when
            the blocks of its node are complete, see :func:`onnx_ts_legacy.jit_utils.add_op_with_blocks`.

        Raises:
            LoweringError: If the call does not fit the operator's specification at this opset.
        """
        with self.writing():
            given = {name: value for name, value in kwargs.items() if value is not None}
            return self._op(opname, raw_args, outputs, given)

    def _op(self, opname: str, raw_args: Sequence[Any], outputs: int, kwargs: dict[str, Any]) -> Any:
        domain, _, op_type = opname.rpartition("::")
        attributes = dict(_attribute(name, value) for name, value in kwargs.items())
        if domain in ("", "onnx") and op_type == "Constant":
            return self._constant(attributes)
        if domain == "prim" and op_type == "Constant" and not attributes:
            return SymbolicValue(None)
        if domain == "prim" and op_type == "ListConstruct":
            return SymbolicValue(ListRef(self.context.heap, tuple(_variable(arg) for arg in raw_args)))
        if domain == "aten":
            return self.aten_op(attributes.pop("operator", op_type), *raw_args, outputs=outputs, **kwargs)
        inputs = [self.value(arg) for arg in raw_args]
        if domain in ("", "onnx") and op_type in BLOCKS and not attributes:
            node = BlockNode(self, op_type, inputs, outputs)
            return node.output() if outputs == 1 else tuple(node.outputs())
        if domain in ("", "onnx"):
            if has_trait(op_type, Trait.BROADCASTS):
                inputs = self._in_one_dtype(inputs)
            results: Sequence[ir.Value] = self.builder.at(self.opset).emit_many(op_type, outputs, *inputs, **attributes)
        else:
            version = self._custom_opsets.get(domain, 1)
            dtypes: list[Any] = [None] * outputs
            results = self.builder.emit_custom(domain, op_type, inputs, attributes, dtypes, version=version)
        wrapped = tuple(SymbolicValue(result, op_type) for result in results)
        return wrapped[0] if outputs == 1 else wrapped

    def aten_op(self, operator: str, *args: Any, overload_name: str = "", outputs: int = 1, **kwargs: Any) -> Any:
        """Write a call of an ATen operator as it is, for a runtime that has them (Caffe2, ORT with ATen fallback)."""
        attributes = dict(_attribute(name, value) for name, value in kwargs.items() if not name.startswith("operator"))
        attributes |= {"operator": operator, "overload_name": overload_name}
        inputs = [self.value(arg) for arg in args]
        dtypes: list[Any] = [None] * outputs
        results = self.builder.emit_custom(_ATEN_DOMAIN, "ATen", inputs, attributes, dtypes)
        wrapped = tuple(SymbolicValue(result, "ATen") for result in results)
        return wrapped[0] if outputs == 1 else wrapped

    at = aten_op

    def onnxscript_op(self, onnx_fn: Any, *raw_args: Any, outputs: int = 1, **kwargs: Any) -> Any:
        """Write a call of a function of ``onnxscript``.

        The function becomes part of the model if it is written for the opset of the model and calls no others; else
        its nodes are written at that opset.

        Args:
            onnx_fn: An ``onnxscript.OnnxFunction``.
            raw_args: Its inputs.
            outputs: How many outputs it has.
            kwargs: Its attributes, with or without the suffix of their kind.
        """
        attributes = dict(_attribute(name, value) for name, value in kwargs.items())
        script = ScriptFunction.of(onnx_fn)
        function = script.body
        inputs = [self.value(arg) for arg in raw_args]
        results: Sequence[ir.Value]
        if script.library or function.opset_imports.get("", self.opset) != self.opset:
            results = script.inline(self.builder, inputs, attributes)[:outputs]
        else:
            self.context.add_function(function)
            dtypes: list[Any] = [None] * outputs
            results = self.builder.emit_custom(
                function.domain, function.name, inputs, attributes, dtypes, version=onnx_fn.opset.version
            )
        wrapped = tuple(SymbolicValue(result, function.name) for result in results)
        return wrapped[0] if outputs == 1 else wrapped

    def value(self, argument: Any) -> ir.Value | None:
        """Return the ONNX value of an argument of ``op``."""
        with self.writing():
            return self._value(_variable(argument))

    def _value(self, variable: Any) -> ir.Value | None:
        if variable is None or isinstance(variable, ir.Value):
            return variable
        if isinstance(variable, Tensor):
            return value_of(self.context, variable)
        if isinstance(variable, ListRef):
            return self._list_value(variable)
        if is_runtime(variable):
            return number_value(self.context, variable)
        if isinstance(variable, float):
            return self.builder.constant(variable, to_ir(torch.get_default_dtype()))
        if isinstance(variable, torch.Tensor | np.ndarray | np.generic):
            tensor = torch.as_tensor(variable).detach().contiguous()
            return self.builder.constant(ir.tensor_adapters.TorchTensor(tensor).numpy(), to_ir(tensor.dtype))
        if isinstance(variable, bool | int):
            return self.builder.constant(variable)
        if isinstance(variable, list | tuple):
            return self.builder.constant(np.asarray(variable))
        raise ScriptValueError(f"A {type(variable).__name__} cannot be an input of an ONNX node.")

    def _in_one_dtype(self, inputs: list[ir.Value | None]) -> list[ir.Value | None]:
        """Return operands with constants of rank 0 in the dtype of those beside them, as torch promotes numbers."""
        sources = [getattr(value, "const_value", None) for value in inputs]
        numbers = [None if source is None or len(source.shape) else source.numpy().item() for source in sources]
        dtypes = {
            value.dtype for value, number in zip(inputs, numbers, strict=True) if number is None and value is not None
        }
        dtype = dtypes.pop() if len(dtypes) == 1 else None
        if dtype is None or dtype == ir.DataType.BOOL:
            return inputs
        kept = (bool, int, float) if dtype.is_floating_point() else (bool, int)
        return [
            self.builder.constant(number, dtype)
            if value is not None and value.dtype != dtype and isinstance(number, kept)
            else value
            for value, number in zip(inputs, numbers, strict=True)
        ]

    def _list_value(self, items: ListRef) -> ir.Value:
        """Return a list of numbers as a vector; lists of tensors are not a single value."""
        if any(isinstance(item, Tensor) for item in items.items):
            raise ScriptValueError(
                "A list of tensors is given as an input; unpack it with symbolic_helper._unpack_list."
            )
        if any(isinstance(item, float) for item in items.items):
            return self.builder.constant(np.asarray(plain(items), dtype=np.float32))
        return self.builder.vector([operand(self.context, item) for item in items.items])

    def _constant(self, attributes: dict[str, Any]) -> SymbolicValue:
        (value,) = attributes.values()
        tensor = torch.as_tensor(value.numpy() if isinstance(value, ir.TensorProtocol) else value)
        return SymbolicValue(self.value(tensor), "Constant", tensor)


def _variable(argument: Any) -> Any:
    return argument.variable if isinstance(argument, SymbolicValue) else argument


def _attribute(name: str, value: Any) -> tuple[str, Any]:
    """Split the kind from the name of an attribute and bring the value to that kind."""
    match = _ATTRIBUTE.match(name)
    if match is None:
        return name, value
    kinds: dict[str, Callable[[Any], Any]] = {
        "i": int,
        "f": float,
        "s": str,
        "t": _attribute_tensor,
        "z": _attribute_tensor,
        "g": lambda graph: graph,
    }
    kind = kinds[match["kind"]]
    if isinstance(value, list | tuple) and match["kind"] not in "tz":
        return match["name"], [kind(item) for item in value]
    return match["name"], kind(value)


def _attribute_tensor(value: Any) -> ir.TensorProtocol:
    tensor = torch.as_tensor(value).detach().contiguous()
    return ir.tensor(ir.tensor_adapters.TorchTensor(tensor).numpy())


def run_symbolic(
    context: ConversionContext,
    node: Any,
    args: Sequence[Any],
    function: Callable[..., Any],
    *,
    plain: Sequence[int] = (),
) -> Any:
    """Convert a call with a custom symbolic and return its result as variables.

    Args:
        context: The conversion.
        node: The TorchScript node.
        args: The inputs of the call.
        function: The symbolic.
        plain: Positions of the inputs that it gets as Python values.

    Raises:
        ScriptValueError: If the function gives another number of results than the call has.
    """
    g = GraphContext(context, node)
    given = unpack_weights(context, node.kind(), args, bias_required=True)
    inputs = (arg if index in plain else SymbolicValue(arg) for index, arg in enumerate(given))
    results = function(g, *inputs, **_unpacked_count(node, function))
    if results is None and node.outputsSize():
        raise ScriptValueError(f"The symbolic of {node.kind()} returns None; it has to return what g.op() returns.")
    many = list(results) if isinstance(results, list | tuple) else [results]
    fakes = result_forms(context, node, args)
    count = len(fakes)
    listed = [output.type().kind() for output in node_outputs(node)] == ["ListType"]
    if listed and isinstance(_variable(results), ListRef):
        if not any(isinstance(item, ir.Value) for item in _variable(results).items):
            return _variable(results)
        many = results.node().inputs()
    if listed and len(many) == 1 and isinstance(getattr(_variable(many[0]), "type", None), ir.SequenceType):
        many = [SymbolicValue(context.op.SequenceAt(_variable(many[0]), index)) for index in range(count)]
    if len(many) < count:
        raise ScriptValueError(f"The symbolic of {node.kind()} gives {len(many)} results, the operator has {count}.")
    variables = _as_variables(context, node, args, many, fakes)
    if listed:
        return ListRef(context.heap, tuple(variables))
    return variables[0] if count == 1 and node.outputsSize() == 1 else tuple(variables[:count])


def _unpacked_count(node: Any, function: Callable[..., Any]) -> dict[str, int]:
    """Return how many elements the program takes out of a list, for a symbolic that asks with ``_outputs``."""
    try:
        wanted = "_outputs" in inspect.signature(function).parameters
    except ValueError:
        return {}
    users = [use.user for use in node.output().uses()] if wanted and node.outputsSize() == 1 else []
    unpacked = len(users) == 1 and users[0].kind() == "prim::ListUnpack"
    return {"_outputs": users[0].outputsSize()} if unpacked else {}


def _as_variables(
    context: ConversionContext, node: Any, args: Sequence[Any], results: Sequence[Any], fakes: Sequence[Any]
) -> list[Any]:
    """Return results as variables that share memory as those of the operator do, so that writes reach the others."""
    name = str(node.kind())
    overload = private.overload_of_schema(node.schema())
    view = None if overload is None else view_of(context, overload, args)
    variables = []
    for index, (result, fake) in enumerate(zip(results, fakes, strict=False)):
        variable = _variable(result)
        if isinstance(variable, Tensor) and view is None and overload is not None and variable in args:
            # A symbolic that hands its input on stands for an operator that gives a tensor of its own.
            variable = value_of(context, variable)
        if not isinstance(variable, ir.Value):
            variables.append(variable)
            continue
        form = context.described(variable, name) if fake is None else fake
        if not is_tensor(form):
            variables.append(runtime_number(context, variable))
            continue
        check_result(variable, form, context.metadata.symbols.dims(form), f"the symbolic of {name}")
        if view is None:
            variables.append(context.fresh(variable, form))
        else:
            call = dataclasses.replace(view[1], output=index) if len(fakes) > 1 else view[1]
            variables.append(wrapped(context, variable, form, (view[0], call)))
    return variables
