"""Functions of Python's ``math`` on numbers that only the runtime knows, by the tensor operators that compute them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

if TYPE_CHECKING:
    from onnx_ts_legacy.conversion import Interpreter
    from onnx_ts_legacy.state.values import Tensor

__all__ = ["NUMBER_FUNCTIONS"]

aten = torch.ops.aten
Function = Callable[..., Any]


def _double(interpreter: Interpreter, number: Any) -> Tensor:
    value = interpreter.scalars.to_value(number, ir.DataType.DOUBLE)
    return interpreter.fresh(value, interpreter.metadata.empty(torch.float64, []))


def _of_floats(overload: torch._ops.OpOverload) -> Function:
    """Return what computes an operator on numbers as floats of double precision."""

    def compute(interpreter: Interpreter, *numbers: Any) -> Any:
        operands = [_double(interpreter, number) for number in numbers]
        return interpreter.scalars.of_tensor(interpreter.call(overload, operands, {}))

    return compute


def _log(interpreter: Interpreter, a: Any, base: Any = None) -> Any:
    logarithm = _of_floats(aten.log.default)
    result = logarithm(interpreter, a)
    return result if base is None else interpreter.scalars.binary("div", result, logarithm(interpreter, base))


def _gcd(interpreter: Interpreter, a: Any, b: Any) -> Any:
    operands = [interpreter.number_tensor(number) for number in (a, b)]
    return interpreter.scalars.of_tensor(interpreter.call(aten.gcd.default, operands, {}))


def _divmod(interpreter: Interpreter, a: Any, b: Any) -> tuple[Any, Any]:
    return interpreter.scalars.binary("floordiv", a, b), interpreter.scalars.binary("remainder", a, b)


def _modf(interpreter: Interpreter, a: Any) -> tuple[Any, Any]:
    whole = _of_floats(aten.trunc.default)(interpreter, a)
    return interpreter.scalars.binary("sub", a, whole), whole


def _math_remainder(interpreter: Interpreter, a: Any, b: Any) -> Any:
    """``math.remainder``: the quotient is rounded, halves to even, where that of ``%`` is rounded down."""
    binary = interpreter.scalars.binary
    quotient = interpreter.scalars.unary("round", binary("div", a, b))
    return binary("sub", a, binary("mul", quotient, b))


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
