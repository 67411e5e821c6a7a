"""Numbers and truth values of the program: computed here where they are known, by the model where they are not."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import sympy
import torch

from onnx_ts_legacy.calls.math import NUMBER_FUNCTIONS
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.state.values import Poison, RuntimeBool, RuntimeFloat, Tensor, VectorState, is_runtime
from onnxops_decomp.exporting import emit_expression, mark_number, to_ir

if TYPE_CHECKING:
    from onnx_ts_legacy.conversion import Interpreter

__all__ = ["SCALAR_OPERATORS", "Scalars"]

aten = torch.ops.aten
_INT64, _DOUBLE, _BOOL = ir.DataType.INT64, ir.DataType.DOUBLE, ir.DataType.BOOL


class Scalars:
    """Moves numbers between the program, where they are Python's, and the model, where they are 0-d values."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter

    def to_value(self, number: Any, dtype: ir.DataType | None = None) -> ir.Value:
        """Return a 0-d value that holds a number.

        Raises:
            ScriptValueError: If it is no number.
        """
        op = self._interpreter.op
        if isinstance(number, RuntimeFloat):
            value = number.value
        elif isinstance(number, RuntimeBool):
            value = self._bool_value(number)
        elif isinstance(number, torch.SymInt):
            size = op.size_of_expression(
                self._interpreter.metadata.symbols.expression(number), _dim(self._interpreter.metadata.symbols, number)
            )
            value = op.constant(size, _INT64) if isinstance(size, int) else size
        elif isinstance(number, bool):
            value = op.constant(number, _BOOL)
        elif isinstance(number, int):
            value = op.constant(number, _INT64)
        elif isinstance(number, float):
            value = op.constant(number, _DOUBLE)
        elif isinstance(number, Poison):
            raise number.error()
        else:
            raise ScriptValueError(f"A {type(number).__name__} is used where ONNX needs a number.")
        return value if dtype is None else op.cast(value, dtype)

    def to_output(self, result: Any) -> ir.Value:
        """Return a number or list of numbers that the program returns, in the dtype that ``torch.tensor`` gives it.

        TorchScript's floats are of double precision, and so are they inside the model.
        """
        value = self._interpreter.value(result.tensor if isinstance(result, VectorState) else result)
        return self._interpreter.op.cast(value, to_ir(torch.get_default_dtype())) if value.dtype == _DOUBLE else value

    def to_argument(self, number: Any) -> Any:
        """Return a number as lowerings take it: plain Python where it is known, else a 0-d value marked as a number."""
        return mark_number(self.to_value(number)) if is_runtime(number) else number

    def _bool_value(self, condition: RuntimeBool) -> ir.Value:
        if condition.value is not None:
            return condition.value
        assert condition.relation is not None
        op = self._interpreter.op
        return op.Squeeze(emit_expression(op.newest, condition.relation), [0])

    def from_symbolic(self, condition: Any) -> bool | RuntimeBool:
        """Return a relation between sizes as a truth value; it is decided here if it holds for all sizes or none."""
        if isinstance(condition, bool):
            return condition
        metadata = self._interpreter.metadata
        known = metadata.decided(condition)
        return RuntimeBool(relation=metadata.symbols.expression(condition)) if known is None else known

    def runtime(self, value: ir.Value) -> Any:
        """Return the number that a 0-d value holds at run time; a Python number if the value is a constant."""
        static = self._interpreter.op.static(value)
        if static is not None:
            return static.item()
        assert value.dtype is not None
        if value.dtype == _BOOL:
            return RuntimeBool(value)
        if value.dtype.is_floating_point():
            return RuntimeFloat(self._interpreter.op.cast(value, _DOUBLE))
        return self._interpreter.metadata.runtime_int(value)

    def of_tensor(self, tensor: Tensor) -> Any:
        """Return the number that a tensor of one element holds."""
        node = tensor.node
        number = getattr(node.state, "number", None) if not hasattr(node, "parent") else None
        if number is not None:
            return number
        op = self._interpreter.op
        value = self._interpreter.value(tensor)
        if tensor.fake.dim():
            value = op.Reshape(value, op.constant([], _INT64))
        return self.runtime(value)

    def truth(self, number: Any) -> bool | RuntimeBool:
        """Return ``bool(number)``."""
        if isinstance(number, RuntimeBool):
            return number
        if isinstance(number, torch.SymInt):
            return self.from_symbolic(number != 0)
        if isinstance(number, RuntimeFloat):
            op = self._interpreter.op
            return RuntimeBool(op.Not(op.Equal(number.value, 0.0)))
        if isinstance(number, Poison):
            raise number.error()
        return bool(number)

    def negated(self, condition: Any) -> bool | RuntimeBool:
        """Return ``not condition``."""
        condition = self.truth(condition)
        if isinstance(condition, bool):
            return not condition
        if condition.value is not None:
            return RuntimeBool(self._interpreter.op.Not(condition.value))
        return RuntimeBool(relation=sympy.Not(condition.relation))

    def binary(self, name: str, a: Any, b: Any) -> Any:
        """Return the result of a Python operator on numbers, of which the runtime knows at least one."""
        for operand in (a, b):
            if isinstance(operand, Poison):
                raise operand.error()
        if isinstance(a, RuntimeBool) or isinstance(b, RuntimeBool):
            return self._logical(name, a, b)
        if isinstance(a, RuntimeFloat | float) or isinstance(b, RuntimeFloat | float) or name in ("div", "pow"):
            return self._floating(name, a, b)
        bitwise = _BITWISE.get(name)
        if bitwise is not None and not (name in _INTEGER and isinstance(b, int)):
            interpreter = self._interpreter
            operands = [interpreter.number_tensor(operand) for operand in (a, b)]
            return self.of_tensor(interpreter.call(bitwise, operands, {}))
        function = _INTEGER.get(name)
        if function is None:
            raise ScriptValueError(f"{name} of integers that only the runtime knows has no ONNX form.")
        result = function(a, b)
        return self.from_symbolic(result) if isinstance(result, torch.SymBool) else result

    def _logical(self, name: str, a: Any, b: Any) -> Any:
        op = self._interpreter.op
        op_type = _LOGICAL.get(name)
        if op_type is None:
            return self.binary(name, self.as_int(a), self.as_int(b))
        left, right = self.to_value(self.truth(a)), self.to_value(self.truth(b))
        if op_type == "NotEqual":
            return RuntimeBool(op.Xor(left, right))
        return RuntimeBool(op.emit(op_type, left, right))

    def _floating(self, name: str, a: Any, b: Any) -> Any:
        op = self._interpreter.op
        left, right = self.to_value(a, _DOUBLE), self.to_value(b, _DOUBLE)
        if name in _COMPARISONS:
            result = op.emit(_COMPARISONS[name], left, right)
            return RuntimeBool(op.Not(result) if name == "ne" else result)
        if name == "floordiv":
            return RuntimeFloat(op.Floor(op.Div(left, right)))
        if name == "remainder":
            return RuntimeFloat(op.Sub(left, op.Mul(op.Floor(op.Div(left, right)), right)))
        op_type = _ARITHMETIC.get(name)
        if op_type is None:
            raise ScriptValueError(f"{name} of floats that only the runtime knows has no ONNX form.")
        return RuntimeFloat(op.emit(op_type, left, right))

    def unary(self, name: str, a: Any) -> Any:
        """Return the result of a function of one number that only the runtime knows."""
        op = self._interpreter.op
        if isinstance(a, Poison):
            raise a.error()
        if name == "neg" and not isinstance(a, RuntimeFloat):
            return -self.as_int(a)
        if name == "abs" and not isinstance(a, RuntimeFloat):
            return self.runtime(op.Abs(self.to_value(self.as_int(a))))
        if name in ("floor", "ceil", "round", "trunc"):
            if isinstance(a, torch.SymInt):
                return a
            rounded = op.emit(name.capitalize(), self.to_value(a, _DOUBLE)) if name != "trunc" else self.to_value(a)
            return RuntimeFloat(rounded) if name == "round" else self.runtime(op.cast(rounded, _INT64))
        op_type = _FUNCTIONS.get(name)
        if op_type is None:
            raise ScriptValueError(f"{name} of a number that only the runtime knows has no ONNX form.")
        return RuntimeFloat(op.emit(op_type, self.to_value(a, _DOUBLE)))

    def as_int(self, number: Any) -> Any:
        """Return ``int(number)``."""
        if isinstance(number, Tensor):
            number = self.of_tensor(number)
        if isinstance(number, RuntimeBool | RuntimeFloat):
            return self.runtime(self.to_value(number, _INT64))
        return number if isinstance(number, torch.SymInt) else int(number)

    def from_start(self, index: Any, length: Any) -> Any:
        """Return the index of an item from the start, where it may count from the end."""
        if isinstance(index, int):
            return index if index >= 0 else index + length
        op = self._interpreter.op
        place, count = self.to_value(index, _INT64), self.to_value(length, _INT64)
        return self.runtime(op.Where(op.Less(place, 0), op.Add(place, count), place))

    def as_float(self, number: Any) -> Any:
        """Return ``float(number)``."""
        if isinstance(number, Tensor):
            number = self.of_tensor(number)
        if isinstance(number, RuntimeFloat):
            return number
        return RuntimeFloat(self.to_value(number, _DOUBLE)) if is_runtime(number) else float(number)


def _dim(symbols: Any, number: torch.SymInt) -> ir.SymbolicDim:
    dim = symbols.dim(number)
    return dim if isinstance(dim, ir.SymbolicDim) else ir.SymbolicDim(None)


_INTEGER: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "remainder": operator.mod,
    "__lshift__": lambda a, b: a * 2**b,
    "__rshift__": lambda a, b: a // 2**b,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "min": torch.sym_min,
    "max": torch.sym_max,
}
_BITWISE = {
    "__and__": aten.bitwise_and.Tensor,
    "__or__": aten.bitwise_or.Tensor,
    "__xor__": aten.bitwise_xor.Tensor,
    "__lshift__": aten.bitwise_left_shift.Tensor,
    "__rshift__": aten.bitwise_right_shift.Tensor,
}
_LOGICAL = {
    "__and__": "And",
    "__or__": "Or",
    "__xor__": "Xor",
    "and": "And",
    "or": "Or",
    "eq": "Equal",
    "ne": "NotEqual",
}
_COMPARISONS = {
    "eq": "Equal",
    "ne": "Equal",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
}
_ARITHMETIC = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "min": "Min", "max": "Max"}
_FUNCTIONS = {
    "neg": "Neg",
    "abs": "Abs",
    "sqrt": "Sqrt",
    "exp": "Exp",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "tanh": "Tanh",
}


def _unary(name: str) -> Callable[[Interpreter, Any], Any]:
    return lambda interpreter, a: interpreter.scalars.unary(name, a)


def _binary(name: str) -> Callable[[Interpreter, Any, Any], Any]:
    return lambda interpreter, a, b: interpreter.scalars.binary(name, a, b)


def _item(interpreter: Interpreter, a: Any) -> Any:
    return interpreter.scalars.of_tensor(a) if isinstance(a, Tensor) else a


# Operators on numbers by the name of their packet; they are used if an operand is known at run time only.
SCALAR_OPERATORS: dict[str, Callable[..., Any]] = {
    "prim::min": _binary("min"),
    "prim::max": _binary("max"),
    "prim::abs": _unary("abs"),
    "aten::Int": lambda interpreter, a: interpreter.scalars.as_int(a),
    "aten::IntImplicit": lambda interpreter, a: interpreter.scalars.as_int(a),
    "aten::Float": lambda interpreter, a: interpreter.scalars.as_float(a),
    "aten::FloatImplicit": lambda interpreter, a: interpreter.scalars.as_float(a),
    "aten::ScalarImplicit": _item,
    "aten::item": _item,
    "aten::Scalar": _item,
    "aten::__not__": lambda interpreter, a: interpreter.scalars.negated(a),
    "aten::round": lambda interpreter, a, *_: interpreter.scalars.unary("round", a),
    **{
        f"aten::{name}": _binary(name)
        for name in (*_INTEGER, *_ARITHMETIC, "__and__", "__or__", "__xor__")
        if name not in ("min", "max")
    },
    **{f"aten::{name}": _unary(name) for name in (*_FUNCTIONS, "floor", "ceil", "trunc")},
    **NUMBER_FUNCTIONS,
}


def _range_length(interpreter: Interpreter, start: Any, end: Any, step: Any) -> Any:
    """Return ``len(range(start, end, step))``."""
    if not isinstance(step, int):
        raise ScriptValueError("The step of a range is known at run time only.")
    distance = end - start + step - (1 if step > 0 else -1)
    return torch.sym_max(0, distance // step)


def bool_of(interpreter: Interpreter, a: Any) -> Any:
    """Return ``bool(a)`` of a number or a tensor of one element."""
    if isinstance(a, Tensor):
        number = interpreter.scalars.of_tensor(a)
        return interpreter.scalars.truth(number)
    return interpreter.scalars.truth(a)


SCALAR_OPERATORS["aten::Bool"] = bool_of
SCALAR_OPERATORS["aten::__range_length"] = _range_length
SCALAR_OPERATORS["aten::__derive_index"] = lambda interpreter, index, start, step: start + index * step
SCALAR_OPERATORS["aten::math_trunc"] = lambda interpreter, a: (
    math.trunc(a) if isinstance(a, float) else interpreter.scalars.as_int(a)
)
