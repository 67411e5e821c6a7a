"""CumProd and BitCast (opset 26) as torch operators."""

from __future__ import annotations

import torch

from onnxops_core.dtypes import ONNX_TO_TORCH, TORCH_TO_ONNX, onnx_dtype, onnx_dtype_name, torch_dtype
from onnxops_core.native.declaring.arguments import flag, integer
from onnxops_core.native.declaring.checks import FLOATS, check_dtype, invalid
from onnxops_core.native.declaring.declare import declare

__all__ = ["bit_cast", "cum_prod"]

_PRODUCTS = FLOATS | {torch.int32, torch.int64, torch.uint32, torch.uint64}


def _cum_prod_check(x: torch.Tensor, axis: int, *, exclusive: bool = False, reverse: bool = False) -> None:
    check_dtype("CumProd", "x", x, _PRODUCTS)
    if not -x.dim() <= axis < x.dim():
        raise invalid("CumProd", "axis", axis, f"a dimension of x, which has rank {x.dim()}")


def _cum_prod_reference(x: torch.Tensor, axis: int, *, exclusive: bool = False, reverse: bool = False) -> torch.Tensor:
    if x.dtype == torch.uint64:
        wide = x.view(torch.int64)  # products modulo 2 ** 64 have the same bits
    else:
        wide = x.to(torch.promote_types(x.dtype, torch.float32) if x.is_floating_point() else torch.int64)
    if reverse:
        wide = wide.flip(axis)
    if exclusive:
        one = torch.ones_like(wide.narrow(axis, 0, min(1, wide.shape[axis])))
        wide = torch.cat((one, wide.narrow(axis, 0, max(0, wide.shape[axis] - 1))), axis)
    product = torch.cumprod(wide, axis)
    if reverse:
        product = product.flip(axis)
    return product.contiguous().view(torch.uint64) if x.dtype == torch.uint64 else product.to(x.dtype)


def _cum_prod_fake(x: torch.Tensor, axis: int, **attributes: object) -> torch.Tensor:
    return x.new_empty(x.shape)


_CUM_PROD = declare(
    "CumProd",
    26,
    "(Tensor x, int axis, *, bool exclusive=False, bool reverse=False) -> Tensor",
    reference=_cum_prod_reference,
    fake=_cum_prod_fake,
    check=_cum_prod_check,
    scalar_inputs={"axis": 7},
)


def cum_prod(
    x: torch.Tensor, axis: int | torch.Tensor, *, exclusive: bool = False, reverse: bool = False
) -> torch.Tensor:
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
    op = "CumProd"
    result: torch.Tensor = _CUM_PROD(
        x,
        integer(op, "axis", axis),
        exclusive=flag(op, "exclusive", exclusive),
        reverse=flag(op, "reverse", reverse),
    )
    return result


_BITS = {dtype: dtype.itemsize * 8 for dtype in TORCH_TO_ONNX}
_SMALL = {21: (4, torch.uint8), 22: (4, torch.int8), 25: (2, torch.uint8), 26: (2, torch.int8)}


def _bit_cast_check(input: torch.Tensor, *, to: int) -> None:
    op = "BitCast"
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


def _bit_cast_reference(input: torch.Tensor, *, to: int) -> torch.Tensor:
    if to not in _SMALL:
        return input.view(torch_dtype(to)).clone(memory_format=torch.contiguous_format)
    bits, carrier = _SMALL[to]
    low: torch.Tensor = input.to(torch.int16) & (2**bits - 1)
    if carrier == torch.int8:
        sign = 2 ** (bits - 1)
        low = (low ^ sign) - sign
    return low.to(carrier)


def _bit_cast_fake(input: torch.Tensor, *, to: int) -> torch.Tensor:
    dtype = _SMALL[to][1] if to in _SMALL else torch_dtype(to)
    return input.new_empty(input.shape, dtype=dtype)


_BIT_CAST = declare(
    "BitCast",
    26,
    "(Tensor input, *, int to) -> Tensor",
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
    result: torch.Tensor = _BIT_CAST(input, to=target)
    return result
