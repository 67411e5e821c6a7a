"""Operators that are written as they are, because they cannot be converted or because the user wants all of them so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.enumerations import OperatorExportTypes
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.graph.dtypes import scalar_type_code
from onnx_ts_legacy.shapes.tensor_forms import is_tensor
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.values import ListRef, Tensor
from onnx_ts_legacy.symbolics.graph_context import GraphContext
from onnx_ts_legacy.symbolics.values import SymbolicValue

__all__ = ["write_as_it_is", "write_aten"]


def write_as_it_is(context: ConversionContext, node: Any, args: Sequence[Any], fakes: Any) -> Any:
    """Write a call as a node that names the operator, and return its results; None if the mode or call forbids it.

    Args:
        context: The conversion.
        node: The TorchScript node.
        args: Its inputs.
        fakes: Forms of its results.
    """
    if fakes is None or context.fallback is OperatorExportTypes.ONNX:
        return None
    namespace, _, name = str(node.kind()).partition("::")
    many = isinstance(fakes, list | tuple)
    # A node of another domain has no complex results: ONNX has no such tensors that operators take.
    if any(not is_tensor(fake) or fake.is_complex() for fake in (fakes if many else [fakes])):
        return None
    count = len(fakes) if many else 1
    g = GraphContext(context, node)
    try:
        inputs = [SymbolicValue(item) for arg in args for item in _unpacked(arg)]
        if context.fallback is OperatorExportTypes.ONNX_FALLTHROUGH:
            result = g.op(f"{_domain(namespace)}::{name}", *inputs, outputs=count)
        elif namespace == "aten":
            overload = private.parse_schema(node.schema()).overload_name
            result = g.aten_op(name, *inputs, overload_name=overload, outputs=count)
        else:
            return None
    except ScriptValueError:
        return None
    return _values(result, count, many)


def write_aten(
    context: ConversionContext,
    overload: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    fake: Any,
) -> Any:
    """Write a call as a node of ``org.pytorch.aten::ATen`` and return its results, for ``ONNX_ATEN``.

    Args:
        context: The conversion.
        overload: The operator, one of ATen.
        args: Its arguments; every one is an input of the node, tensors of a list one by one.
        kwargs: Its keyword arguments; in the order of the schema, they are inputs too.
        fake: Forms of its results.
    """
    named = [kwargs.get(argument.name) for argument in overload._schema.arguments if argument.kwarg_only]
    given = [ListRef(context.heap, tuple(arg)) if isinstance(arg, list) else arg for arg in (*args, *named)]
    inputs = [SymbolicValue(item) for arg in given for item in _unpacked(arg)]
    many = isinstance(fake, list | tuple)
    count = len(fake) if many else 1
    name = overload._schema.name.removeprefix("aten::")
    g = GraphContext(context, context.node)
    result = g.aten_op(name, *inputs, overload_name=overload._schema.overload_name, outputs=count)
    return _values(result, count, many)


def _values(result: Any, count: int, many: bool) -> Any:
    values = [part.variable for part in (result if count > 1 else (result,))]
    return values if many else values[0]


def _domain(namespace: str) -> str:
    # GraphContext.op takes "aten::" for the ATen node; here the plain namespace is meant.
    return "org.pytorch.aten" if namespace == "aten" else namespace


def _unpacked(arg: Any) -> Sequence[Any]:
    if isinstance(arg, ListRef) and any(isinstance(item, Tensor) for item in arg.items):
        return arg.items
    if isinstance(arg, torch.dtype):
        return (scalar_type_code(arg),)
    return (None,) if isinstance(arg, str | torch.device | torch.layout | torch.memory_format) else (arg,)
