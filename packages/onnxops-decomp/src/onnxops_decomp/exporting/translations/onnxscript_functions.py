"""Plain Python functions written with onnxscript's operators: each operator that they call goes through the builder.

``from onnxscript import opset18 as op; def relu(self): return op.Max(self, 0.0)`` is called with values, while what
onnxscript calls its evaluator writes the nodes. The opset of the operators need not be that of the model.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import onnx
import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import to_ir
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.lowerings.scripted import ScriptFunction, constant_of, emit_at
from onnxops_decomp.spec.schemas import OpSpec, op_spec

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["call_traced"]

# onnxscript has one evaluator for the whole process.
_LOCK = threading.RLock()
_ONNX_DOMAINS = ("", "ai.onnx")


def call_traced(op: OpBuilder, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function whose onnxscript operators are written with ``op``.

    Args:
        op: Builder.
        function: The function. Tensors reach it as :class:`TracedTensor`.
        args: Positional arguments as lowerings take them: values, static Python values, lists of them, or None.
        kwargs: Keyword arguments.

    Returns:
        What it returns, in values of the builder.

    Raises:
        LoweringError: If an operator that it calls cannot be written.
    """
    from onnxscript import evaluator

    given = [_seen(op, value) for value in args]
    named = {name: _seen(op, value) for name, value in kwargs.items()}
    with _LOCK, evaluator.default_as(cast(Any, _Writer(op))), _operators_without_schema() as declared:
        while True:
            try:
                return _written(function(*given, **named))
            except AttributeError as error:
                # Called again, it finds the operator, and the nodes of the first attempt are unused.
                if not declared(error):
                    raise


@contextlib.contextmanager
def _operators_without_schema() -> Iterator[Callable[[AttributeError], bool]]:
    """Give the user's own domains the operators that are asked for: onnxscript knows those with a schema only."""
    from onnxscript import values

    found = contextlib.ExitStack()

    def declare(error: AttributeError) -> bool:
        opset, name = error.obj, str(error.name)
        if not isinstance(opset, values.Opset) or opset.domain in _ONNX_DOMAINS or name in vars(opset):
            return False
        setattr(opset, name, values.Op(opset, name))
        found.callback(delattr, opset, name)
        return True

    with found:
        yield declare


class TracedTensor(ir.Value):
    """What a function sees of a value: its dtype, shape, rank and contents, and Python's operators on it.

    Attributes:
        source: The value of the builder.
    """

    def __init__(self, op: OpBuilder, source: ir.Value) -> None:
        super().__init__(name=source.name, shape=source.shape, type=source.type, const_value=source.const_value)
        self.source, self._op = source, op

    @property
    def rank(self) -> int | None:
        """Number of dimensions, or None if it is unknown."""
        return None if self.shape is None else len(self.shape)

    def _emit(self, op_type: str, *operands: Any, **attributes: Any) -> TracedTensor:
        inputs = [_written(operand) for operand in operands]
        return TracedTensor(self._op, self._op.newest.emit(op_type, *inputs, **attributes))

    def __add__(self, other: Any) -> TracedTensor:
        return self._emit("Add", self, other)

    def __radd__(self, other: Any) -> TracedTensor:
        return self._emit("Add", other, self)

    def __sub__(self, other: Any) -> TracedTensor:
        return self._emit("Sub", self, other)

    def __rsub__(self, other: Any) -> TracedTensor:
        return self._emit("Sub", other, self)

    def __mul__(self, other: Any) -> TracedTensor:
        return self._emit("Mul", self, other)

    def __rmul__(self, other: Any) -> TracedTensor:
        return self._emit("Mul", other, self)

    def __truediv__(self, other: Any) -> TracedTensor:
        return self._emit("Div", self, other)

    def __rtruediv__(self, other: Any) -> TracedTensor:
        return self._emit("Div", other, self)

    def __mod__(self, other: Any) -> TracedTensor:
        is_float = self.dtype is not None and self.dtype.is_floating_point()
        return self._emit("Mod", self, other, fmod=int(is_float))

    def __pow__(self, other: Any) -> TracedTensor:
        return self._emit("Pow", self, other)

    def __matmul__(self, other: Any) -> TracedTensor:
        return self._emit("MatMul", self, other)

    def __neg__(self) -> TracedTensor:
        return self._emit("Neg", self)

    def __and__(self, other: Any) -> TracedTensor:
        return self._emit("And", self, other)

    def __rand__(self, other: Any) -> TracedTensor:
        return self._emit("And", other, self)

    def __or__(self, other: Any) -> TracedTensor:
        return self._emit("Or", self, other)

    def __lt__(self, other: Any) -> TracedTensor:
        return self._emit("Less", self, other)

    def __le__(self, other: Any) -> TracedTensor:
        return self._emit("LessOrEqual", self, other)

    def __gt__(self, other: Any) -> TracedTensor:
        return self._emit("Greater", self, other)

    def __ge__(self, other: Any) -> TracedTensor:
        return self._emit("GreaterOrEqual", self, other)

    def __ne__(self, other: object) -> Any:
        return self._emit("Not", self._emit("Equal", self, other))

    __hash__ = ir.Value.__hash__

    def __bool__(self) -> bool:
        raise LoweringError(
            "a translation tests whether a tensor is true, which is known only when the model runs: let ONNX "
            "Where decide, or write an onnxscript.script function, which takes if and loops"
        )


def _seen(op: OpBuilder, value: Any) -> Any:
    """Return an argument as a function for torch's exporter gets it."""
    if isinstance(value, ir.Value):
        return TracedTensor(op, value)
    if isinstance(value, list | tuple):
        return [_seen(op, part) for part in value]
    if isinstance(value, torch.dtype):
        return to_ir(value).value
    if isinstance(value, torch.device | torch.layout | torch.memory_format):
        return str(value)
    return value


def _written(value: Any) -> Any:
    """Return what a function gives, or passes on, in values of the builder."""
    if isinstance(value, TracedTensor):
        return value.source
    if isinstance(value, list | tuple):
        return type(value)([_written(part) for part in value])
    if isinstance(value, onnx.TensorProto):
        return ir.from_proto(value)
    if isinstance(value, torch.Tensor):
        return ir.tensor_adapters.TorchTensor(value.detach().contiguous()).numpy()
    return value


class _Writer:
    """The evaluator that onnxscript hands each call of an operator to."""

    def __init__(self, op: OpBuilder) -> None:
        self._op = op

    def eval_op(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Write one call of an operator."""
        domain, version = operator.opset.domain, operator.opset.version
        inputs = [_written(value) for value in args]
        attributes = {name: _written(value) for name, value in kwargs.items() if value is not None}
        if domain not in _ONNX_DOMAINS:
            return self._results(self._custom(operator, inputs, attributes))
        spec = op_spec(operator.name, version)
        if spec is None:
            raise LoweringError(
                f"ONNX {operator.name} does not exist in opset {version}, in which a translation calls it."
            )
        inputs, attributes = self._bound(spec, inputs, attributes)
        if operator.name == "Constant":
            return TracedTensor(self._op, constant_of(self._op, attributes))
        count = _output_count(spec, inputs, attributes)
        return self._results(emit_at(self._op, operator.name, version, inputs, attributes, count))

    def eval_function(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Write the nodes of a function of onnxscript that is called inside a plain one."""
        if not hasattr(function, "to_function_proto") or getattr(function, "traceable", False):
            return function.function(*args, **kwargs)
        script = ScriptFunction.of(function)
        named = {**dict(zip(script.parameters, map(_written, args), strict=False)), **kwargs}
        operands = [_written(named.pop(str(value.name), None)) for value in script.body.inputs]
        return self._results(script.inline(self._op, operands, {name: self._static(v) for name, v in named.items()}))

    def _results(self, values: Sequence[ir.Value]) -> Any:
        results = tuple(TracedTensor(self._op, value) for value in values)
        return results[0] if len(results) == 1 else results

    def _custom(self, operator: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Sequence[ir.Value]:
        """Write a node of another domain; without a schema it has one output, and keywords are attributes."""
        count = 1 if operator.op_schema is None else len(operator.op_schema.outputs)
        values = [
            value if value is None or isinstance(value, ir.Value) else self._op.constant(value) for value in inputs
        ]
        known = {name: self._static(value) for name, value in attributes.items()}
        opset = operator.opset
        return self._op.emit_custom(opset.domain, operator.name, values, known, [None] * count, version=opset.version)

    def _bound(self, spec: OpSpec, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Split a call into the inputs and the attributes of its operator."""
        inputs, attributes = list(args), {}
        places = {formal.name: index for index, formal in enumerate(spec.inputs)}
        for name, value in named.items():
            if name in places and name not in spec.attributes:
                inputs.extend([None] * (places[name] + 1 - len(inputs)))
                inputs[places[name]] = value
            else:
                attributes[name] = self._static(value)
        for index, value in enumerate(inputs):
            formal = spec.formal_input(index) if spec.inputs else None
            if formal is not None and not formal.dtypes and isinstance(value, list | tuple):
                inputs[index] = self._op.SequenceConstruct(*value)
        return inputs, attributes

    def _static(self, value: Any) -> Any:
        """Return the value of an attribute.

        Raises:
            LoweringError: If the model computes it, or it is a graph.
        """
        value = _written(value)
        if isinstance(value, ir.Attr):
            return value.value
        if isinstance(value, list | tuple):
            return [self._static(part) for part in value]
        if isinstance(value, ir.Value):
            array = self._op.static(value)
            if array is None:
                raise LoweringError("a translation passes a value that the model computes as an attribute")
            return array.tolist()
        if callable(value) or hasattr(value, "function_ir"):
            raise LoweringError(
                "a plain translation cannot take graphs as attributes: write an onnxscript.script function"
            )
        return value


def _output_count(spec: OpSpec, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> int:
    """Return how many results a call gives, which torch's exporter decides in the same way."""
    if spec.op_type == "BatchNormalization" and not attributes.get("training_mode"):
        return 1
    if spec.op_type != "Split":
        return len(spec.outputs)
    sizes = inputs[1] if len(inputs) > 1 else attributes.get("split")
    if isinstance(sizes, ir.Value) and sizes.shape is not None and isinstance(sizes.shape[0], int):
        return sizes.shape[0]
    count = len(sizes) if isinstance(sizes, list | tuple) else attributes.get("num_outputs")
    if not isinstance(count, int):
        raise LoweringError("ONNX Split in a translation needs num_outputs, or sizes that are known here.")
    return count
