"""Results of lowerings: checked, and made the variables of the program."""

from __future__ import annotations

import dataclasses
from typing import Any

import onnx_ir as ir

from onnx_ts_legacy.shapes.tensor_forms import is_tensor
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import runtime_number
from onnx_ts_legacy.state.values import Call, ListRef, Poison, Tensor, View
from onnx_ts_legacy.state.variables import node_value
from onnxops_decomp import LoweringError
from onnxops_decomp.exporting import check_result, not_given

__all__ = ["check_results", "wrapped"]


def check_results(context: ConversionContext, result: Any, fake: Any, name: str) -> None:
    """Check that a lowering gives what torch gives.

    Raises:
        LoweringError: If it does not.
    """
    if is_tensor(fake):
        if not isinstance(result, ir.Value):
            raise LoweringError(f"{name} returns a tensor in torch, but its lowering returns {type(result).__name__}.")
        check_result(result, fake, context.metadata.symbols.dims(fake), name)
    elif isinstance(fake, list | tuple):
        if not isinstance(result, list | tuple) or len(result) < len(fake):
            raise LoweringError(f"{name} returns {len(fake)} results in torch, but its lowering returns fewer.")
        for part, expected in zip(result, fake, strict=False):
            if is_tensor(expected) and part is not None:
                check_results(context, part, expected, name)


def wrapped(context: ConversionContext, values: Any, fake: Any, view: tuple[int, Call] | None) -> Any:
    """Turn ONNX values into variables: views of an operand, or tensors of their own."""
    if is_tensor(fake):
        if view is None:
            return context.fresh(values, fake)
        position, call = view
        return _viewed_tensor(context, call.args[position], call, values, fake)
    if isinstance(fake, list | tuple):
        parts = []
        for index, (part, expected) in enumerate(zip(values, fake, strict=False)):
            inner = None if view is None else (view[0], dataclasses.replace(view[1], output=index))
            is_missing = part is None and is_tensor(expected)
            parts.append(Poison(not_given(index)) if is_missing else wrapped(context, part, expected, inner))
        return ListRef(context.heap, tuple(parts)) if isinstance(fake, list) else tuple(parts)
    if isinstance(values, ir.Value):
        return runtime_number(context, values)
    return values


def _viewed_tensor(context: ConversionContext, parent: Tensor, call: Call, value: ir.Value, fake: Any) -> Tensor:
    view = View(parent.node, dataclasses.replace(call, args=_without(call.args, call.position)), fake)
    view.cached = (node_value(context, parent.node), value, context.op.scope)
    return Tensor(context.heap, view)


# ---- calls that change a tensor


def _without(args: tuple[Any, ...], position: int) -> tuple[Any, ...]:
    return tuple(None if index == position else arg for index, arg in enumerate(args))
