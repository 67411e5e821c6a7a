"""Quantized programs: every quantized call is its float form between DequantizeLinear and QuantizeLinear.

Runtimes fuse such groups into their quantized kernels. Sources: "Quantization" in the PyTorch documentation (affine
quantization per tensor and per channel), ONNX QuantizeLinear and DequantizeLinear.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import torch

from onnx_ts_legacy.dtypes import dtype_of_code
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.values import ListRef, ObjectRef, Tensor
from onnxops_decomp.errors import UnsupportedOperatorError

if TYPE_CHECKING:
    from onnx_ts_legacy.conversion import Interpreter

__all__ = ["QUANTIZED_DTYPES", "Quantized", "convert_quantized", "is_quantized_call", "observed_fake_quantize"]

aten = torch.ops.aten
_STORAGE = {torch.qint8: ir.DataType.INT8, torch.quint8: ir.DataType.UINT8, torch.qint32: ir.DataType.INT32}
QUANTIZED_DTYPES = tuple(_STORAGE)
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


@dataclasses.dataclass(frozen=True, slots=True)
class Quantized:
    """A quantized tensor.

    Attributes:
        value: Its integers.
        form: Fake tensor with its shape, of dtype float32.
        dtype: ``torch.qint8``, ``quint8`` or ``qint32``.
        scale: Scale: a number, or a vector for quantization per channel.
        zero_point: Zero point of the same form.
        axis: Axis of the channels, or None.
    """

    value: ir.Value
    form: Any
    dtype: torch.dtype
    scale: Any
    zero_point: Any
    axis: int | None = None


def is_quantized_call(kind: str, args: Sequence[Any]) -> bool:
    """Tell whether a call makes or takes quantized tensors."""
    if kind.startswith("quantized::") or kind in _MAKERS:
        return True
    return any(_holds_quantized(arg) for arg in args) and kind.startswith("aten::")


def _holds_quantized(arg: Any) -> bool:
    if isinstance(arg, ListRef):
        return isinstance(arg.state, tuple) and any(isinstance(item, Quantized) for item in arg.state)
    return isinstance(arg, Quantized)


def convert_quantized(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    """Convert a call of :func:`is_quantized_call`.

    Raises:
        UnsupportedOperatorError: If there is no float form of it.
    """
    kind = str(node.kind())
    if kind == "aten::quantize_per_tensor":
        return quantize(interpreter, args[0], dtype_of_code(args[3]), _number(args[1]), int(_number(args[2])))
    if kind == "aten::quantize_per_channel":
        scale, zero_point = (_array(interpreter, arg) for arg in args[1:3])
        return quantize(interpreter, args[0], dtype_of_code(args[4]), scale, zero_point, args[3])
    query = _QUERIES.get(kind)
    if query is not None:
        return query(interpreter, args[0])
    if kind.startswith("quantized::"):
        return _module_call(interpreter, kind, args)
    if kind not in _SAME_PARAMETERS:
        raise UnsupportedOperatorError("it has no form for quantized tensors", operator=kind)
    like = next(
        q for arg in args for q in (arg.items if isinstance(arg, ListRef) else [arg]) if isinstance(q, Quantized)
    )
    floats = [_float(interpreter, arg) for arg in args]
    result = interpreter.convert_call(node, kind.removesuffix("_") if kind.endswith("_") else kind, floats)
    return _map(result, lambda t: quantize(interpreter, t, like.dtype, like.scale, like.zero_point, like.axis))


def _map(result: Any, function: Callable[[Tensor], Any]) -> Any:
    if isinstance(result, tuple):
        return tuple(_map(item, function) for item in result)
    if isinstance(result, ListRef):
        mapped = ListRef.__new__(ListRef)
        mapped.frame, mapped.state = result.frame, tuple(_map(item, function) for item in result.items)
        return mapped
    return function(result) if isinstance(result, Tensor) else result


def _number(value: Any) -> Any:
    if isinstance(value, int | float):
        return value
    raise ScriptValueError("The scale and zero point of a quantized tensor have to be constants.")


def _array(interpreter: Interpreter, tensor: Tensor) -> np.ndarray[Any, Any]:
    value = interpreter.value(tensor)
    source = value.const_value
    if source is None:
        raise ScriptValueError("The scale and zero point of a quantized tensor have to be constants.")
    return np.asarray(source.numpy())


def _parameters(interpreter: Interpreter, scale: Any, zero_point: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    op = interpreter.op
    return op.constant(np.asarray(scale, np.float32), ir.DataType.FLOAT), op.constant(
        np.asarray(zero_point), _STORAGE[dtype]
    )


def quantize(
    interpreter: Interpreter, tensor: Tensor, dtype: torch.dtype, scale: Any, zero_point: Any, axis: int | None = None
) -> Quantized:
    parameters = _parameters(interpreter, scale, zero_point, dtype)
    attributes = {} if axis is None else {"axis": axis}
    value = interpreter.op.newest.QuantizeLinear(interpreter.value(tensor), *parameters, **attributes)
    value.shape = ir.Shape(interpreter.metadata.symbols.dims(tensor.fake))
    return Quantized(value, tensor.fake, dtype, scale, zero_point, axis)


def dequantize(interpreter: Interpreter, quantized: Quantized) -> Tensor:
    parameters = _parameters(interpreter, quantized.scale, quantized.zero_point, quantized.dtype)
    attributes = {} if quantized.axis is None else {"axis": quantized.axis}
    value = interpreter.op.newest.DequantizeLinear(quantized.value, *parameters, **attributes)
    value.shape = ir.Shape(interpreter.metadata.symbols.dims(quantized.form))
    return interpreter.fresh(value, quantized.form)


def _float(interpreter: Interpreter, arg: Any) -> Any:
    if isinstance(arg, Quantized):
        return dequantize(interpreter, arg)
    if isinstance(arg, ListRef):
        return ListRef(interpreter.heap, tuple(_float(interpreter, item) for item in arg.items))
    return arg


_QUERIES: dict[str, Callable[[Interpreter, Any], Any]] = {
    "aten::dequantize": dequantize,
    "aten::q_scale": lambda interpreter, q: q.scale,
    "aten::q_zero_point": lambda interpreter, q: q.zero_point,
    "aten::int_repr": lambda interpreter, q: interpreter.fresh(
        q.value, interpreter.metadata.empty(torch.uint8 if q.dtype == torch.quint8 else torch.int8, q.form.shape)
    ),
}


# ---- calls of quantized modules


def _module_call(interpreter: Interpreter, kind: str, args: Sequence[Any]) -> Any:
    name = kind.removeprefix("quantized::")
    base = name.removesuffix("_relu")
    if base in ("linear", "conv1d", "conv2d", "conv3d"):
        result = _weighted(interpreter, base, args[0], args[1])
        scale, zero_point = args[-2:]
    elif base in _FUNCTIONS:
        result, (scale, zero_point) = _FUNCTIONS[base](interpreter, args), args[-2:]
    elif base in _WITH_SCALAR:
        return _scalar_call(interpreter, base, args)
    else:
        raise UnsupportedOperatorError("it has no form between QuantizeLinear and DequantizeLinear", operator=kind)
    if name.endswith("_relu"):
        result = interpreter.call(aten.relu.default, [result], {})
    first = args[0].items[0] if isinstance(args[0], ListRef) else args[0]
    return quantize(interpreter, result, first.dtype, _number(scale), int(_number(zero_point)))


def _weighted(interpreter: Interpreter, name: str, x: Quantized, packed: Any) -> Tensor:
    """A linear map or convolution by packed weights."""
    source = packed.source if isinstance(packed, ObjectRef) else packed
    path = packed.path.removesuffix("._packed_params") if isinstance(packed, ObjectRef) and packed.path else name
    weight, bias = source.unpack()
    operands: list[Any] = [
        dequantize(interpreter, x),
        dequantize(interpreter, _stored_weight(interpreter, path, weight)),
    ]
    operands.append(None if bias is None else interpreter.attributes.tensor(f"{path}.bias", bias))
    if name == "linear":
        return interpreter.call(aten.linear.default, operands, {})  # type: ignore[no-any-return]
    lists = [list(getattr(source, part)()) for part in ("stride", "padding", "dilation")]
    function = getattr(aten, name).default
    return interpreter.call(function, [*operands, *lists, source.groups()], {})  # type: ignore[no-any-return]


def _stored_weight(interpreter: Interpreter, path: str, weight: torch.Tensor) -> Quantized:
    stored = interpreter.attributes.tensor(f"{path}.weight_quantized", weight.int_repr())
    form = interpreter.metadata.empty(torch.float32, list(weight.shape))
    value = interpreter.value(stored)
    if weight.qscheme() == torch.per_tensor_affine:
        return Quantized(value, form, weight.dtype, weight.q_scale(), weight.q_zero_point())
    scales, zero_points = weight.q_per_channel_scales().numpy(), weight.q_per_channel_zero_points().numpy()
    return Quantized(value, form, weight.dtype, scales, zero_points, weight.q_per_channel_axis())


def _of_two(function: torch._ops.OpOverload) -> Callable[[Interpreter, Sequence[Any]], Tensor]:
    def call(interpreter: Interpreter, args: Sequence[Any]) -> Tensor:
        floats = [_float(interpreter, arg) for arg in args[:2]]
        return interpreter.call(function, floats, {})  # type: ignore[no-any-return]

    return call


def _of_one(function: torch._ops.OpOverload) -> Callable[[Interpreter, Sequence[Any]], Tensor]:
    def call(interpreter: Interpreter, args: Sequence[Any]) -> Tensor:
        return interpreter.call(function, [_float(interpreter, args[0]), *args[1:-2]], {})  # type: ignore[no-any-return]

    return call


def _scalar_call(interpreter: Interpreter, name: str, args: Sequence[Any]) -> Quantized:
    """Adding or multiplying a number changes the scale and zero point in torch; the result's are not given."""
    raise UnsupportedOperatorError(
        "its result has a scale that torch computes at run time; use a tensor operand instead of a number",
        operator=f"quantized::{name}",
    )


_WITH_SCALAR = frozenset(("add_scalar", "mul_scalar"))
_FUNCTIONS: dict[str, Callable[[Interpreter, Sequence[Any]], Tensor]] = {
    "add": _of_two(aten.add.Tensor),
    "mul": _of_two(aten.mul.Tensor),
    "matmul": _of_two(aten.matmul.default),
    "cat": _of_one(aten.cat.default),
    "hardswish": _of_one(aten.hardswish.default),
    "sigmoid": _of_one(aten.sigmoid.default),
    "leaky_relu": lambda interpreter, args: interpreter.call(
        aten.leaky_relu.default, [_float(interpreter, args[0]), args[1]], {}
    ),
}


# ---- fake quantization


def observed_fake_quantize(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    """Convert ``fused_moving_avg_obs_fake_quant``: the fake quantization alone, if the observer is off.

    Raises:
        ScriptValueError: If the observer is on, which changes the module's buffers.
    """
    x, observing, quantizing, _, _, scale, zero_point, _, low, high, axis, per_channel, *_ = args
    if _array(interpreter, observing).any():
        raise ScriptValueError(
            "A fake quantization observes its input; call model.apply(torch.ao.quantization.disable_observer) first."
        )
    if not _array(interpreter, quantizing).any():
        return x
    scales, zero_points = _array(interpreter, scale), _array(interpreter, zero_point)
    if per_channel:
        operands = [x, interpreter.tensor_constant(torch.from_numpy(scales.copy()))]
        operands.append(interpreter.tensor_constant(torch.from_numpy(zero_points.astype(np.int32))))
        return interpreter.call(aten.fake_quantize_per_channel_affine.default, [*operands, axis, low, high], {})
    arguments = [x, float(scales.item()), int(zero_points.item()), low, high]
    return interpreter.call(aten.fake_quantize_per_tensor_affine.default, arguments, {})
