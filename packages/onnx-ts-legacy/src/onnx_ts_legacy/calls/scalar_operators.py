"""Operators on numbers and truth values, at least one of which is known only at run time."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnx_ts_legacy.calls.math import NUMBER_FUNCTIONS
from onnx_ts_legacy.calls.rows import Handler, of_operands, rows
from onnx_ts_legacy.calls.scalars import ARITHMETIC, FUNCTIONS, INTEGER, as_float, as_int, binary, unary
from onnx_ts_legacy.calls.tensor_truths import TENSOR_TRUTHS, truth_of_tensor
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.graph.sources import asks_for_fused_layer
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import negated, truth_of
from onnx_ts_legacy.state.values import ListRef, RuntimeFloat, Tensor, is_runtime
from onnx_ts_legacy.state.variables import number_in

__all__ = ["SCALAR_ROWS"]


def _unary(name: str) -> Callable[[ConversionContext, Any], Any]:
    return lambda context, a: unary(context, name, a)


def _binary(name: str) -> Callable[[ConversionContext, Any, Any], Any]:
    return lambda context, a, b: binary(context, name, a, b)


def _item(context: ConversionContext, a: Any) -> Any:
    return number_in(context, a) if isinstance(a, Tensor) else a


def _range_length(context: ConversionContext, start: Any, end: Any, step: Any) -> Any:
    """Return ``len(range(start, end, step))``."""
    if not isinstance(step, int):
        raise ScriptValueError("The step of a range is known at run time only.")
    distance = end - start + step - (1 if step > 0 else -1)
    return torch.sym_max(0, distance // step)


def _bool(context: ConversionContext, a: Any) -> Any:
    """Return ``bool(a)`` of a number or a tensor of one element."""
    return truth_of_tensor(context, a) if isinstance(a, Tensor) else truth_of(context, a)


_TAKE_TENSORS = frozenset(
    f"aten::{name}"
    for name in ("Int", "Float", "Bool", "IntImplicit", "FloatImplicit", "ScalarImplicit", "item", "Scalar")
)


def _is_of_tensor(context: ConversionContext, node: Any, args: Sequence[Any]) -> bool:
    return isinstance(args[0], Tensor)


def _is_of_runtime_number(context: ConversionContext, node: Any, args: Sequence[Any]) -> bool:
    if any(map(is_runtime, args)) and not any(isinstance(arg, Tensor | ListRef) for arg in args):
        return True
    return node.kind() in _TAKE_TENSORS and isinstance(args[0], Tensor)


def _typed(function: Callable[..., Any]) -> Handler:
    """Return a number with the type of the operator, some of which give floats for integers and some do not."""

    def convert(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
        number = function(context, *args)
        if not isinstance(number, torch.SymInt | RuntimeFloat):
            return number
        types = {"FloatType": as_float, "IntType": as_int}
        return types.get(node.output().type().kind(), _item)(context, number)

    return convert


_OPERATORS: dict[str, Callable[..., Any]] = {
    "prim::min": _binary("min"),
    "prim::max": _binary("max"),
    "prim::abs": _unary("abs"),
    "aten::Int": lambda context, a: as_int(context, a),
    "aten::IntImplicit": lambda context, a: as_int(context, a),
    "aten::Float": lambda context, a: as_float(context, a),
    "aten::FloatImplicit": lambda context, a: as_float(context, a),
    "aten::ScalarImplicit": _item,
    "aten::item": _item,
    "aten::Scalar": _item,
    "aten::Bool": _bool,
    "aten::__range_length": _range_length,
    "aten::__derive_index": lambda context, index, start, step: start + index * step,
    "aten::math_trunc": lambda context, a: math.trunc(a) if isinstance(a, float) else as_int(context, a),
    "aten::__not__": lambda context, a: negated(context, a),
    "aten::round": lambda context, a, *_: unary(context, "round", a),
    **{
        f"aten::{name}": _binary(name)
        for name in (*INTEGER, *ARITHMETIC, "__and__", "__or__", "__xor__")
        if name not in ("min", "max")
    },
    **{f"aten::{name}": _unary(name) for name in (*FUNCTIONS, "floor", "ceil", "trunc")},
    **NUMBER_FUNCTIONS,
}
# Members of enumerations are constants of a program, which torch's own operators take from scripts only.
_OF_MEMBERS: dict[str, Callable[..., Any]] = {
    "aten::eq": lambda context, a, b: a == b,
    "aten::ne": lambda context, a, b: a != b,
    "prim::EnumName": lambda context, member: member.name,
    "prim::EnumValue": lambda context, member: member.value,
}


def _is_of_members(context: ConversionContext, node: Any, args: Sequence[Any]) -> bool:
    return all(isinstance(arg, enum.Enum) for arg in args)


def _is_hint_of_layer(context: ConversionContext, node: Any, args: Sequence[Any]) -> bool:
    return isinstance(args[0], Tensor) and asks_for_fused_layer(node)


SCALAR_ROWS = (
    # Whether a mask is the causal one is a hint to the layers of a transformer, which apply the mask without it, too.
    *rows({"aten::Bool": of_operands(lambda context, a: False)}, _is_hint_of_layer),
    *rows({kind: _typed(function) for kind, function in _OPERATORS.items()}, _is_of_runtime_number),
    *rows({kind: of_operands(function) for kind, function in TENSOR_TRUTHS.items()}, _is_of_tensor),
    *rows({kind: of_operands(function) for kind, function in _OF_MEMBERS.items()}, _is_of_members),
)
