"""Quantized tensors of a program, and the steps between them and floats.

Sources: "Quantization" in the PyTorch documentation (affine quantization per tensor and per channel), ONNX
QuantizeLinear and DequantizeLinear.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.values import ListRef, Tensor
from onnx_ts_legacy.state.variables import value_of

__all__ = ["Quantized", "constant_array", "dequantize", "in_floats", "number", "quantize"]

_STORAGE = {torch.qint8: ir.DataType.INT8, torch.quint8: ir.DataType.UINT8, torch.qint32: ir.DataType.INT32}


@dataclasses.dataclass(frozen=True, slots=True)
class Quantized:
    """A quantized tensor.

    Attributes:
        value: Its integers.
        form: Form with its shape, of dtype float32.
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


_UNKNOWN = (
    "The scale and zero point of a quantized tensor have to be constants: numbers, or buffers that the model does not "
    "change and uses as they are."
)


def number(value: Any) -> Any:
    """Return a scale or zero point.

    Raises:
        ScriptValueError: If it is not known here.
    """
    if isinstance(value, int | float):
        return value
    raise ScriptValueError(_UNKNOWN)


def constant_array(context: ConversionContext, tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return the contents of a tensor of scales or zero points.

    Raises:
        ScriptValueError: If they are not known here.
    """
    value = value_of(context, tensor)
    source = value.const_value
    if source is None:
        raise ScriptValueError(_UNKNOWN)
    return np.asarray(source.numpy())


def _parameters(context: ConversionContext, scale: Any, zero_point: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    op = context.op
    return op.constant(np.asarray(scale, np.float32), ir.DataType.FLOAT), op.constant(
        np.asarray(zero_point), _STORAGE[dtype]
    )


def quantize(
    context: ConversionContext, tensor: Tensor, dtype: torch.dtype, scale: Any, zero_point: Any, axis: int | None = None
) -> Quantized:
    """Quantize a tensor of floats."""
    parameters = _parameters(context, scale, zero_point, dtype)
    attributes = {} if axis is None else {"axis": axis}
    value = context.op.newest.QuantizeLinear(value_of(context, tensor), *parameters, **attributes)
    value.shape = ir.Shape(context.metadata.symbols.dims(tensor.fake))
    return Quantized(value, tensor.fake, dtype, scale, zero_point, axis)


def dequantize(context: ConversionContext, quantized: Quantized) -> Tensor:
    """Return the floats that a quantized tensor stands for."""
    parameters = _parameters(context, quantized.scale, quantized.zero_point, quantized.dtype)
    attributes = {} if quantized.axis is None else {"axis": quantized.axis}
    value = context.op.newest.DequantizeLinear(quantized.value, *parameters, **attributes)
    value.shape = ir.Shape(context.metadata.symbols.dims(quantized.form))
    return context.fresh(value, quantized.form)


def in_floats(context: ConversionContext, arg: Any) -> Any:
    """Return an argument with floats in place of quantized tensors."""
    if isinstance(arg, Quantized):
        return dequantize(context, arg)
    if isinstance(arg, ListRef):
        return ListRef(context.heap, tuple(in_floats(context, item) for item in arg.items))
    return arg
