"""Gelu, Swish, SwiGLU, Mish and HardSwish as torch operators."""

from __future__ import annotations

from collections.abc import Callable

import torch

from onnxops_core.native.activations.gpu import SWIGLU
from onnxops_core.native.declaring.checks import check_choice, check_finite, check_float, check_same_dtype, invalid
from onnxops_core.native.declaring.declare import declare

__all__ = ["gelu", "hard_swish", "mish", "swiglu", "swish"]


def _like_first(x: torch.Tensor, *args: object, **attributes: object) -> torch.Tensor:
    return x.new_empty(x.shape)


def _checker(op: str) -> Callable[..., None]:
    def check(x: torch.Tensor, **attributes: object) -> None:
        check_float(op, "X", x)

    return check


def _gelu_check(x: torch.Tensor, *, approximate: str = "none") -> None:
    check_float("Gelu", "X", x)
    check_choice("Gelu", "approximate", approximate, ("none", "tanh"))


def _gelu_reference(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if approximate == "tanh":
        inner = (2 / torch.pi) ** 0.5 * (wide + 0.044715 * wide**3)
        return (0.5 * wide * (1 + torch.tanh(inner))).to(x.dtype)
    return (0.5 * wide * (1 + torch.erf(wide * 0.5**0.5))).to(x.dtype)


def _gelu_composite(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate=approximate)


_GELU = declare(
    "Gelu",
    20,
    "(Tensor X, *, str approximate='none') -> Tensor",
    reference=_gelu_reference,
    composite=_gelu_composite,
    fake=_like_first,
    check=_gelu_check,
)


def gelu(X: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """ONNX Gelu: ``0.5 * x * (1 + erf(x / sqrt(2)))``, or its approximation by tanh.

    Args:
        X: any shape; float16, bfloat16, float32 or float64.
        approximate: ``"none"`` or ``"tanh"``.

    Returns:
        A tensor of X's shape and dtype.

    Raises:
        ValueError: another dtype or approximation.

    Source: https://onnx.ai/onnx/operators/onnx__Gelu.html
    """
    result: torch.Tensor = _GELU(X, approximate=approximate)
    return result


def _swish_check(x: torch.Tensor, *, alpha: float = 1.0) -> None:
    check_float("Swish", "X", x)
    check_finite("Swish", "alpha", alpha)


def _swish_reference(x: torch.Tensor, *, alpha: float = 1.0) -> torch.Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.sigmoid(alpha * wide)).to(x.dtype)


def _swish_composite(x: torch.Tensor, *, alpha: float = 1.0) -> torch.Tensor:
    return torch.nn.functional.silu(x) if alpha == 1.0 else _swish_reference(x, alpha=alpha)


_SWISH = declare(
    "Swish",
    24,
    "(Tensor X, *, float alpha=1.0) -> Tensor",
    reference=_swish_reference,
    composite=_swish_composite,
    fake=_like_first,
    check=_swish_check,
)


def swish(X: torch.Tensor, *, alpha: float = 1.0) -> torch.Tensor:
    """ONNX Swish: ``x * sigmoid(alpha * x)``.

    Args:
        X: any shape; float16, bfloat16, float32 or float64.
        alpha: coefficient inside the sigmoid.

    Returns:
        A tensor of X's shape and dtype.

    Raises:
        ValueError: another dtype.

    Source: https://onnx.ai/onnx/operators/onnx__Swish.html
    """
    result: torch.Tensor = _SWISH(X, alpha=alpha)
    return result


def _swiglu_check(a: torch.Tensor, b: torch.Tensor, *, alpha: float = 1.0) -> None:
    check_float("SwiGLU", "A", a)
    check_finite("SwiGLU", "alpha", alpha)
    check_same_dtype("SwiGLU", "B", b, "A", a.dtype)
    if a.shape != b.shape:
        raise invalid("SwiGLU", "B", b, f"the shape of A, {tuple(a.shape)}; nothing is broadcast")


def _swiglu_reference(a: torch.Tensor, b: torch.Tensor, *, alpha: float = 1.0) -> torch.Tensor:
    wide = a.to(torch.promote_types(a.dtype, torch.float32))
    return (wide * torch.sigmoid(alpha * wide) * b).to(a.dtype)


def _swiglu_kernel(a: torch.Tensor, b: torch.Tensor, *, alpha: float = 1.0) -> torch.Tensor:
    if alpha != 1.0 or a.dtype not in (torch.float32, torch.float64):
        return _swiglu_reference(a, b, alpha=alpha).contiguous()
    return torch.nn.functional.silu(a).mul_(b).contiguous()


_SWIGLU = declare(
    "SwiGLU",
    28,
    "(Tensor A, Tensor B, *, float alpha=1.0) -> Tensor",
    reference=_swiglu_reference,
    kernel=_swiglu_kernel,
    fake=_like_first,
    check=_swiglu_check,
    backends=(SWIGLU,),
)


def swiglu(A: torch.Tensor, B: torch.Tensor, *, alpha: float = 1.0) -> torch.Tensor:
    """ONNX SwiGLU: ``A * sigmoid(alpha * A) * B``.

    Args:
        A: the gate; any shape; float16, bfloat16, float32 or float64.
        B: the linear input, of A's shape and dtype.
        alpha: coefficient inside the sigmoid.

    Returns:
        A tensor of A's shape and dtype; float16 and bfloat16 are rounded once.

    Raises:
        ValueError: shapes or dtypes that differ.

    Source: https://onnx.ai/onnx/operators/onnx__SwiGLU.html
    """
    result: torch.Tensor = _SWIGLU(A, B, alpha=alpha)
    return result


def _mish_reference(x: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.tanh(torch.nn.functional.softplus(wide))).to(x.dtype)


_MISH = declare(
    "Mish",
    22,
    "(Tensor X) -> Tensor",
    reference=_mish_reference,
    composite=torch.nn.functional.mish,
    fake=_like_first,
    check=_checker("Mish"),
)


def mish(X: torch.Tensor) -> torch.Tensor:
    """ONNX Mish: ``x * tanh(ln(1 + exp(x)))``.

    Args:
        X: any shape; float16, bfloat16, float32 or float64.

    Returns:
        A tensor of X's shape and dtype.

    Raises:
        ValueError: another dtype.

    Source: https://onnx.ai/onnx/operators/onnx__Mish.html
    """
    result: torch.Tensor = _MISH(X)
    return result


def _hard_swish_reference(x: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * (wide / 6 + 0.5).clamp(0, 1)).to(x.dtype)


_HARD_SWISH = declare(
    "HardSwish",
    22,
    "(Tensor X) -> Tensor",
    reference=_hard_swish_reference,
    composite=torch.nn.functional.hardswish,
    fake=_like_first,
    check=_checker("HardSwish"),
)


def hard_swish(X: torch.Tensor) -> torch.Tensor:
    """ONNX HardSwish: ``x * max(0, min(1, x / 6 + 0.5))``.

    Args:
        X: any shape; float16, bfloat16, float32 or float64.

    Returns:
        A tensor of X's shape and dtype.

    Raises:
        ValueError: another dtype.

    Source: https://onnx.ai/onnx/operators/onnx__HardSwish.html
    """
    result: torch.Tensor = _HARD_SWISH(X)
    return result
