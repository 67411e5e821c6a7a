"""Functions of Python's ``math`` on numbers known only at run time, by the tensor operators that compute them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from onnx_ts_legacy.calls.scalars import binary, unary
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import number_value
from onnx_ts_legacy.state.values import RuntimeFloat, Tensor
from onnx_ts_legacy.state.variables import number_in, number_tensor

__all__ = ["NUMBER_FUNCTIONS"]

aten = torch.ops.aten
Function = Callable[..., Any]


def _double(context: ConversionContext, number: Any) -> Tensor:
    value = number_value(context, number, ir.DataType.DOUBLE)
    return context.fresh(value, context.metadata.empty(torch.float64, []))


def _of_floats(overload: torch._ops.OpOverload) -> Function:
    """Return what computes an operator on numbers as floats of double precision."""

    def compute(context: ConversionContext, *numbers: Any) -> Any:
        operands = [_double(context, number) for number in numbers]
        return number_in(context, context.call(overload, operands, {}))

    return compute


def _log(context: ConversionContext, a: Any, base: Any = None) -> Any:
    logarithm = _of_floats(aten.log.default)
    result = logarithm(context, a)
    return result if base is None else binary(context, "div", result, logarithm(context, base))


def _gcd(context: ConversionContext, a: Any, b: Any) -> Any:
    operands = [number_tensor(context, number) for number in (a, b)]
    return number_in(context, context.call(aten.gcd.default, operands, {}))


def _divmod(context: ConversionContext, a: Any, b: Any) -> tuple[Any, Any]:
    if any(isinstance(number, RuntimeFloat | float) for number in (a, b)):
        rest = _of_floats(aten.remainder.Tensor)(context, a, b)
        return binary(context, "div", binary(context, "sub", a, rest), b), rest
    return binary(context, "floordiv", a, b), binary(context, "remainder", a, b)


def _modf(context: ConversionContext, a: Any) -> tuple[Any, Any]:
    whole = _of_floats(aten.trunc.default)(context, a)
    return binary(context, "sub", a, whole), whole


def _math_remainder(context: ConversionContext, a: Any, b: Any) -> Any:
    """``math.remainder``: the quotient is rounded, halves to even, where that of ``%`` is rounded down."""
    # Of two divisors nothing is rounded away, and it is known which of two numbers is nearer.
    rest = _of_floats(aten.fmod.Tensor)(context, a, binary(context, "mul", b, 2.0))
    quotient = unary(context, "round", binary(context, "div", rest, b))
    return binary(context, "sub", rest, binary(context, "mul", quotient, b))


NUMBER_FUNCTIONS: dict[str, Function] = {
    **{
        f"aten::{name}": _of_floats(getattr(aten, name).default)
        for name in (
            *("log10", "log1p", "expm1", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
            *("erf", "erfc", "lgamma", "isnan", "isinf", "isfinite", "atan2"),
        )
    },
    "aten::fabs": _of_floats(aten.abs.default),
    "aten::degrees": _of_floats(aten.rad2deg.default),
    "aten::radians": _of_floats(aten.deg2rad.default),
    "aten::fmod": _of_floats(aten.fmod.Tensor),
    "aten::copysign": _of_floats(aten.copysign.Tensor),
    "aten::ldexp": _of_floats(aten.ldexp.Tensor),
    "aten::log": _log,
    "aten::gcd": _gcd,
    "aten::divmod": _divmod,
    "aten::modf": _modf,
    "aten::mathremainder": _math_remainder,
}
