"""Quantized programs: every quantized call is its float form between DequantizeLinear and QuantizeLinear.

Runtimes fuse such groups into their quantized kernels. Sources: "Quantization" in the PyTorch documentation (affine
quantization per tensor and per channel), ONNX QuantizeLinear and DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from onnx_ts_legacy.calls.prims import PRIM_HANDLERS
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.graph.dtypes import dtype_of_code, scalar_type_code
from onnx_ts_legacy.quantization.modules import convert_module_call
from onnx_ts_legacy.quantization.recurrent import convert_recurrent, is_recurrent
from onnx_ts_legacy.quantization.values import Quantized, as_float, constant_array, dequantize, number, quantize
from onnx_ts_legacy.state.attributes import tensor_constant
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.values import ListRef, Tensor, is_runtime
from onnxops_decomp import UnsupportedOperatorError

__all__ = ["convert_quantized", "is_quantized_call", "observed_fake_quantize"]

aten = torch.ops.aten
_MAKERS = ("aten::quantize_per_tensor", "aten::quantize_per_channel")
# They give values of their operand only, so that the result has its scale and zero point.
_SAME_PARAMETERS = frozenset(
    (
        *("aten::relu", "aten::relu_", "aten::relu6", "aten::clamp", "aten::hardtanh", "aten::mean", "aten::dropout"),
        *("aten::max_pool1d", "aten::max_pool2d", "aten::max_pool3d", "aten::avg_pool2d", "aten::adaptive_avg_pool2d"),
        *("aten::flatten", "aten::view", "aten::reshape", "aten::permute", "aten::transpose", "aten::t"),
        *("aten::squeeze", "aten::unsqueeze", "aten::slice", "aten::select", "aten::narrow", "aten::expand"),
        *("aten::contiguous", "aten::clone", "aten::detach", "aten::chunk", "aten::split", "aten::cat", "aten::stack"),
        *("aten::upsample_nearest2d", "aten::upsample_bilinear2d", "aten::pixel_shuffle"),
    )
)

# Their range is known, so that torch gives the result a scale and zero point of their own.
_UNIT = {torch.quint8: 0, torch.qint8: -128}
_FIXED_PARAMETERS: dict[str, tuple[float, dict[torch.dtype, int]]] = {
    "aten::sigmoid": (1.0 / 256.0, _UNIT),
    "aten::hardsigmoid": (1.0 / 256.0, _UNIT),
    "aten::tanh": (2.0 / 256.0, {torch.quint8: 128, torch.qint8: 0}),
}


def is_quantized_call(kind: str, args: Sequence[Any]) -> bool:
    """Tell whether a call makes or takes quantized tensors."""
    if kind.startswith(("quantized::", "aten::quantized_")) or kind in _MAKERS:
        return True
    return any(_holds_quantized(arg) for arg in args) and (kind.startswith("aten::") or kind in _QUESTIONS)


def _holds_quantized(arg: Any) -> bool:
    if isinstance(arg, ListRef):
        return isinstance(arg.state, tuple) and any(isinstance(item, Quantized) for item in arg.state)
    return isinstance(arg, Quantized)


def convert_quantized(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    """Convert a call of :func:`is_quantized_call`.

    Raises:
        UnsupportedOperatorError: If there is no float form of it.
    """
    kind = str(node.kind())
    if kind == "aten::quantize_per_tensor":
        scale, zero_point = (number(_read_number(context, node, index)) for index in (1, 2))
        return quantize(context, args[0], dtype_of_code(args[3]), scale, int(zero_point))
    if kind == "aten::quantize_per_channel":
        scale, zero_point = (constant_array(context, arg) for arg in args[1:3])
        return quantize(context, args[0], dtype_of_code(args[4]), scale, zero_point, args[3])
    if is_recurrent(kind):
        return convert_recurrent(context, kind, args)
    if kind in _FORM_QUESTIONS:
        return PRIM_HANDLERS[kind](context, node, [dequantize(context, args[0]), *args[1:]])
    query = _QUERIES.get(kind)
    if query is not None:
        return query(context, args[0])
    if kind.startswith("quantized::"):
        return convert_module_call(context, kind, args)
    fixed = _FIXED_PARAMETERS.get(kind)
    if fixed is not None:
        result = context.convert_call(node, kind, [dequantize(context, args[0]), *args[1:]])
        step, zero_points = fixed
        return quantize(context, result, args[0].dtype, step, zero_points[args[0].dtype])
    if kind not in _SAME_PARAMETERS:
        raise UnsupportedOperatorError("it has no form for quantized tensors", operator=kind)
    like = next(
        q for arg in args for q in (arg.items if isinstance(arg, ListRef) else [arg]) if isinstance(q, Quantized)
    )
    floats = [as_float(context, arg) for arg in args]
    result = context.convert_call(node, kind.removesuffix("_") if kind.endswith("_") else kind, floats)
    return _map(result, lambda t: quantize(context, t, like.dtype, like.scale, like.zero_point, like.axis))


_NUMBERS_OF_TENSORS = ("aten::Float", "aten::Int", "aten::FloatImplicit", "aten::IntImplicit", "aten::item")


def _read_number(context: ConversionContext, node: Any, index: int) -> Any:
    """Return an argument; what a scripted module reads from a tensor that does not change is known."""
    variable = node.inputsAt(index)
    value = context.env[variable.unique()]
    if is_runtime(value) and variable.node().kind() in _NUMBERS_OF_TENSORS:
        value = context.env[variable.node().inputsAt(0).unique()]
    return constant_array(context, value).item() if isinstance(value, Tensor) else value


def _map(result: Any, function: Callable[[Tensor], Any]) -> Any:
    if isinstance(result, tuple):
        return tuple(_map(item, function) for item in result)
    if isinstance(result, ListRef):
        mapped = ListRef.__new__(ListRef)
        mapped.frame, mapped.state = result.frame, tuple(_map(item, function) for item in result.items)
        return mapped
    return function(result) if isinstance(result, Tensor) else result


# What a program asks of any tensor; the sizes of a quantized one are those of its floats.
_FORM_QUESTIONS = frozenset(
    ("aten::size", "aten::sym_size", "aten::dim", "aten::ndimension", "aten::numel", "prim::shape", "prim::ndim")
)
_QUERIES: dict[str, Callable[[ConversionContext, Any], Any]] = {
    "aten::dequantize": dequantize,
    "aten::q_scale": lambda context, q: q.scale,
    "aten::q_zero_point": lambda context, q: q.zero_point,
    "aten::int_repr": lambda context, q: context.fresh(
        q.value, context.metadata.empty(torch.uint8 if q.dtype == torch.quint8 else torch.int8, q.form.shape)
    ),
    "aten::is_floating_point": lambda context, q: False,
    "aten::is_complex": lambda context, q: False,
    "prim::is_quantized": lambda context, q: True,
    "prim::dtype": lambda context, q: scalar_type_code(q.dtype),
}
_QUESTIONS = _FORM_QUESTIONS | _QUERIES.keys()


# ---- fake quantization


def observed_fake_quantize(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    """Convert ``fused_moving_avg_obs_fake_quant``: the fake quantization alone, if the observer is off.

    Raises:
        ScriptValueError: If the observer is on, which changes the module's buffers.
    """
    x, observing, quantizing, _, _, scale, zero_point, _, low, high, axis, per_channel, *_ = args
    if constant_array(context, observing).any():
        raise ScriptValueError(
            "A fake quantization observes its input; call model.apply(torch.ao.quantization.disable_observer) first."
        )
    if not constant_array(context, quantizing).any():
        return x
    scales, zero_points = constant_array(context, scale), constant_array(context, zero_point)
    if per_channel:
        operands = [x, tensor_constant(context, torch.from_numpy(scales.copy()))]
        operands.append(tensor_constant(context, torch.from_numpy(zero_points.astype(np.int32))))
        return context.call(aten.fake_quantize_per_channel_affine.default, [*operands, axis, low, high], {})
    arguments = [x, float(scales.item()), int(zero_points.item()), low, high]
    return context.call(aten.fake_quantize_per_tensor_affine.default, arguments, {})
