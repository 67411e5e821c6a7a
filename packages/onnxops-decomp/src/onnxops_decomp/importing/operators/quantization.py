"""Quantized tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxops_core import native
from onnxops_decomp.importing.operators.nn import conv
from onnxops_decomp.importing.operators.products import matmul_integer
from onnxops_decomp.importing.registry import onnx_op
from onnxops_decomp.importing.values import is_sub_byte

__all__ = ["dequantize_linear", "dynamic_quantize_linear", "quantize_linear", "steps_of"]

_RANGES = {
    2: (0, 255), 3: (-128, 127), 4: (0, 65535), 5: (-32768, 32767), 21: (0, 15), 22: (-8, 7), 25: (0, 3), 26: (-2, 1)
}  # fmt: skip
"""Least and largest step of each integer type that values are quantized to."""


@onnx_op("QuantizeLinear", since=21)
@onnx_op("QuantizeLinear")
def quantize_linear(
    x: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
    input_types: Any = (),
) -> Tensor:
    to = output_dtype or (input_types[2] if y_zero_point is not None else 2)
    if y_zero_point is not None and not is_sub_byte(to):
        to = 0  # the zero point says so, also in an opset that has no such attribute
    return native.quantize_linear(
        x,
        y_scale,
        y_zero_point,
        axis=axis,
        block_size=block_size,
        output_dtype=to,
        precision=precision,
        saturate=bool(saturate),
    )


@onnx_op("DequantizeLinear", since=21)
@onnx_op("DequantizeLinear")
def dequantize_linear(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None = None,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    input_types: Any = (),
    quantized_from: Tensor | None = None,
) -> Tensor:
    small = input_types[0] if is_sub_byte(input_types[0]) else 0

    def dequantized(steps: Tensor) -> Tensor:
        return native.dequantize_linear(
            steps, x_scale, x_zero_point, axis=axis, block_size=block_size, output_dtype=output_dtype, input_dtype=small
        )

    result = dequantized(x)
    if quantized_from is None or not quantized_from.requires_grad or torch.compiler.is_exporting():
        return result
    # Rounding has no derivative: what is in range passes it on, as in quantization-aware training.
    inside = quantized_from
    if input_types[0] in _RANGES:
        low, high = (dequantized(torch.full_like(x, limit)).detach() for limit in _RANGES[input_types[0]])
        inside = torch.clamp(inside, low.to(inside.dtype), high.to(inside.dtype))
    return result + (inside - inside.detach()).to(result.dtype)


@onnx_op("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    least = torch.clamp(x.min(), max=0)
    scale = (torch.clamp(x.max(), min=0) - least) / 255
    safe = torch.where(scale == 0, 1, scale)
    zero_point = steps_of(-least / safe, None, torch.uint8)
    return steps_of(x / safe, zero_point, torch.uint8), scale, zero_point


def steps_of(ratio: Tensor, zero_point: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the steps nearest to values over their scale, ties to even, within the limits of an integer dtype."""
    limits = torch.iinfo(dtype)
    steps = torch.round(ratio)
    steps = steps if zero_point is None else steps + zero_point
    return torch.clamp(steps, limits.min, limits.max).to(dtype)


def _for_dim(parameter: Tensor, rank: int, dim: int) -> Tensor:
    """Return scales or zero points of one dimension so that they broadcast; one number stays one."""
    if parameter.dim() != 1:
        return parameter
    return parameter.reshape(()) if parameter.numel() == 1 else parameter.reshape([-1] + [1] * (rank - 1 - dim))


@onnx_op("QLinearMatMul")
def q_linear_matmul(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
) -> Tensor:
    if a.dtype.is_floating_point:
        left = a.float() - a_zero_point.float()
        product = torch.matmul(left, b.float() - b_zero_point.float())
        scaled = product * a_scale.float() * b_scale.float() / y_scale.float() + y_zero_point.float()
        return scaled.to(y_zero_point.dtype)
    total = matmul_integer(a, b, a_zero_point, b_zero_point).double()
    rows = a_scale.unsqueeze(-1) if a_scale.dim() == 1 and a_scale.numel() > 1 else a_scale
    scale = rows.float() * b_scale.float()
    if y_scale.dim() == 1 and y_scale.numel() > 1:
        y_scale, y_zero_point = y_scale.unsqueeze(-1), y_zero_point.unsqueeze(-1)
    return steps_of(total.float() * scale / y_scale.float(), y_zero_point, y_zero_point.dtype)


@onnx_op("ConvInteger", rest=conv)
def conv_integer(
    x: Tensor, w: Tensor, x_zero_point: Tensor | None = None, w_zero_point: Tensor | None = None, **window: Any
) -> Tensor:
    # Exact: products of 16 bits sum up in the 53 bits of float64.
    left, right = x.double(), w.double()
    if x_zero_point is not None:
        left = left - x_zero_point.double()
    if w_zero_point is not None:
        right = right - _for_dim(w_zero_point, w.dim(), 0).double()
    return conv(left, right, **window).to(torch.int32)


@onnx_op("QLinearConv", rest=conv)
def q_linear_conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    B: Tensor | None = None,
    **window: Any,
) -> Tensor:
    total = conv_integer(x, w, x_zero_point, w_zero_point, **window)
    if B is not None:
        total = total + B.reshape(-1, *[1] * (x.dim() - 2))
    scale = x_scale * _for_dim(w_scale, x.dim(), 1)
    return steps_of(total.float() * scale / y_scale, y_zero_point.reshape(()), y_zero_point.dtype)
