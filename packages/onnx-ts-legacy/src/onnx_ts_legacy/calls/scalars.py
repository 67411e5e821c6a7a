"""Numbers and truth values of the program: computed here where they are known, by the model where they are not."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import number_value, runtime_number, truth_of, truth_of_relation
from onnx_ts_legacy.state.values import Poison, RuntimeBool, RuntimeFloat, Tensor, VectorState, is_runtime
from onnx_ts_legacy.state.variables import number_in, number_tensor, value_of
from onnxops_decomp.exporting import to_ir

__all__ = ["ARITHMETIC", "FUNCTIONS", "INTEGER", "as_float", "as_int", "binary", "from_start", "number_output", "unary"]

aten = torch.ops.aten
_INT64, _DOUBLE = ir.DataType.INT64, ir.DataType.DOUBLE


def number_output(context: ConversionContext, result: Any) -> ir.Value:
    """Return a number or list of numbers that the program returns, in the dtype that ``torch.tensor`` gives it.

    TorchScript's floats are of double precision, and so are they inside the model.
    """
    value = value_of(context, result.tensor if isinstance(result, VectorState) else result)
    return context.op.cast(value, to_ir(torch.get_default_dtype())) if value.dtype == _DOUBLE else value


def binary(context: ConversionContext, name: str, a: Any, b: Any) -> Any:
    """Return the result of a Python operator on numbers, at least one of which is known only at run time."""
    for operand in (a, b):
        if isinstance(operand, Poison):
            raise operand.error()
    if isinstance(a, RuntimeBool) or isinstance(b, RuntimeBool):
        return _logical(context, name, a, b)
    if isinstance(a, RuntimeFloat | float) or isinstance(b, RuntimeFloat | float) or name in ("div", "pow"):
        return _floating(context, name, a, b)
    bitwise = _BITWISE.get(name)
    if bitwise is not None and not (name in INTEGER and isinstance(b, int)):
        operands = [number_tensor(context, operand) for operand in (a, b)]
        return number_in(context, context.call(bitwise, operands, {}))
    function = INTEGER.get(name)
    if function is None:
        raise ScriptValueError(f"{name} of integers known only at run time has no ONNX form.")
    result = function(a, b)
    return truth_of_relation(context, result) if isinstance(result, torch.SymBool) else result


def _logical(context: ConversionContext, name: str, a: Any, b: Any) -> Any:
    op = context.op
    op_type = _LOGICAL.get(name)
    if op_type is None:
        return binary(context, name, as_int(context, a), as_int(context, b))
    left, right = number_value(context, truth_of(context, a)), number_value(context, truth_of(context, b))
    if op_type == "NotEqual":
        return RuntimeBool(op.Xor(left, right))
    return RuntimeBool(op.emit(op_type, left, right))


def _floating(context: ConversionContext, name: str, a: Any, b: Any) -> Any:
    op = context.op
    left, right = number_value(context, a, _DOUBLE), number_value(context, b, _DOUBLE)
    if name in _COMPARISONS:
        result = op.emit(_COMPARISONS[name], left, right)
        return RuntimeBool(op.Not(result) if name == "ne" else result)
    if name == "floordiv":
        return RuntimeFloat(op.Floor(op.Div(left, right)))
    if name == "remainder":
        # As TorchScript has it: a remainder that is written with a quotient is off by rounding, or by a whole divisor.
        return RuntimeFloat(op.Mod(op.Add(op.Mod(left, right, fmod=1), right), right, fmod=1))
    op_type = ARITHMETIC.get(name)
    if op_type is None:
        raise ScriptValueError(f"{name} of floats known only at run time has no ONNX form.")
    return RuntimeFloat(op.emit(op_type, left, right))


def unary(context: ConversionContext, name: str, a: Any) -> Any:
    """Return the result of a function of one number known only at run time."""
    op = context.op
    if isinstance(a, Poison):
        raise a.error()
    if name == "neg" and not isinstance(a, RuntimeFloat):
        return -as_int(context, a)
    if name == "abs" and not isinstance(a, RuntimeFloat):
        return runtime_number(context, op.Abs(number_value(context, as_int(context, a))))
    if name in ("floor", "ceil", "round", "trunc"):
        if isinstance(a, torch.SymInt):
            return a
        rounded = (
            op.emit(name.capitalize(), number_value(context, a, _DOUBLE))
            if name != "trunc"
            else number_value(context, a)
        )
        return RuntimeFloat(rounded) if name == "round" else runtime_number(context, op.cast(rounded, _INT64))
    op_type = FUNCTIONS.get(name)
    if op_type is None:
        raise ScriptValueError(f"{name} of a number known only at run time has no ONNX form.")
    return RuntimeFloat(op.emit(op_type, number_value(context, a, _DOUBLE)))


def as_int(context: ConversionContext, number: Any) -> Any:
    """Return ``int(number)``."""
    if isinstance(number, Tensor):
        number = number_in(context, number)
    if isinstance(number, RuntimeBool | RuntimeFloat):
        return runtime_number(context, number_value(context, number, _INT64))
    return number if isinstance(number, torch.SymInt) else int(number)


def from_start(context: ConversionContext, index: Any, length: Any) -> Any:
    """Return the index of an item from the start, where it may count from the end."""
    if isinstance(index, int):
        return index if index >= 0 else index + length
    op = context.op
    place, count = number_value(context, index, _INT64), number_value(context, length, _INT64)
    return runtime_number(context, op.Where(op.Less(place, 0), op.Add(place, count), place))


def as_float(context: ConversionContext, number: Any) -> Any:
    """Return ``float(number)``."""
    if isinstance(number, Tensor):
        number = number_in(context, number)
    if isinstance(number, RuntimeFloat):
        return number
    return RuntimeFloat(number_value(context, number, _DOUBLE)) if is_runtime(number) else float(number)


INTEGER: dict[str, Callable[[Any, Any], Any]] = {
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
ARITHMETIC = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "min": "Min", "max": "Max"}
FUNCTIONS = {
    "neg": "Neg",
    "abs": "Abs",
    "sqrt": "Sqrt",
    "exp": "Exp",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "tanh": "Tanh",
}
