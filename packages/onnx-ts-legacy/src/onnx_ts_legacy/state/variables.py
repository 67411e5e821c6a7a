"""The variables of a program that is converted: read as ONNX values, and asked for their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onnx_ts_legacy.errors import ProgramRaisesError
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import number_value, runtime_number
from onnx_ts_legacy.state.pairs import held_as, held_dims
from onnx_ts_legacy.state.values import Content, Poison, RuntimeBool, RuntimeFloat, Stale, Storage, Tensor, View
from onnxops_decomp import OpBuilder
from onnxops_decomp.exporting import axis_size, to_ir

__all__ = [
    "any_value",
    "content_value",
    "count_of",
    "node_value",
    "number_in",
    "number_tensor",
    "rank_of",
    "size_of",
    "sizes_of",
    "value_of",
    "zeros",
]

aten = torch.ops.aten


def number_tensor(context: ConversionContext, number: Any) -> Tensor:
    """Return a 0-d tensor that holds a number."""
    if isinstance(number, Tensor):
        return number
    dtype = torch.int64
    if isinstance(number, bool | RuntimeBool):
        dtype = torch.bool
    elif isinstance(number, float | RuntimeFloat):
        dtype = torch.get_default_dtype()
        return context.fresh(number_value(context, number, to_ir(dtype)), context.metadata.empty(dtype, []))
    return context.fresh(None, context.metadata.empty(dtype, []), number=number)


def value_of(context: ConversionContext, tensor: Any) -> ir.Value:
    """Return the ONNX value of what a tensor variable holds now."""
    if isinstance(tensor, Poison):
        raise tensor.error()
    if not isinstance(tensor, Tensor):
        return number_value(context, tensor)
    value = node_value(context, tensor.node)
    if value.shape is None and len(tensor.forms) == 1:
        dims = held_dims(context.metadata.symbols.dims(tensor.fake), tensor.fake.dtype)
        assert value.dtype is not None
        value = context.op.emit_custom("", "Identity", [value], {}, [value.dtype], shapes=[dims])[0]
        held_as(value, tensor.fake.dtype)
    return value


def node_value(context: ConversionContext, node: Storage | View) -> ir.Value:
    """Return the ONNX value of what ``node`` holds now."""
    if isinstance(node, Storage):
        context.sometimes_views.read(node, context.node)
        return content_value(context, node.state)
    parent = node_value(context, node.parent)
    if node.cached is not None and node.cached[0] is parent and context.is_visible(node.cached[2]):
        return node.cached[1]
    value = _repeat(context, node, parent)
    node.cached = (parent, value, context.op.scope)
    return value


def _repeat(context: ConversionContext, node: View, parent: ir.Value) -> ir.Value:
    call = node.call
    operand = context.fresh(parent, node.parent.fake)
    args = list(call.args)
    args[call.position] = operand
    result = context.call(call.overload, args, call.kwargs)
    if call.output is not None:
        result = result.items[call.output] if not isinstance(result, tuple) else result[call.output]
    return value_of(context, result)


def content_value(context: ConversionContext, content: Content | Stale) -> ir.Value:
    """Return the ONNX value of what a storage holds.

    Raises:
        ScriptValueError: If it must not be read.
    """
    if isinstance(content, Stale):
        raise content.error()
    return number_value(context, content.number) if content.value is None else content.value


def zeros(context: ConversionContext, dtype: torch.dtype, sizes: Sequence[int]) -> ir.Value:
    """Return a constant, to stand where a variable has no value and is never read."""
    return context.op.constant(np.zeros(sizes, to_ir(dtype).numpy()), to_ir(dtype))


def any_value(context: ConversionContext, variable: Tensor) -> ir.Value:
    """Return the ONNX value of a tensor variable, of whatever rank it is."""
    return node_value(context, variable.node) if len(variable.forms) > 1 else value_of(context, variable)


# ---- sizes, also of tensors that may have several ranks


def number_in(context: ConversionContext, tensor: Tensor) -> Any:
    """Return the number that a tensor of one element holds."""
    node = tensor.node
    number = getattr(node.state, "number", None) if not hasattr(node, "parent") else None
    if number is not None:
        return number
    op = context.op
    value = value_of(context, tensor)
    if tensor.fake.dim():
        value = op.Reshape(value, op.constant([], ir.DataType.INT64))
    return runtime_number(context, value)


# ---- sizes, also of tensors that may have several ranks


def rank_of(context: ConversionContext, tensor: Tensor) -> Any:
    """Return ``tensor.dim()``."""
    ranks = tuple(form.dim() for form in tensor.forms)
    if len(set(ranks)) == 1:
        return ranks[0]
    value = node_value(context, tensor.node)
    return _case(context, tensor, context.op.Size(context.op.Shape(value)), ranks)


def size_of(context: ConversionContext, tensor: Tensor, axis: Any) -> Any:
    """Return ``tensor.size(axis)``."""
    if len(tensor.forms) == 1:
        shape = tensor.fake.shape
        if not -len(shape) <= axis < len(shape):
            raise ProgramRaisesError(f"Dimension {axis} of a tensor of rank {len(shape)} is read.")
        size = shape[axis]
        return size if isinstance(size, int) else _sized(context, tensor, size, range(len(shape))[axis])
    sizes = tuple(form.shape[axis] if -form.dim() <= axis < form.dim() else None for form in tensor.forms)
    value = node_value(context, tensor.node)
    return _case(context, tensor, context.op.Gather(context.op.Shape(value), [axis]), sizes)


def _sized(context: ConversionContext, tensor: Tensor, size: torch.SymInt, axis: int) -> torch.SymInt:
    """Give symbols that only this tensor knows a source, so that they can be computed."""
    expression = context.metadata.symbols.expression(size)
    shared = context.op.context
    unknown = [symbol for symbol in expression.free_symbols if symbol.name not in shared.symbols]
    if not unknown:
        return size
    source = partial(_read_size, context, tensor.node, axis, value_of(context, tensor), context.op.scope)
    if expression.is_Symbol:
        context.tell_size(str(expression), source, tensor.storage)
        return size
    return context.metadata.runtime_int(source(context.op.newest))


def _read_size(
    context: ConversionContext, node: Storage | View, axis: int, value: ir.Value, scope: Any, op: OpBuilder
) -> ir.Value:
    """Write a size of a tensor, which was ``value`` in the graph of ``scope``; other graphs compute it anew."""
    return axis_size(value if context.is_visible(scope) else node_value(context, node), axis, op)


def sizes_of(context: ConversionContext, tensor: Tensor) -> list[Any]:
    """Return ``tensor.size()``."""
    return [size_of(context, tensor, axis) for axis in range(tensor.fake.dim())]


def count_of(context: ConversionContext, tensor: Tensor) -> Any:
    """Return ``tensor.numel()``."""
    if len(tensor.forms) > 1:
        counts = tuple(form.numel() for form in tensor.forms)
        return _case(context, tensor, context.op.Size(node_value(context, tensor.node)), counts)
    total: Any = 1
    for size in sizes_of(context, tensor):
        total = total * size
    return total


def _case(context: ConversionContext, tensor: Tensor, value: ir.Value, numbers: tuple[Any, ...]) -> Any:
    """Return a number that tells which of its possible forms a tensor has."""
    number = context.metadata.runtime_int(value)
    context.cases[str(number.node.expr)] = (tensor, numbers)
    return number
