"""SkipLayerNormalization and SkipSimplifiedLayerNormalization of the com.microsoft domain."""

from __future__ import annotations

import torch

from onnxops_core.native.declaring.checks import (
    check_float,
    check_not_negative,
    check_same_dtype,
    invalid,
)
from onnxops_core.native.declaring.declare import declare
from onnxops_core.native.normalization.gpu import SKIP_LAYER_NORMALIZATION, SKIP_SIMPLIFIED_LAYER_NORMALIZATION

__all__ = ["skip_layer_normalization", "skip_simplified_layer_normalization"]

Two = tuple[torch.Tensor, torch.Tensor]


def _check_skip(
    op: str, x: torch.Tensor, skip: torch.Tensor, epsilon: float, vectors: tuple[tuple[str, torch.Tensor | None], ...]
) -> None:
    check_float(op, "input", x)
    check_not_negative(op, "epsilon", epsilon)
    if x.dim() not in (2, 3):
        raise invalid(op, "input", x, "(batch, sequence, hidden) or (tokens, hidden)")
    check_same_dtype(op, "skip", skip, "input", x.dtype)
    shapes = [tuple(x.shape)]
    if x.dim() == 3:
        shapes += [(1, *x.shape[1:]), tuple(x.shape[1:])]
    if tuple(skip.shape) not in shapes:
        raise invalid(op, "skip", skip, f"a shape out of {shapes}")
    for name, tensor in vectors:
        check_same_dtype(op, name, tensor, "input", x.dtype)
        if tensor is not None and tuple(tensor.shape) != (x.shape[-1],):
            raise invalid(op, name, tensor, f"shape ({x.shape[-1]},)")


def _wide_sum(x: torch.Tensor, skip: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    total = x.to(torch.promote_types(x.dtype, torch.float32)) + skip
    return total if bias is None else total + bias


def _skip_layer_check(
    x: torch.Tensor,
    skip: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> None:
    _check_skip("SkipLayerNormalization", x, skip, epsilon, (("gamma", gamma), ("beta", beta), ("bias", bias)))


def _skip_layer_reference(
    x: torch.Tensor,
    skip: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> Two:
    total = _wide_sum(x, skip, bias)
    centred = total - total.mean(-1, keepdim=True)
    y = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + epsilon) * gamma
    return (y if beta is None else y + beta).to(x.dtype), total.to(x.dtype)


def _skip_layer_composite(
    x: torch.Tensor,
    skip: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> Two:
    total = _wide_sum(x, skip, bias)
    wide_beta = None if beta is None else beta.to(total.dtype)
    y = torch.nn.functional.layer_norm(total, (x.shape[-1],), gamma.to(total.dtype), wide_beta, epsilon)
    return y.to(x.dtype), total.to(x.dtype)


def _skip_fake(x: torch.Tensor, *args: object, **attributes: object) -> Two:
    return x.new_empty(x.shape), x.new_empty(x.shape)


_SKIP_LAYER = declare(
    "SkipLayerNormalization",
    1,
    "(Tensor input, Tensor skip, Tensor gamma, Tensor? beta=None, Tensor? bias=None, *, float epsilon=1e-12) "
    "-> (Tensor output, Tensor input_skip_bias_sum)",
    domain="com.microsoft",
    reference=_skip_layer_reference,
    composite=_skip_layer_composite,
    fake=_skip_fake,
    check=_skip_layer_check,
    backends=(SKIP_LAYER_NORMALIZATION,),
    output_positions=(0, 3),
    extensions=(torch.float64,),
)


def skip_layer_normalization(
    input: torch.Tensor,
    skip: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> Two:
    """com.microsoft SkipLayerNormalization: layer normalization of ``input + skip + bias``.

    Args:
        input: ``(batch, sequence, hidden)`` or ``(tokens, hidden)``; float16, bfloat16 or float32, and beyond ONNX
            Runtime float64.
        skip: the input's shape, or for 3-D inputs ``(1, sequence, hidden)`` or ``(sequence, hidden)``.
        gamma: ``(hidden,)``, the scale.
        beta: ``(hidden,)``, added after scaling.
        bias: ``(hidden,)``, added before normalizing.
        epsilon: added to the variance.

    Returns:
        ``(output, input_skip_bias_sum)``, the first and the fourth ONNX output; both of the input's shape and
        dtype.

    Raises:
        ValueError: shapes or dtypes that the operator does not take.

    Source:
        https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.SkipLayerNormalization
    """
    result: Two = _SKIP_LAYER(input, skip, gamma, beta, bias, epsilon=epsilon)
    return result


def _skip_simplified_check(
    x: torch.Tensor,
    skip: torch.Tensor,
    gamma: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> None:
    _check_skip("SkipSimplifiedLayerNormalization", x, skip, epsilon, (("gamma", gamma), ("bias", bias)))


def _skip_simplified_reference(
    x: torch.Tensor,
    skip: torch.Tensor,
    gamma: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> Two:
    total = _wide_sum(x, skip, bias)
    y = total * torch.rsqrt((total * total).mean(-1, keepdim=True) + epsilon) * gamma
    return y.to(x.dtype), total.to(x.dtype)


def _skip_simplified_composite(
    x: torch.Tensor,
    skip: torch.Tensor,
    gamma: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> Two:
    total = _wide_sum(x, skip, bias)
    y = torch.nn.functional.rms_norm(total, (x.shape[-1],), gamma.to(total.dtype), epsilon)
    return y.to(x.dtype), total.to(x.dtype)


_SKIP_SIMPLIFIED = declare(
    "SkipSimplifiedLayerNormalization",
    1,
    "(Tensor input, Tensor skip, Tensor gamma, Tensor? bias=None, *, float epsilon=1e-12) "
    "-> (Tensor output, Tensor input_skip_bias_sum)",
    domain="com.microsoft",
    reference=_skip_simplified_reference,
    composite=_skip_simplified_composite,
    fake=_skip_fake,
    check=_skip_simplified_check,
    backends=(SKIP_SIMPLIFIED_LAYER_NORMALIZATION,),
    output_positions=(0, 3),
    extensions=(torch.float64,),
)


def skip_simplified_layer_normalization(
    input: torch.Tensor,
    skip: torch.Tensor,
    gamma: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> Two:
    """com.microsoft SkipSimplifiedLayerNormalization: RMS normalization of ``input + skip + bias``.

    Args:
        input: ``(batch, sequence, hidden)`` or ``(tokens, hidden)``; float16, bfloat16 or float32, and beyond ONNX
            Runtime float64.
        skip: the input's shape, or for 3-D inputs ``(1, sequence, hidden)`` or ``(sequence, hidden)``.
        gamma: ``(hidden,)``, the scale.
        bias: ``(hidden,)``, added before normalizing.
        epsilon: added to the mean square.

    Returns:
        ``(output, input_skip_bias_sum)``, the first and the fourth ONNX output; both of the input's shape and
        dtype.

    Raises:
        ValueError: shapes or dtypes that the operator does not take.

    Source:
        https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.SkipSimplifiedLayerNormalization
    """
    result: Two = _SKIP_SIMPLIFIED(input, skip, gamma, bias, epsilon=epsilon)
    return result
