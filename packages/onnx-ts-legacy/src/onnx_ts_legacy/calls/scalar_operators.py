"""Operators on numbers and truth values, of which only the runtime knows at least one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from onnx_ts_legacy.calls.math import NUMBER_FUNCTIONS
from onnx_ts_legacy.calls.scalars import ARITHMETIC, FUNCTIONS, INTEGER, as_float, as_int, binary, unary
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import negated, truth_of
from onnx_ts_legacy.state.values import Tensor
from onnx_ts_legacy.state.variables import number_in

__all__ = ["SCALAR_OPERATORS"]


def _unary(name: str) -> Callable[[ConversionContext, Any], Any]:
    return lambda context, a: unary(context, name, a)


def _binary(name: str) -> Callable[[ConversionContext, Any, Any], Any]:
    return lambda context, a, b: binary(context, name, a, b)


def _item(context: ConversionContext, a: Any) -> Any:
    return number_in(context, a) if isinstance(a, Tensor) else a


# Operators on numbers by the name of their packet; they are used if an operand is known at run time only.
SCALAR_OPERATORS: dict[str, Callable[..., Any]] = {
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


def _range_length(context: ConversionContext, start: Any, end: Any, step: Any) -> Any:
    """Return ``len(range(start, end, step))``."""
    if not isinstance(step, int):
        raise ScriptValueError("The step of a range is known at run time only.")
    distance = end - start + step - (1 if step > 0 else -1)
    return torch.sym_max(0, distance // step)


def _bool(context: ConversionContext, a: Any) -> Any:
    """Return ``bool(a)`` of a number or a tensor of one element."""
    return truth_of(context, number_in(context, a) if isinstance(a, Tensor) else a)


SCALAR_OPERATORS["aten::Bool"] = _bool
SCALAR_OPERATORS["aten::__range_length"] = _range_length
SCALAR_OPERATORS["aten::__derive_index"] = lambda context, index, start, step: start + index * step
SCALAR_OPERATORS["aten::math_trunc"] = lambda context, a: math.trunc(a) if isinstance(a, float) else as_int(context, a)
