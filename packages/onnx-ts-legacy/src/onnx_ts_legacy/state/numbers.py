"""Numbers and truth values between the program, where they are Python's, and the model, where they are 0-d values."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import sympy
import torch

from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.values import Poison, RuntimeBool, RuntimeFloat, is_runtime
from onnxops_decomp.exporting import emit_expression, mark_number

__all__ = ["negated", "number_argument", "number_value", "runtime_number", "truth_of", "truth_of_relation"]

_INT64, _DOUBLE, _BOOL = ir.DataType.INT64, ir.DataType.DOUBLE, ir.DataType.BOOL


def number_value(context: ConversionContext, number: Any, dtype: ir.DataType | None = None) -> ir.Value:
    """Return a 0-d value that holds a number.

    Raises:
        ScriptValueError: If it is not a number.
    """
    op = context.op
    if isinstance(number, RuntimeFloat):
        value = number.value
    elif isinstance(number, RuntimeBool):
        value = _bool_value(context, number)
    elif isinstance(number, torch.SymInt):
        size = op.size_of_expression(
            context.metadata.symbols.expression(number), _dim(context.metadata.symbols, number)
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


def number_argument(context: ConversionContext, number: Any) -> Any:
    """Return a number as lowerings take it: plain Python where it is known, else a 0-d value marked as a number."""
    return mark_number(number_value(context, number)) if is_runtime(number) else number


def _bool_value(context: ConversionContext, condition: RuntimeBool) -> ir.Value:
    if condition.value is not None:
        return condition.value
    assert condition.relation is not None
    op = context.op
    return op.Squeeze(emit_expression(op.newest, condition.relation), [0])


def truth_of_relation(context: ConversionContext, condition: Any) -> bool | RuntimeBool:
    """Return a relation between sizes as a truth value; it is decided here if it holds for all sizes or none."""
    if isinstance(condition, bool):
        return condition
    metadata = context.metadata
    known = metadata.decided(condition)
    return RuntimeBool(relation=metadata.symbols.expression(condition)) if known is None else known


def runtime_number(context: ConversionContext, value: ir.Value) -> Any:
    """Return the number that a 0-d value holds at run time; a Python number if the value is a constant."""
    static = context.op.static(value)
    if static is not None:
        return static.item()
    assert value.dtype is not None
    if value.dtype == _BOOL:
        return RuntimeBool(value)
    if value.dtype.is_floating_point():
        return RuntimeFloat(context.op.cast(value, _DOUBLE))
    return context.metadata.runtime_int(value)


def truth_of(context: ConversionContext, number: Any) -> bool | RuntimeBool:
    """Return ``bool(number)``."""
    if isinstance(number, RuntimeBool):
        return number
    if isinstance(number, torch.SymInt):
        return truth_of_relation(context, number != 0)
    if isinstance(number, RuntimeFloat):
        op = context.op
        return RuntimeBool(op.Not(op.Equal(number.value, 0.0)))
    if isinstance(number, Poison):
        raise number.error()
    return bool(number)


def negated(context: ConversionContext, condition: Any) -> bool | RuntimeBool:
    """Return ``not condition``."""
    condition = truth_of(context, condition)
    if isinstance(condition, bool):
        return not condition
    if condition.value is not None:
        return RuntimeBool(context.op.Not(condition.value))
    return RuntimeBool(relation=sympy.Not(condition.relation))


def _dim(symbols: Any, number: torch.SymInt) -> ir.SymbolicDim:
    dim = symbols.dim(number)
    return dim if isinstance(dim, ir.SymbolicDim) else ir.SymbolicDim(None)
