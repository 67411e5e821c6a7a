"""The parameters of Gelu, Swish, SwiGLU, Mish and HardSwish."""

from __future__ import annotations

from dataclasses import KW_ONLY

import torch

from onnxops_core.native.declaring.call import Call, operator_call

__all__ = ["GeluCall", "HardSwishCall", "MishCall", "SwiGLUCall", "SwishCall"]


@operator_call
class GeluCall(Call[torch.Tensor]):
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

    X: torch.Tensor
    _: KW_ONLY
    approximate: str = "none"


@operator_call
class SwishCall(Call[torch.Tensor]):
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

    X: torch.Tensor
    _: KW_ONLY
    alpha: float = 1.0


@operator_call
class SwiGLUCall(Call[torch.Tensor]):
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

    A: torch.Tensor
    B: torch.Tensor
    _: KW_ONLY
    alpha: float = 1.0


@operator_call
class MishCall(Call[torch.Tensor]):
    """ONNX Mish: ``x * tanh(ln(1 + exp(x)))``.

    Args:
        X: any shape; float16, bfloat16, float32 or float64.

    Returns:
        A tensor of X's shape and dtype.

    Raises:
        ValueError: another dtype.

    Source: https://onnx.ai/onnx/operators/onnx__Mish.html
    """

    X: torch.Tensor


@operator_call
class HardSwishCall(Call[torch.Tensor]):
    """ONNX HardSwish: ``x * max(0, min(1, x / 6 + 0.5))``.

    Args:
        X: any shape; float16, bfloat16, float32 or float64.

    Returns:
        A tensor of X's shape and dtype.

    Raises:
        ValueError: another dtype.

    Source: https://onnx.ai/onnx/operators/onnx__HardSwish.html
    """

    X: torch.Tensor
