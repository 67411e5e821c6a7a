"""Quantized programs: every quantized call is its float form between DequantizeLinear and QuantizeLinear.

Runtimes fuse such groups into their quantized kernels. Sources: "Quantization" in the PyTorch documentation (affine
quantization per tensor and per channel), ONNX QuantizeLinear and DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from onnx_ts_legacy.calls.rows import Row, of_operands, rows
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.graph.dtypes import dtype_of_code, scalar_type_code
from onnx_ts_legacy.quantization.modules import convert_module_call
from onnx_ts_legacy.quantization.recurrent import RECURRENT, convert_recurrent
from onnx_ts_legacy.quantization.values import Quantized, constant_array, dequantize, in_floats, number, quantize
from onnx_ts_legacy.state.attributes import tensor_constant
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.values import ListRef, Tensor, is_runtime
from onnxops_decomp import UnsupportedOperatorError

__all__ = ["QUANTIZED_ROWS"]

aten = torch.ops.aten
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


def _takes_quantized(context: ConversionContext, node: Any, args: Sequence[Any]) -> bool:
    # Each node is asked.
    for arg in args:
        kind = type(arg)
        if kind is Quantized or (kind is ListRef and _holds_quantized(arg)):
            return True
    return False


def _holds_quantized(arg: ListRef) -> bool:
    return isinstance(arg.state, tuple) and any(isinstance(item, Quantized) for item in arg.state)


def _quantize_per_tensor(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    scale, zero_point = (number(_read_number(context, node, index)) for index in (1, 2))
    return quantize(context, args[0], dtype_of_code(args[3]), scale, int(zero_point))


def _quantize_per_channel(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    scale, zero_point = (constant_array(context, arg) for arg in args[1:3])
    return quantize(context, args[0], dtype_of_code(args[4]), scale, zero_point, args[3])


def _convert_module(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return convert_module_call(context, node.kind(), args)


def _ask_floats(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return context.convert_call(node, node.kind(), [dequantize(context, args[0]), *args[1:]])


def _with_fixed_parameters(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    result = _ask_floats(context, node, args)
    step, zero_points = _FIXED_PARAMETERS[node.kind()]
    return quantize(context, result, args[0].dtype, step, zero_points[args[0].dtype])


def _with_same_parameters(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    like = next(
        q for arg in args for q in (arg.items if isinstance(arg, ListRef) else [arg]) if isinstance(q, Quantized)
    )
    floats = [in_floats(context, arg) for arg in args]
    result = context.convert_call(node, node.kind().removesuffix("_"), floats)
    return _map(result, lambda t: quantize(context, t, like.dtype, like.scale, like.zero_point, like.axis))


def _refuse(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    raise UnsupportedOperatorError("it has no form for quantized tensors", operator=node.kind())


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
# ---- fake quantization


def _observed_fake_quantize(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
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

QUANTIZED_ROWS: tuple[Row, ...] = (
    *rows(
        {
            "aten::quantize_per_tensor": _quantize_per_tensor,
            "aten::quantize_per_channel": _quantize_per_channel,
            "aten::fused_moving_avg_obs_fake_quant": _observed_fake_quantize,
        }
    ),
    Row(RECURRENT, convert_recurrent),
    Row("quantized::", _convert_module),
    *rows({kind: of_operands(query) for kind, query in _QUERIES.items()}, _takes_quantized),
    Row(_FORM_QUESTIONS, _ask_floats, _takes_quantized),
    Row(_FIXED_PARAMETERS, _with_fixed_parameters, _takes_quantized),
    Row(_SAME_PARAMETERS, _with_same_parameters, _takes_quantized),
    Row("aten::quantized_", _refuse),
    Row("aten::", _refuse, _takes_quantized),
)
