"""Gelu, Swish, SwiGLU, Mish and HardSwish as torch operators."""

from __future__ import annotations

from collections.abc import Callable

import torch

from onnxops_core.native.activations.calls import GeluCall, HardSwishCall, MishCall, SwiGLUCall, SwishCall
from onnxops_core.native.activations.gpu import SWIGLU
from onnxops_core.native.declaring.call import public
from onnxops_core.native.declaring.checks import check_choice, check_finite, check_float, check_same_dtype, invalid
from onnxops_core.native.declaring.declare import declare, like_first_input

__all__ = ["gelu", "hard_swish", "mish", "swiglu", "swish"]


def _checker(op: str) -> Callable[[MishCall | HardSwishCall], None]:
    def check(call: MishCall | HardSwishCall) -> None:
        check_float(op, "X", call.X)

    return check


def _gelu_check(call: GeluCall) -> None:
    check_float("Gelu", "X", call.X)
    check_choice("Gelu", "approximate", call.approximate, ("none", "tanh"))


def _gelu_reference(call: GeluCall) -> torch.Tensor:
    wide = call.X.to(torch.promote_types(call.X.dtype, torch.float32))
    if call.approximate == "tanh":
        inner = (2 / torch.pi) ** 0.5 * (wide + 0.044715 * wide**3)
        return (0.5 * wide * (1 + torch.tanh(inner))).to(call.X.dtype)
    return (0.5 * wide * (1 + torch.erf(wide * 0.5**0.5))).to(call.X.dtype)


def _gelu_composite(call: GeluCall) -> torch.Tensor:
    return torch.nn.functional.gelu(call.X, approximate=call.approximate)


_GELU = declare(
    "Gelu",
    20,
    GeluCall,
    reference=_gelu_reference,
    composite=_gelu_composite,
    fake=like_first_input,
    check=_gelu_check,
)


gelu = public("gelu", GeluCall, _GELU)


def _swish_check(call: SwishCall) -> None:
    check_float("Swish", "X", call.X)
    check_finite("Swish", "alpha", call.alpha)


def _swish_reference(call: SwishCall) -> torch.Tensor:
    wide = call.X.to(torch.promote_types(call.X.dtype, torch.float32))
    return (wide * torch.sigmoid(call.alpha * wide)).to(call.X.dtype)


def _swish_composite(call: SwishCall) -> torch.Tensor:
    return torch.nn.functional.silu(call.X) if call.alpha == 1.0 else _swish_reference(call)


_SWISH = declare(
    "Swish",
    24,
    SwishCall,
    reference=_swish_reference,
    composite=_swish_composite,
    fake=like_first_input,
    check=_swish_check,
)


swish = public("swish", SwishCall, _SWISH)


def _swiglu_check(call: SwiGLUCall) -> None:
    check_float("SwiGLU", "A", call.A)
    check_finite("SwiGLU", "alpha", call.alpha)
    check_same_dtype("SwiGLU", "B", call.B, "A", call.A.dtype)
    if call.A.shape != call.B.shape:
        raise invalid("SwiGLU", "B", call.B, f"the shape of A, {tuple(call.A.shape)}; nothing is broadcast")


def _swiglu_reference(call: SwiGLUCall) -> torch.Tensor:
    wide = call.A.to(torch.promote_types(call.A.dtype, torch.float32))
    return (wide * torch.sigmoid(call.alpha * wide) * call.B).to(call.A.dtype)


def _swiglu_kernel(call: SwiGLUCall) -> torch.Tensor:
    if call.alpha != 1.0 or call.A.dtype not in (torch.float32, torch.float64):
        return _swiglu_reference(call).contiguous()
    return torch.nn.functional.silu(call.A).mul_(call.B).contiguous()


_SWIGLU = declare(
    "SwiGLU",
    28,
    SwiGLUCall,
    reference=_swiglu_reference,
    kernel=_swiglu_kernel,
    fake=like_first_input,
    check=_swiglu_check,
    backends=(SWIGLU,),
)


swiglu = public("swiglu", SwiGLUCall, _SWIGLU)


def _mish_reference(call: MishCall) -> torch.Tensor:
    wide = call.X.to(torch.promote_types(call.X.dtype, torch.float32))
    return (wide * torch.tanh(torch.nn.functional.softplus(wide))).to(call.X.dtype)


_MISH = declare(
    "Mish",
    22,
    MishCall,
    reference=_mish_reference,
    composite=lambda call: torch.nn.functional.mish(call.X),
    fake=like_first_input,
    check=_checker("Mish"),
)


mish = public("mish", MishCall, _MISH)


def _hard_swish_reference(call: HardSwishCall) -> torch.Tensor:
    wide = call.X.to(torch.promote_types(call.X.dtype, torch.float32))
    return (wide * (wide / 6 + 0.5).clamp(0, 1)).to(call.X.dtype)


_HARD_SWISH = declare(
    "HardSwish",
    22,
    HardSwishCall,
    reference=_hard_swish_reference,
    composite=lambda call: torch.nn.functional.hardswish(call.X),
    fake=like_first_input,
    check=_checker("HardSwish"),
)


hard_swish = public("hard_swish", HardSwishCall, _HARD_SWISH)
