"""Helpers of custom symbolics for quantized tensors; they are found in :mod:`onnx_ts_legacy.symbolic_helper`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.quantization.values import Quantized, dequantize, quantize
from onnx_ts_legacy.state.values import Tensor
from onnx_ts_legacy.symbolics.arguments import _constant_of
from onnx_ts_legacy.symbolics.graph_context import GraphContext
from onnx_ts_legacy.symbolics.values import SymbolicValue

F = TypeVar("F", bound=Callable[..., Any])


def quantized_args(
    *arg_q_descriptors: bool,
    scale: float | None = None,
    zero_point: int | None = None,
    quantize_output: bool = True,
) -> Callable[[F], F]:
    """Return a decorator that lets a symbolic written for floats take quantized inputs.

    Args:
        arg_q_descriptors: For each input after ``g``, whether it may be quantized.
        scale: Scale of the result; that of the first quantized input if left out.
        zero_point: Zero point of the result, likewise.
        quantize_output: Whether the result is quantized.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(g: GraphContext, *args: Any, **kwargs: Any) -> Any:
            flags = (*arg_q_descriptors, *(False for _ in args))
            chosen = [flag and _is_quantized(arg) for flag, arg in zip(flags, args, strict=False)]
            like = next((arg.variable for arg, taken in zip(args, chosen, strict=True) if taken), None)
            if like is None:
                return function(g, *args, **kwargs)
            floats = [_dequantized(g, arg) if taken else arg for arg, taken in zip(args, chosen, strict=True)]
            result = function(g, *floats, **kwargs)
            if not quantize_output:
                return result
            return _requantized(
                g,
                result,
                like.dtype,
                like.scale if scale is None else scale,
                like.zero_point if zero_point is None else zero_point,
                like.axis if scale is None else None,
            )

        return wrapper  # type: ignore[return-value]

    return decorate


def _is_quantized(value: Any) -> bool:
    return isinstance(value, SymbolicValue) and isinstance(value.variable, Quantized)


def _dequantized(g: GraphContext, value: Any) -> SymbolicValue:
    return SymbolicValue(dequantize(g.context, value.variable))


def _requantized(g: GraphContext, value: Any, dtype: torch.dtype, scale: Any, zero_point: Any, axis: Any) -> Any:
    variable = value.variable
    if not isinstance(variable, Tensor):
        variable = g.context.fresh(variable, g.context.described(variable, "a symbolic"))
    return SymbolicValue(quantize(g.context, variable, dtype, scale, zero_point, axis))


def dequantize_helper(g: GraphContext, qtensor: Any, qdtype: Any = None) -> tuple[Any, Any, Any, Any]:
    """Return a quantized input as floats, and its scale, zero point and axis."""
    quantized = qtensor.variable
    return _dequantized(g, qtensor), quantized.scale, quantized.zero_point, quantized.axis


def quantize_helper(g: GraphContext, tensor: Any, scale: Any, zero_point: Any, axis: Any = None) -> Any:
    """Return a float value quantized to ``quint8``."""
    return _requantized(g, tensor, torch.quint8, _number_of(scale), _number_of(zero_point), axis)


def _number_of(value: Any) -> Any:
    constant = _constant_of(value)
    return constant.tolist() if isinstance(constant, torch.Tensor) else constant


def _unpack_quantized_tensor(tuple_value: Any) -> tuple[SymbolicValue, ...]:
    """Return the integers of a quantized input, its scale and zero point, and its axis if there is one."""
    quantized = tuple_value.variable
    if not isinstance(quantized, Quantized):
        raise ScriptValueError(
            "A symbolic for a quantized tensor got a tensor that is not quantized; quantize the input of the call."
        )
    zero_point = torch.as_tensor(quantized.zero_point).to(_INTEGERS[quantized.dtype])
    parts = [quantized.value, torch.as_tensor(quantized.scale, dtype=torch.float32), zero_point]
    return tuple(SymbolicValue(part) for part in parts + ([] if quantized.axis is None else [quantized.axis]))


_INTEGERS = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}


def requantize_bias_helper(g: GraphContext, bias: Any, input_scale: Any, weight_scale: Any, axis: Any = None) -> Any:
    """Return a float bias in INT32, in steps of the product of both scales, as quantized kernels add it."""
    scale = np.float32(_number_of(input_scale)) * np.asarray(_number_of(weight_scale), np.float32)
    steps = g.op("Div", bias, g.op("Constant", value_t=torch.as_tensor(scale)))
    rounded = SymbolicValue(g.builder.newest.Round(g.value(steps)))
    integers = g.op("Cast", rounded, to_i=6).variable
    variable = bias.variable
    form = variable.fake if isinstance(variable, Tensor) else g.context.described(variable, "a bias")
    place = _number_of(axis)
    return SymbolicValue(Quantized(integers, form, torch.qint32, scale, np.zeros(scale.shape, np.int32), place))
