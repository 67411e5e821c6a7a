"""Changes of the element type."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from onnxops_core.native import quantize_linear
from onnxops_decomp.importing.registry import onnx_op
from onnxops_decomp.importing.values import MINIFLOATS, SUB_BYTE, carrier

_STRING = 8
_FLOAT8 = {17, 18, 19, 20}
_E8M0 = 24


@onnx_op("Cast")
def cast(input: Any, to: int, saturate: int = 1, round_mode: str = "up", input_types: Any = ()) -> Any:
    if to == _STRING:
        return _to_strings(input)
    if not isinstance(input, Tensor):
        return _from_strings(input, to)
    if to in _FLOAT8 or to in MINIFLOATS:
        return _to_small_float(input, to, saturate)
    if to == _E8M0:
        return _to_e8m0(input.float(), round_mode, saturate)
    if to in SUB_BYTE:
        return _wrapped(input, to)
    dtype = carrier(to)
    if input.is_floating_point() and dtype == torch.uint64:
        high = input >= 2.0**63
        low = torch.where(high, input - 2.0**63, input).to(torch.int64)
        return torch.where(high, low ^ -(2**63), low).view(torch.uint64)
    if input.is_floating_point() and not dtype.is_floating_point and dtype not in (torch.bool, torch.int64):
        return input.to(torch.int64).to(dtype)
    return input.to(dtype)


def _to_small_float(input: Tensor, to: int, saturate: int) -> Tensor:
    """Round to a float of 8 bits or less, which is what quantization with a scale of one does.

    The floats of 4 and 6 bits have no NaN; ONNX makes it the largest value, as it does of infinity.

    Source: https://onnx.ai/onnx/technical/float4.html (the table of "Cast")
    """
    floats = input if input.dtype in (torch.float32, torch.float16, torch.bfloat16) else input.float()
    if to in MINIFLOATS:
        floats = torch.where(torch.isnan(floats), torch.inf, floats)
    one = torch.ones((), dtype=floats.dtype, device=floats.device)
    return quantize_linear(floats, one, output_dtype=to, saturate=bool(saturate))


def _to_e8m0(input: Tensor, round_mode: str, saturate: int) -> Tensor:
    """Return the powers of two that stand for floats, one byte of exponent each."""
    bits = input.abs().view(torch.int32)
    exponent, rest = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    if round_mode == "up":
        raised = rest > 0
    elif round_mode == "nearest":
        raised = (rest > 0x400000) | ((rest == 0x400000) & (exponent > 0))
    else:
        raised = torch.zeros_like(rest, dtype=torch.bool)
    code = exponent + raised.to(torch.int32)
    if saturate:
        code = torch.where(exponent < 255, code.clamp(max=254), 255)
    code = torch.where(torch.isnan(input), 255, code)
    return code.to(torch.uint8).view(torch.float8_e8m0fnu)


def _wrapped(input: Tensor, to: int) -> Tensor:
    """Keep the lowest bits of integers, as a cast between integers does."""
    bits = 4 if to in (21, 22) else 2
    low = input.to(torch.int32) & (2**bits - 1)
    signed = to in (22, 26)
    return (torch.where(low >= 2 ** (bits - 1), low - 2**bits, low) if signed else low).to(carrier(to))


def _to_strings(input: Any) -> Any:
    if not isinstance(input, Tensor):
        return input
    values = input.detach().float().numpy() if input.dtype == torch.bfloat16 else input.detach().numpy()
    return np.array([_text(each) for each in values.reshape(-1)], object).reshape(values.shape)


def _text(value: Any) -> str:
    if isinstance(value, np.floating):
        if np.isnan(value):
            return "NaN"
        if np.isinf(value):
            return "INF" if value > 0 else "-INF"
        return (
            np.format_float_positional(value, trim="-") if value == int(value) and abs(value) < 1e7 else f"{value:.8g}"
        )
    return str(int(value)) if isinstance(value, np.bool_) else str(value)


def _from_strings(input: Any, to: int) -> Tensor:
    dtype = carrier(to)
    if dtype.is_floating_point:
        values = [float(each) for each in input.reshape(-1)]
        return torch.tensor(values, dtype=torch.float64).to(dtype).reshape(input.shape)
    whole = [int(each) if each.lstrip("+-").isdigit() else int(float(each)) for each in input.reshape(-1)]
    return torch.tensor(whole, dtype=dtype).reshape(input.shape)


@onnx_op("CastLike")
def cast_like(input: Any, target_type: Any, saturate: int = 1, round_mode: str = "up", input_types: Any = ()) -> Any:
    return cast(input, input_types[1], saturate, round_mode)


@onnx_op("BitCast", since=26)
def bit_cast(input: Tensor, to: int, input_types: Any = ()) -> Tensor:
    if to in SUB_BYTE:
        return _wrapped(input, to)
    if to == 9:
        return input.view(torch.uint8) != 0
    return input.view(carrier(to))
