"""``g``: what custom symbolics write ONNX with."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import torch

from onnx_ts_legacy.containers import plain
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.graph_parts import node_outputs
from onnx_ts_legacy.quantized_modules import unpack_weights
from onnx_ts_legacy.symbolic_values import SymbolicValue
from onnx_ts_legacy.values import ListRef, Tensor, is_runtime
from onnxops_decomp.calls import check_result
from onnxops_decomp.dtypes import to_ir
from onnxops_decomp.scripted import ScriptFunction

if TYPE_CHECKING:
    from onnx_ts_legacy.conversion import Interpreter

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
    """

    def __init__(self, interpreter: Interpreter, node: Any = None, custom_opsets: dict[str, int] | None = None) -> None:
        self.interpreter = interpreter
        self.original_node = node
        self.opset = interpreter.op.opset
        self.params_dict: dict[str, Any] = {}
        self.env: dict[Any, Any] = {}
        self._custom_opsets = custom_opsets if custom_opsets is not None else interpreter.custom_opsets

    @property
    def graph(self) -> GraphContext:
        """The graph that is written, which is this context itself."""
        return self

    @property
    def block(self) -> GraphContext:
        """The block that is written, which is this context itself."""
        return self

    def op(self, opname: str, *raw_args: Any, outputs: int = 1, **kwargs: Any) -> Any:
        """Write an ONNX node.

        Args:
            opname: Operator of the default domain in the form of the requested opset, or ``"domain::Operator"``.
            raw_args: Inputs: values, None for an omitted one, or Python numbers and tensors.
            outputs: How many outputs are wanted.
            kwargs: Attributes, each with its kind as a suffix: ``axis_i``, ``alpha_f``, ``mode_s``, ``value_t``; lists
                have the suffix of their elements.

        Returns:
            The output, or a tuple if several are wanted.

        Raises:
            LoweringError: If the call does not fit the operator's specification at this opset.
        """
        domain, _, op_type = opname.rpartition("::")
        attributes = dict(_attribute(name, value) for name, value in kwargs.items())
        if domain in ("", "onnx") and op_type == "Constant":
            return self._constant(attributes)
        if domain == "prim" and op_type == "ListConstruct":
            return SymbolicValue(ListRef(self.interpreter.heap, tuple(_variable(arg) for arg in raw_args)))
        if domain == "aten":
            return self.aten_op(attributes.pop("operator", op_type), *raw_args, outputs=outputs, **kwargs)
        inputs = [self.value(arg) for arg in raw_args]
        if domain in ("", "onnx"):
            results: Sequence[ir.Value] = self.interpreter.op.at(self.opset).emit_many(
                op_type, outputs, *inputs, **attributes
            )
        else:
            version = self._custom_opsets.get(domain, 1)
            dtypes: list[Any] = [None] * outputs
            results = self.interpreter.op.emit_custom(domain, op_type, inputs, attributes, dtypes, version=version)
        wrapped = tuple(SymbolicValue(result, op_type) for result in results)
        return wrapped[0] if outputs == 1 else wrapped

    def aten_op(self, operator: str, *args: Any, overload_name: str = "", outputs: int = 1, **kwargs: Any) -> Any:
        """Write a call of an ATen operator as it is, for a runtime that has them (Caffe2, ORT with ATen fallback)."""
        attributes = dict(_attribute(name, value) for name, value in kwargs.items() if not name.startswith("operator"))
        attributes |= {"operator": operator, "overload_name": overload_name}
        inputs = [self.value(arg) for arg in args]
        dtypes: list[Any] = [None] * outputs
        results = self.interpreter.op.emit_custom(_ATEN_DOMAIN, "ATen", inputs, attributes, dtypes)
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
            results = script.inline(self.interpreter.op, inputs, attributes)[:outputs]
        else:
            self.interpreter.add_function(function)
            dtypes: list[Any] = [None] * outputs
            results = self.interpreter.op.emit_custom(
                function.domain, function.name, inputs, attributes, dtypes, version=onnx_fn.opset.version
            )
        wrapped = tuple(SymbolicValue(result, function.name) for result in results)
        return wrapped[0] if outputs == 1 else wrapped

    def value(self, argument: Any) -> ir.Value | None:
        """Return the ONNX value of an argument of ``op``."""
        variable = _variable(argument)
        if variable is None or isinstance(variable, ir.Value):
            return variable
        if isinstance(variable, Tensor):
            return self.interpreter.value(variable)
        if isinstance(variable, ListRef):
            return self._list_value(variable)
        if is_runtime(variable):
            return self.interpreter.scalars.to_value(variable)
        if isinstance(variable, float):
            return self.interpreter.op.constant(variable, to_ir(torch.get_default_dtype()))
        if isinstance(variable, torch.Tensor | np.ndarray | np.generic):
            tensor = torch.as_tensor(variable).detach().contiguous()
            return self.interpreter.op.constant(ir.tensor_adapters.TorchTensor(tensor).numpy(), to_ir(tensor.dtype))
        if isinstance(variable, bool | int):
            return self.interpreter.op.constant(variable)
        if isinstance(variable, list | tuple):
            return self.interpreter.op.constant(np.asarray(variable))
        raise ScriptValueError(f"A {type(variable).__name__} cannot be an input of an ONNX node.")

    def _list_value(self, items: ListRef) -> ir.Value:
        """Return a list of numbers as a vector; lists of tensors are no single value."""
        if any(isinstance(item, Tensor) for item in items.items):
            raise ScriptValueError(
                "A list of tensors is given as an input; unpack it with symbolic_helper._unpack_list."
            )
        if any(isinstance(item, float) for item in items.items):
            return self.interpreter.op.constant(np.asarray(plain(items), dtype=np.float32))
        return self.interpreter.op.vector([self.interpreter.operand(item) for item in items.items])

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
    interpreter: Interpreter, node: Any, args: Sequence[Any], function: Callable[..., Any], *, plain: Sequence[int] = ()
) -> Any:
    """Convert a call with a custom symbolic and return its result as variables.

    Args:
        interpreter: The conversion.
        node: The TorchScript node.
        args: The inputs of the call.
        function: The symbolic.
        plain: Positions of the inputs that it gets as Python values.

    Raises:
        ScriptValueError: If the function gives another number of results than the call has.
    """
    g = GraphContext(interpreter, node)
    given = unpack_weights(interpreter, node.kind(), args, bias_required=True)
    inputs = (arg if index in plain else SymbolicValue(arg) for index, arg in enumerate(given))
    results = function(g, *inputs, **_unpacked_count(node, function))
    if results is None and node.outputsSize():
        raise ScriptValueError(f"The symbolic of {node.kind()} returns None; it has to return what g.op() gives.")
    many = list(results) if isinstance(results, list | tuple) else [results]
    fakes = interpreter.result_forms(node, args)
    count = len(fakes)
    listed = [output.type().kind() for output in node_outputs(node)] == ["ListType"]
    if listed and isinstance(_variable(results), ListRef):
        return _variable(results)
    if len(many) < count:
        raise ScriptValueError(f"The symbolic of {node.kind()} gives {len(many)} results, the operator {count}.")
    variables = [
        _as_variable(interpreter, result, fake, str(node.kind())) for result, fake in zip(many, fakes, strict=False)
    ]
    if listed:
        return ListRef(interpreter.heap, tuple(variables))
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


def _as_variable(interpreter: Interpreter, result: Any, fake: Any, name: str) -> Any:
    variable = _variable(result)
    if not isinstance(variable, ir.Value):
        return variable
    if fake is None:
        fake = interpreter.described(variable, name)
    check_result(variable, fake, interpreter.metadata.symbols.dims(fake), f"the symbolic of {name}")
    return interpreter.fresh(variable, fake)
