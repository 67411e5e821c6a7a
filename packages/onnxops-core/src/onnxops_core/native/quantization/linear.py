"""QuantizeLinear and DequantizeLinear (opset 21 and what later ones added) as torch operators.

4-bit and 2-bit integers are held one per ``int8`` or ``uint8`` element, 4-bit and 6-bit floats one per
``float32`` element; ``output_dtype`` and ``input_dtype`` name the ONNX dtype that such a carrier stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY

import torch

from onnxops_core.dtypes import torch_dtype
from onnxops_core.native.declaring.call import Call, operator_call, public
from onnxops_core.native.declaring.checks import check_choice, check_dtype, check_same_dtype, invalid
from onnxops_core.native.declaring.declare import declare

__all__ = ["dequantize_linear", "quantize_linear"]

_INTEGERS: dict[int, tuple[int, int, torch.dtype]] = {
    2: (0, 255, torch.uint8),
    3: (-128, 127, torch.int8),
    4: (0, 65535, torch.uint16),
    5: (-32768, 32767, torch.int16),
    21: (0, 15, torch.uint8),
    22: (-8, 7, torch.int8),
    25: (0, 3, torch.uint8),
    26: (-2, 1, torch.int8),
}
_FLOAT8 = {number: torch_dtype(number) for number in (17, 18, 19, 20)}
# Bits of the mantissa, least exponent, largest value.
_MINIFLOATS = {23: (1, 0, 6.0), 27: (3, 0, 7.5), 28: (2, -2, 28.0)}
_NUMBER_OF = {torch.uint8: 2, torch.int8: 3, torch.uint16: 4, torch.int16: 5} | {
    dtype: number for number, dtype in _FLOAT8.items()
}
_SCALES = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.float8_e8m0fnu})
_QUANTIZABLE = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.int32})


def _carrier(number: int) -> torch.dtype:
    if number in _INTEGERS:
        return _INTEGERS[number][2]
    return _FLOAT8.get(number, torch.float32)


def _check_granularity(
    op: str, names: tuple[str, str, str], x: torch.Tensor, scale: torch.Tensor, axis: int, block_size: int
) -> None:
    """Refuse scales that are neither per tensor, nor per axis, nor per block."""
    if block_size < 0:
        raise invalid(op, "block_size", block_size, "no negative number")
    if scale.numel() == 1 and scale.dim() <= 1 and block_size == 0:
        return
    if not -x.dim() <= axis < x.dim():
        raise invalid(op, "axis", axis, f"a dimension of {names[0]}, which has rank {x.dim()}")
    place = axis % x.dim()
    if block_size == 0:
        if tuple(scale.shape) != (x.shape[place],):
            raise invalid(op, names[1], scale, f"a scalar, or shape ({x.shape[place]},) for axis {place}")
        return
    expected = [*x.shape]
    expected[place] = -(-x.shape[place] // block_size)
    if list(scale.shape) != expected:
        raise invalid(op, names[1], scale, f"shape {tuple(expected)} for blocks of {block_size} along axis {place}")


def _same_shape(zero_point: torch.Tensor, scale: torch.Tensor) -> bool:
    """Tell whether the shapes match; a scalar and a vector of one element count as the same."""
    if zero_point.dim() <= 1 and scale.dim() <= 1:
        return zero_point.numel() == scale.numel()
    return zero_point.shape == scale.shape


def _spread(parameter: torch.Tensor, x: torch.Tensor, axis: int, block_size: int) -> torch.Tensor:
    """Bring a scale or zero point to a shape that broadcasts with ``x``."""
    if parameter.numel() == 1 and parameter.dim() <= 1 and block_size == 0:
        return parameter.reshape(())
    place = axis % x.dim()
    if block_size == 0:
        return parameter.view([-1 if i == place else 1 for i in range(x.dim())])
    if parameter.dtype.itemsize == 1 and parameter.dtype.is_floating_point:
        parameter = parameter.to(torch.float32)  # torch repeats no 8-bit floats
    return parameter.repeat_interleave(block_size, place).narrow(place, 0, x.shape[place])


def _target(y_zero_point: torch.Tensor | None, output_dtype: int) -> int:
    if output_dtype:
        return output_dtype
    return 2 if y_zero_point is None else _NUMBER_OF.get(y_zero_point.dtype, 0)


@operator_call
class QuantizeLinearCall(Call[torch.Tensor]):
    """ONNX QuantizeLinear: ``saturate(round(x / y_scale) + y_zero_point)``, ties to even.

    Args:
        x: any shape; float32, float16, bfloat16 or int32.
        y_scale: a scalar; ``(D,)`` for one per index of ``axis``; or x's shape with ``axis`` divided by
            ``block_size`` (rounded up). float32, float16, bfloat16, float8_e8m0fnu or int32.
        y_zero_point: as ``y_scale`` in shape, of the result's dtype; zero if None.
        axis: the dimension that scales differ along.
        block_size: how many values along ``axis`` share a scale; 0 for none or all.
        output_dtype: the ONNX dtype integer of the result; by default ``y_zero_point``'s, or uint8.
        precision: the ONNX dtype integer in which x is divided; by default the scale's.
        saturate: whether 8-bit floats saturate, rather than overflow.

    Returns:
        A tensor of x's shape: int8, uint8, int16, uint16, a float8 dtype, or the carrier of a smaller dtype.

    Raises:
        ValueError: shapes, dtypes or attributes that the specification forbids.

    Source: https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html
    """

    x: torch.Tensor
    y_scale: torch.Tensor
    y_zero_point: torch.Tensor | None = None
    _: KW_ONLY
    axis: int = 1
    block_size: int = 0
    output_dtype: int = 0
    precision: int = 0
    saturate: bool = True


def _quantize_check(call: QuantizeLinearCall) -> None:
    y_zero_point = call.y_zero_point
    op = "QuantizeLinear"
    check_dtype(op, "x", call.x, _QUANTIZABLE)
    check_dtype(op, "y_scale", call.y_scale, _SCALES | {torch.int32})
    _check_granularity(op, ("x", "y_scale", "y_zero_point"), call.x, call.y_scale, call.axis, call.block_size)
    check_choice(op, "precision", call.precision, (0, 1, 10, 16))
    target = _target(y_zero_point, call.output_dtype)
    if target not in _INTEGERS and target not in _FLOAT8 and target not in _MINIFLOATS:
        if call.output_dtype:
            check_choice(op, "output_dtype", call.output_dtype, (0, *_INTEGERS, *_FLOAT8, *_MINIFLOATS))
        assert y_zero_point is not None
        raise invalid(op, "y_zero_point", y_zero_point, "an 8-bit or 16-bit integer or 8-bit float dtype")
    if y_zero_point is not None:
        check_same_dtype(op, "y_zero_point", y_zero_point, "the quantized values", _carrier(target))
        if not _same_shape(y_zero_point, call.y_scale):
            raise invalid(op, "y_zero_point", y_zero_point, f"the shape of y_scale, {tuple(call.y_scale.shape)}")


def _ratio(x: torch.Tensor, scale: torch.Tensor, precision: int) -> torch.Tensor:
    """Divide in the dtype that the specification asks for, rounded to it, and return that in float32."""
    if precision:
        dtype = torch_dtype(precision)
    elif scale.dtype == torch.float8_e8m0fnu:
        dtype = x.dtype if x.is_floating_point() else torch.float32
    else:
        dtype = scale.dtype if scale.is_floating_point() else torch.float32
    return (x.to(dtype) / scale.to(dtype)).to(torch.float32)


def _to_float8(value: torch.Tensor, dtype: torch.dtype, saturate: bool) -> torch.Tensor:
    if not saturate:
        # Half a unit above the largest value; some builds of torch saturate here, and the format has no infinity.
        beyond = value.abs() > 464 if dtype == torch.float8_e4m3fn else value.isnan()
        return torch.where(beyond, torch.nan, value).to(dtype)
    limit = torch.finfo(dtype).max
    return value.clamp(-limit, limit).to(dtype)


def _to_minifloat(value: torch.Tensor, mantissa: int, least: int, largest: float) -> torch.Tensor:
    """Round float32 to the nearest value of a small float format, ties to the even one."""
    value = value.clamp(-largest, largest)
    exponent = torch.frexp(value).exponent.sub(1).clamp(min=least)
    unit = torch.ldexp(torch.ones_like(value), exponent - mantissa)
    return torch.round(value / unit) * unit


def _quantize_reference(call: QuantizeLinearCall) -> torch.Tensor:
    x, axis, block_size = call.x, call.axis, call.block_size
    target = _target(call.y_zero_point, call.output_dtype)
    value = _ratio(x, _spread(call.y_scale, x, axis, block_size), call.precision)
    zero = None if call.y_zero_point is None else _spread(call.y_zero_point, x, axis, block_size).to(torch.float32)
    if target in _INTEGERS:
        low, high, carrier = _INTEGERS[target]
        value = torch.round(value)
        if zero is not None:
            value = value + zero
        return value.clamp(low, high).to(torch.int32).to(carrier)
    if zero is not None:
        value = value + zero
    if target in _FLOAT8:
        return _to_float8(value, _FLOAT8[target], call.saturate)
    return _to_minifloat(value, *_MINIFLOATS[target])


def _quantize_fake(call: QuantizeLinearCall) -> torch.Tensor:
    return call.x.new_empty(call.x.shape, dtype=_carrier(_target(call.y_zero_point, call.output_dtype)))


def _dtype_of(value: object) -> torch.dtype | None:
    """Return the dtype of a tensor or of a graph node that carries one."""
    found = getattr(value, "dtype", None)
    if found is None:
        meta = getattr(value, "meta", None)
        found = getattr(meta.get("val"), "dtype", None) if isinstance(meta, Mapping) else None
    return found if isinstance(found, torch.dtype) else None


def _lowest_opset(number: int, scale: object) -> int:
    opset = {23: 23, 25: 25, 26: 25, 27: 28, 28: 28}.get(number, 21)
    return max(opset, 24) if _dtype_of(scale) == torch.float8_e8m0fnu else opset


def _quantize_opset(call: QuantizeLinearCall) -> int:
    opset = _lowest_opset(call.output_dtype, call.y_scale)
    return max(opset, 23) if call.precision else opset


_QUANTIZE = declare(
    "QuantizeLinear",
    21,
    QuantizeLinearCall,
    reference=_quantize_reference,
    fake=_quantize_fake,
    check=_quantize_check,
    opset_of_call=_quantize_opset,
)


quantize_linear = public("quantize_linear", QuantizeLinearCall, _QUANTIZE)


@operator_call
class DequantizeLinearCall(Call[torch.Tensor]):
    """ONNX DequantizeLinear: ``(x - x_zero_point) * x_scale``.

    Args:
        x: any shape; int8, uint8, int16, uint16, int32, a float8 dtype, or the carrier of ``input_dtype``.
        x_scale: a scalar; ``(D,)`` for one per index of ``axis``; or x's shape with ``axis`` divided by
            ``block_size`` (rounded up). float32, float16, bfloat16 or float8_e8m0fnu.
        x_zero_point: as ``x_scale`` in shape, of x's dtype; zero if None.
        axis: the dimension that scales differ along.
        block_size: how many values along ``axis`` share a scale; 0 for none or all.
        output_dtype: the ONNX dtype integer of the result (1, 10, 16); by default the scale's.
        input_dtype: the ONNX dtype integer that a carrier's elements stand for (21 UINT4, 22 INT4, 23
            FLOAT4E2M1, 25 UINT2, 26 INT2, 27 FLOAT6E2M3, 28 FLOAT6E3M2); 0 if x has its own dtype. Not an
            ONNX attribute: there the tensor itself has that dtype.

    Returns:
        A tensor of x's shape, rounded once.

    Raises:
        ValueError: shapes, dtypes, attributes or zero points that the specification forbids.

    Source: https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html
    """

    x: torch.Tensor
    x_scale: torch.Tensor
    x_zero_point: torch.Tensor | None = None
    _: KW_ONLY
    axis: int = 1
    block_size: int = 0
    output_dtype: int = 0
    input_dtype: int = 0


def _dequantize_check(call: DequantizeLinearCall) -> None:
    x_scale = call.x_scale
    op = "DequantizeLinear"
    small = (21, 22, 25, 26, *_MINIFLOATS)
    check_choice(op, "input_dtype", call.input_dtype, (0, *small))
    if call.input_dtype:
        check_dtype(op, "x", call.x, frozenset({_carrier(call.input_dtype)}))
    else:
        check_dtype(op, "x", call.x, frozenset(_NUMBER_OF) | {torch.int32})
    check_dtype(op, "x_scale", x_scale, _SCALES)
    _check_granularity(op, ("x", "x_scale", "x_zero_point"), call.x, x_scale, call.axis, call.block_size)
    check_choice(op, "output_dtype", call.output_dtype, (0, 1, 10, 16))
    if x_scale.dtype == torch.float8_e8m0fnu and not call.output_dtype:
        raise invalid(op, "output_dtype", call.output_dtype, "1, 10 or 16 for a float8_e8m0fnu scale")
    if call.x_zero_point is not None:
        check_same_dtype(op, "x_zero_point", call.x_zero_point, "x", call.x.dtype)
        if not _same_shape(call.x_zero_point, x_scale):
            raise invalid(op, "x_zero_point", call.x_zero_point, f"the shape of x_scale, {tuple(x_scale.shape)}")


def _dequantize_reference(call: DequantizeLinearCall) -> torch.Tensor:
    x = call.x
    dtype = torch_dtype(call.output_dtype) if call.output_dtype else call.x_scale.dtype
    value = x
    if call.x_zero_point is not None:
        zero = _spread(call.x_zero_point, x, call.axis, call.block_size)
        exact = torch.float32 if x.is_floating_point() else torch.int32
        value = x.to(exact) - zero.to(exact)
    scale = _spread(call.x_scale, x, call.axis, call.block_size)
    return (value.to(torch.float32) * scale.to(torch.float32)).to(dtype)


def _dequantize_check_values(call: DequantizeLinearCall) -> None:
    if call.x_zero_point is None:
        return
    unused = call.x.dtype == torch.int32 or call.x.dtype in _FLOAT8.values()
    if unused and bool((call.x_zero_point.to(torch.float32) != 0).any()):
        raise invalid("DequantizeLinear", "x_zero_point", call.x_zero_point, f"zeros for {call.x.dtype}")


def _dequantize_fake(call: DequantizeLinearCall) -> torch.Tensor:
    dtype = torch_dtype(call.output_dtype) if call.output_dtype else call.x_scale.dtype
    return call.x.new_empty(call.x.shape, dtype=dtype)


def _dequantize_opset(call: DequantizeLinearCall) -> int:
    opset = _lowest_opset(call.input_dtype, call.x_scale)
    return max(opset, 23) if call.output_dtype else opset


_DEQUANTIZE = declare(
    "DequantizeLinear",
    21,
    DequantizeLinearCall,
    reference=_dequantize_reference,
    fake=_dequantize_fake,
    check=_dequantize_check,
    check_values=_dequantize_check_values,
    not_attributes=("input_dtype",),
    opset_of_call=_dequantize_opset,
)


dequantize_linear = public("dequantize_linear", DequantizeLinearCall, _DEQUANTIZE)
