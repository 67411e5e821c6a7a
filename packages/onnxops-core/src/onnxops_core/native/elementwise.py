"""CumProd and BitCast (opset 26) as torch operators."""

from __future__ import annotations

from dataclasses import KW_ONLY

import torch

from onnxops_core.dtypes import ONNX_TO_TORCH, TORCH_TO_ONNX, onnx_dtype, onnx_dtype_name, torch_dtype
from onnxops_core.native.declaring.call import Call, Integer, operator_call, public
from onnxops_core.native.declaring.checks import FLOATS, check_dtype, invalid
from onnxops_core.native.declaring.declare import declare, like_first_input

__all__ = ["bit_cast", "cum_prod"]

_PRODUCTS = FLOATS | {torch.int32, torch.int64, torch.uint32, torch.uint64}


@operator_call
class CumProdCall(Call[torch.Tensor]):
    """ONNX CumProd: cumulative products along a dimension.

    Args:
        x: float16, bfloat16, float32, float64, int32, int64, uint32 or uint64; integers wrap around.
        axis: the dimension, a number or a 0-d integer tensor.
        exclusive: whether an element's own factor is left out.
        reverse: whether products run from the end.

    Returns:
        A tensor of x's shape and dtype; float16 and bfloat16 are rounded once.

    Raises:
        ValueError: another dtype, or no such dimension.

    Source: https://onnx.ai/onnx/operators/onnx__CumProd.html
    """

    x: torch.Tensor
    axis: Integer
    _: KW_ONLY
    exclusive: bool = False
    reverse: bool = False


def _cum_prod_check(call: CumProdCall) -> None:
    check_dtype("CumProd", "x", call.x, _PRODUCTS)
    if not -call.x.dim() <= call.axis < call.x.dim():
        raise invalid("CumProd", "axis", call.axis, f"a dimension of x, which has rank {call.x.dim()}")


def _cum_prod_reference(call: CumProdCall) -> torch.Tensor:
    x, axis = call.x, call.axis
    if x.dtype == torch.uint64:
        wide = x.view(torch.int64)  # products modulo 2 ** 64 have the same bits
    else:
        wide = x.to(torch.promote_types(x.dtype, torch.float32) if x.is_floating_point() else torch.int64)
    if call.reverse:
        wide = wide.flip(axis)
    if call.exclusive:
        one = torch.ones_like(wide.narrow(axis, 0, min(1, wide.shape[axis])))
        wide = torch.cat((one, wide.narrow(axis, 0, max(0, wide.shape[axis] - 1))), axis)
    product = torch.cumprod(wide, axis)
    if call.reverse:
        product = product.flip(axis)
    return product.contiguous().view(torch.uint64) if x.dtype == torch.uint64 else product.to(x.dtype)


_CUM_PROD = declare(
    "CumProd",
    26,
    CumProdCall,
    reference=_cum_prod_reference,
    fake=like_first_input,
    check=_cum_prod_check,
    scalar_inputs={"axis": 7},
)


cum_prod = public("cum_prod", CumProdCall, _CUM_PROD)


_BITS = {dtype: dtype.itemsize * 8 for dtype in TORCH_TO_ONNX}
_SMALL = {21: (4, torch.uint8), 22: (4, torch.int8), 25: (2, torch.uint8), 26: (2, torch.int8)}


@operator_call
class BitCastCall(Call[torch.Tensor]):
    """The parameters of BitCast; ``to`` is an ONNX dtype integer."""

    input: torch.Tensor
    _: KW_ONLY
    to: int


def _bit_cast_check(call: BitCastCall) -> None:
    op, input, to = "BitCast", call.input, call.to
    if input.dtype not in TORCH_TO_ONNX:
        raise invalid(op, "input", input, "a dtype that ONNX has")
    if to in _SMALL:
        if input.dtype not in (torch.uint8, torch.int8):
            raise invalid(op, "input", input, f"int8 or uint8 elements that hold {_SMALL[to][0]}-bit integers")
        return
    target = ONNX_TO_TORCH.get(to)
    if target is None:
        raise invalid(op, "to", to, f"one of {sorted({*ONNX_TO_TORCH, *_SMALL})}")
    if _BITS[input.dtype] != _BITS[target]:
        expected = f"a dtype as wide as the input's, which is {input.dtype}"
        raise invalid(op, "to", f"{to} ({onnx_dtype_name(to)})", expected)


def _bit_cast_reference(call: BitCastCall) -> torch.Tensor:
    if call.to not in _SMALL:
        return call.input.view(torch_dtype(call.to)).clone(memory_format=torch.contiguous_format)
    bits, carrier = _SMALL[call.to]
    low: torch.Tensor = call.input.to(torch.int16) & (2**bits - 1)
    if carrier == torch.int8:
        sign = 2 ** (bits - 1)
        low = (low ^ sign) - sign
    return low.to(carrier)


def _bit_cast_fake(call: BitCastCall) -> torch.Tensor:
    dtype = _SMALL[call.to][1] if call.to in _SMALL else torch_dtype(call.to)
    return call.input.new_empty(call.input.shape, dtype=dtype)


_BIT_CAST = declare(
    "BitCast",
    26,
    BitCastCall,
    reference=_bit_cast_reference,
    fake=_bit_cast_fake,
    check=_bit_cast_check,
)


def bit_cast(input: torch.Tensor, *, to: torch.dtype | int) -> torch.Tensor:
    """ONNX BitCast: the same bits read as another dtype of the same width.

    4-bit and 2-bit integers are held one per int8 or uint8 element; casting to one of them reads the low
    bits.

    Args:
        input: any dtype that ONNX has.
        to: the target, a torch dtype or an ONNX dtype integer.

    Returns:
        A new tensor of the input's shape.

    Raises:
        ValueError: a target of another width, or one that torch lacks.

    Source: https://onnx.ai/onnx/operators/onnx__BitCast.html
    """
    try:
        if isinstance(to, bool):
            raise TypeError("a boolean is none")
        target = onnx_dtype(to)
    except (ValueError, TypeError) as error:
        raise invalid("BitCast", "to", to, f"an ONNX dtype ({error})") from None
    result: torch.Tensor = _BIT_CAST.compute(BitCastCall(input, to=target))
    return result
