"""The parameters of the normalizations."""

from __future__ import annotations

from dataclasses import KW_ONLY

import torch

from onnxops_core.native.declaring.call import Call, operator_call

__all__ = [
    "GroupNormalizationCall",
    "InstanceNormalizationCall",
    "LayerNormalizationCall",
    "RMSNormalizationCall",
    "SkipLayerNormalizationCall",
    "SkipSimplifiedLayerNormalizationCall",
    "Three",
    "Two",
]


Two = tuple[torch.Tensor, torch.Tensor]
Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@operator_call
class RMSNormalizationCall(Call[torch.Tensor]):
    """ONNX RMSNormalization: divides by the root of the mean square over the last dimensions, then scales.

    Args:
        X: any rank from 1; float16, bfloat16, float32 or float64.
        scale: broadcasts to X's shape; a float dtype, which is also the result's.
        axis: the first normalized dimension; those after it are normalized together with it.
        epsilon: added to the mean square.
        stash_type: the ONNX dtype integer in which statistics are computed; at least float32 is used.

    Returns:
        A tensor of X's shape and scale's dtype.

    Raises:
        ValueError: shapes, dtypes or attributes that the specification forbids.

    Source: https://onnx.ai/onnx/operators/onnx__RMSNormalization.html
    """

    X: torch.Tensor
    scale: torch.Tensor
    _: KW_ONLY
    axis: int = -1
    epsilon: float = 1e-5
    stash_type: int = 1


@operator_call
class LayerNormalizationCall(Call[Three]):
    """ONNX LayerNormalization: zero mean and unit variance over the last dimensions, then scale and bias.

    Args:
        X: any rank from 1; float16, bfloat16, float32 or float64.
        Scale: broadcasts to X's shape; X's dtype.
        B: as ``Scale``; zero if None.
        axis: the first normalized dimension.
        epsilon: added to the variance.
        stash_type: the ONNX dtype integer of Mean and InvStdDev, 1 (float32) or 16 (bfloat16); statistics are
            computed in float32 at least.

    Returns:
        ``(Y, Mean, InvStdDev)``: Y as X; the statistics have X's shape with ones from ``axis`` on.

    Raises:
        ValueError: shapes, dtypes or attributes that the specification forbids.

    Source: https://onnx.ai/onnx/operators/onnx__LayerNormalization.html
    """

    X: torch.Tensor
    Scale: torch.Tensor
    B: torch.Tensor | None = None
    _: KW_ONLY
    axis: int = -1
    epsilon: float = 1e-5
    stash_type: int = 1


@operator_call
class GroupNormalizationCall(Call[torch.Tensor]):
    """ONNX GroupNormalization: zero mean and unit variance per sample and group of channels, then scale and bias.

    Args:
        X: ``(batch, channels, ...)``; float16, bfloat16, float32 or float64.
        scale: ``(channels,)`` of X's dtype.
        bias: ``(channels,)`` of X's dtype.
        num_groups: a divisor of the number of channels.
        epsilon: added to the variance.
        stash_type: the ONNX dtype integer in which statistics are computed; at least float32 is used.

    Returns:
        A tensor of X's shape and dtype.

    Raises:
        ValueError: shapes, dtypes or attributes that the specification forbids.

    Source: https://onnx.ai/onnx/operators/onnx__GroupNormalization.html
    """

    X: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor
    _: KW_ONLY
    num_groups: int
    epsilon: float = 1e-5
    stash_type: int = 1


@operator_call
class InstanceNormalizationCall(Call[torch.Tensor]):
    """ONNX InstanceNormalization: zero mean and unit variance per sample and channel, then scale and bias.

    Args:
        input: ``(batch, channels, ...)`` with at least one more dimension; a float dtype.
        scale: ``(channels,)`` of the input's dtype.
        B: ``(channels,)`` of the input's dtype.
        epsilon: added to the variance.

    Returns:
        A tensor of the input's shape and dtype.

    Raises:
        ValueError: shapes or dtypes that the specification forbids.

    Source: https://onnx.ai/onnx/operators/onnx__InstanceNormalization.html
    """

    input: torch.Tensor
    scale: torch.Tensor
    B: torch.Tensor
    _: KW_ONLY
    epsilon: float = 1e-5


@operator_call
class SkipLayerNormalizationCall(Call[Two]):
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

    input: torch.Tensor
    skip: torch.Tensor
    gamma: torch.Tensor
    beta: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    _: KW_ONLY
    epsilon: float = 1e-12


@operator_call
class SkipSimplifiedLayerNormalizationCall(Call[Two]):
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

    input: torch.Tensor
    skip: torch.Tensor
    gamma: torch.Tensor
    bias: torch.Tensor | None = None
    _: KW_ONLY
    epsilon: float = 1e-12
