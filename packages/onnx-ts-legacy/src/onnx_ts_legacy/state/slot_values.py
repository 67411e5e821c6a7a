"""State that is an input and an output of the model, as the program has it and as the model has it."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.shapes.tensor_forms import TensorForm
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import runtime_number
from onnx_ts_legacy.state.pairs import held_as, held_dims
from onnx_ts_legacy.state.slots import StateSlot, reshaped
from onnx_ts_legacy.state.values import Tensor
from onnx_ts_legacy.state.variables import any_value, value_of
from onnxops_decomp import OpBuilder
from onnxops_decomp.exporting import to_ir

__all__ = ["interface_value", "state_input"]


def state_input(context: ConversionContext, slot: StateSlot) -> Any:
    """Return the variable for an attribute that is an input of the model."""
    if slot.name in context.attributes.states:
        return context.attributes.states[slot.name]
    if isinstance(slot.initial, torch.Tensor):
        result: Any = _state_tensor(context, slot)
    else:
        kind = {bool: ir.DataType.BOOL, int: ir.DataType.INT64, float: ir.DataType.DOUBLE}.get(type(slot.initial))
        if kind is None:
            raise ScriptValueError(
                f"Attribute {slot.name!r} is changed by the program and holds a {type(slot.initial).__name__}; "
                "only tensors and numbers can be state of an ONNX model."
            )
        result = runtime_number(context, context.main.input(slot.name, kind, ()))
    context.attributes.states[slot.name] = result
    return result


def _state_tensor(context: ConversionContext, slot: StateSlot) -> Tensor:
    forms = [_state_form(context, dtype, sizes) for dtype, sizes in slot.forms]
    given = forms[0] if len(forms) == 1 else _state_form(context, slot.forms[0][0], slot.interface)
    dims = held_dims(context.metadata.symbols.dims(given), given.dtype)
    value = held_as(context.main.input(slot.name, to_ir(given.dtype), dims), given.dtype)
    return context.fresh(_program_value(context.main.newest, slot, value), *forms, origin=slot.name)


def _state_form(context: ConversionContext, dtype: torch.dtype, sizes: tuple[int | None, ...]) -> TensorForm:
    named = [context.metadata.unknown_size() if size is None else size for size in sizes]
    return context.metadata.empty(dtype, named)


def _program_value(op: OpBuilder, slot: StateSlot, value: ir.Value) -> ir.Value:
    """Return the state as the program has it: of the lower rank where it is empty."""
    empty = slot.empty_sizes
    if empty is None:
        return value
    full = op.Not(op.Equal(op.Size(value), 0))
    first = [axis < len(empty) for axis in range(len(slot.interface))]
    return reshaped(op, value, op.Or(first, full))


def interface_value(context: ConversionContext, slot: StateSlot, variable: Any) -> ir.Value:
    """Return the value of a state output: of the higher rank, also where it is empty."""
    if not isinstance(slot.initial, torch.Tensor):
        return value_of(context, variable)
    rank = len(slot.interface)
    if slot.empty_sizes is None or {form.dim() for form in variable.forms} == {rank}:
        return value_of(context, variable)
    op = context.main.newest
    value = any_value(context, variable)
    # The two shapes broadcast: that of an empty tensor has one element, any other all of them. A size of 0 copies the
    # first one of the operand, which is 0.
    shape = op.Where(op.Equal(op.Size(value), 0), slot.empty_interface(), op.Shape(value))
    result = op.Reshape(value, shape)
    result.shape = ir.Shape(slot.interface)
    return result
