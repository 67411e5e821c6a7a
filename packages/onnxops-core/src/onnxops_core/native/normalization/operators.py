"""RMSNormalization, LayerNormalization, GroupNormalization and InstanceNormalization as torch operators."""

from __future__ import annotations

import torch

from onnxops_core.dtypes import torch_dtype
from onnxops_core.native.c_kernels.library import CPU_RMS_NORMALIZATION
from onnxops_core.native.declaring.checks import (
    check_choice,
    check_float,
    check_not_negative,
    check_same_dtype,
    invalid,
)
from onnxops_core.native.declaring.declare import declare
from onnxops_core.native.normalization.gpu import LAYER_NORMALIZATION, RMS_NORMALIZATION

__all__ = ["group_normalization", "instance_normalization", "layer_normalization", "rms_normalization"]

_STASH_TYPES = (1, 10, 11, 16)


def _stash_dtype(x: torch.Tensor, stash_type: int) -> torch.dtype:
    """The dtype of stage one: never less than float32 or X's own, so that there is one final rounding."""
    return torch.promote_types(torch.promote_types(torch_dtype(stash_type), x.dtype), torch.float32)


def _check_axis_and_scale(
    op: str,
    x: torch.Tensor,
    axis: int,
    epsilon: float,
    stash_type: int,
    parameters: tuple[tuple[str, torch.Tensor | None], ...],
) -> None:
    check_float(op, "X", x)
    check_not_negative(op, "epsilon", epsilon)
    if x.dim() == 0 or not -x.dim() <= axis < x.dim():
        raise invalid(op, "axis", axis, f"a dimension of X, which has rank {x.dim()}")
    check_choice(op, "stash_type", stash_type, _STASH_TYPES)
    for name, tensor in parameters:
        if tensor is None:
            continue
        check_float(op, name, tensor)
        if tensor.dim() > x.dim() or any(
            size not in (1, full) for size, full in zip(tensor.shape[::-1], x.shape[::-1], strict=False)
        ):
            raise invalid(op, name, tensor, f"a shape that broadcasts to that of X, {tuple(x.shape)}")


def _normalized_shape(x: torch.Tensor, axis: int) -> list[int]:
    return list(x.shape[axis if axis >= 0 else x.dim() + axis :])


def _dims(x: torch.Tensor, axis: int) -> list[int]:
    return list(range(axis % x.dim(), x.dim()))


def _rms_check(
    x: torch.Tensor, scale: torch.Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> None:
    _check_axis_and_scale("RMSNormalization", x, axis, epsilon, stash_type, (("scale", scale),))


def _rms_reference(
    x: torch.Tensor, scale: torch.Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> torch.Tensor:
    dtype = _stash_dtype(x, stash_type)
    wide = x.to(dtype)
    mean = (wide * wide).mean(_dims(x, axis), keepdim=True)
    return (wide * torch.rsqrt(mean + epsilon) * scale).to(scale.dtype)


def _rms_composite(
    x: torch.Tensor, scale: torch.Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> torch.Tensor:
    shape = _normalized_shape(x, axis)
    if scale.dtype != x.dtype or list(scale.shape) != shape or stash_type == 11:
        return _rms_reference(x, scale, axis=axis, epsilon=epsilon, stash_type=stash_type)
    return torch.nn.functional.rms_norm(x, shape, scale, epsilon)


# With no more elements than these, calls of torch cost more than the work, and one call wins.
_FEW = 1 << 15


def _rms_kernel(
    x: torch.Tensor, scale: torch.Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> torch.Tensor:
    exact = x.dtype == torch.float64 or (x.dtype == torch.float32 and stash_type != 11)
    if not exact or scale.dtype != x.dtype or x.numel() <= _FEW:
        return _rms_composite(x, scale, axis=axis, epsilon=epsilon, stash_type=stash_type).contiguous()
    # One pass for the norm, one to divide, one in place to scale: torch's own makes a tensor of squares
    # first.
    dims = _dims(x, axis)
    root = torch.linalg.vector_norm(x, 2, dims, keepdim=True)
    count = x.numel() // root.numel()
    return torch.mul(x, root.square_().div_(count).add_(epsilon).rsqrt_()).mul_(scale).contiguous()


def _rms_fake(x: torch.Tensor, scale: torch.Tensor, **attributes: object) -> torch.Tensor:
    return x.new_empty(x.shape, dtype=scale.dtype)


_RMS_NORMALIZATION = declare(
    "RMSNormalization",
    23,
    "(Tensor X, Tensor scale, *, int axis=-1, float epsilon=1e-05, int stash_type=1) -> Tensor",
    reference=_rms_reference,
    composite=_rms_composite,
    kernel=_rms_kernel,
    fake=_rms_fake,
    check=_rms_check,
    backends=(CPU_RMS_NORMALIZATION, RMS_NORMALIZATION),
)


def rms_normalization(
    X: torch.Tensor, scale: torch.Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> torch.Tensor:
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
    result: torch.Tensor = _RMS_NORMALIZATION(X, scale, axis=axis, epsilon=epsilon, stash_type=stash_type)
    return result


def _layer_check(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> None:
    _check_axis_and_scale("LayerNormalization", x, axis, epsilon, stash_type, (("Scale", scale), ("B", bias)))
    check_same_dtype("LayerNormalization", "Scale", scale, "X", x.dtype)
    check_same_dtype("LayerNormalization", "B", bias, "X", x.dtype)
    check_choice("LayerNormalization", "stash_type", stash_type, (1, 16))


Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _layer_reference(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Three:
    wide = x.to(_stash_dtype(x, stash_type))
    dims = _dims(x, axis)
    mean = wide.mean(dims, keepdim=True)
    centred = wide - mean
    inverse = torch.rsqrt((centred * centred).mean(dims, keepdim=True) + epsilon)
    y = centred * inverse * scale
    if bias is not None:
        y = y + bias
    stash = torch_dtype(stash_type)
    return y.to(x.dtype), mean.to(stash), inverse.to(stash)


def _layer_composite(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Three:
    if not _is_plain_layer(x, scale, bias, axis):
        return _layer_reference(x, scale, bias, axis=axis, epsilon=epsilon, stash_type=stash_type)
    y = torch.nn.functional.layer_norm(x, _normalized_shape(x, axis), scale, bias, epsilon)
    # torch.native_layer_norm has the statistics as well, but drops their gradients.
    wide, dims, stash = x.to(_stash_dtype(x, stash_type)), _dims(x, axis), torch_dtype(stash_type)
    variance, mean = torch.var_mean(wide, dims, correction=0, keepdim=True)
    return y, mean.to(stash), torch.rsqrt(variance + epsilon).to(stash)


def _layer_kernel(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Three:
    if _is_plain_layer(x, scale, bias, axis):
        y, mean, inverse = torch.native_layer_norm(x, _normalized_shape(x, axis), scale, bias, epsilon)
    else:
        y, mean, inverse = _layer_reference(x, scale, bias, axis=axis, epsilon=epsilon, stash_type=stash_type)
    stash = torch_dtype(stash_type)
    return y.contiguous(), mean.to(stash).contiguous(), inverse.to(stash).contiguous()


def _is_plain_layer(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, axis: int) -> bool:
    """Whether scale and bias have a value for each normalized element, as torch's layer norm wants."""
    shape = _normalized_shape(x, axis)
    return list(scale.shape) == shape and (bias is None or list(bias.shape) == shape)


def _layer_fake(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Three:
    first = axis % x.dim()
    shape = [*x.shape[:first], *([1] * (x.dim() - first))]
    stash = torch_dtype(stash_type)
    return x.new_empty(x.shape), x.new_empty(shape, dtype=stash), x.new_empty(shape, dtype=stash)


_LAYER_NORMALIZATION = declare(
    "LayerNormalization",
    17,
    "(Tensor X, Tensor Scale, Tensor? B=None, *, int axis=-1, float epsilon=1e-05, int stash_type=1) "
    "-> (Tensor Y, Tensor Mean, Tensor InvStdDev)",
    reference=_layer_reference,
    composite=_layer_composite,
    kernel=_layer_kernel,
    fake=_layer_fake,
    check=_layer_check,
    backends=(LAYER_NORMALIZATION,),
)


def layer_normalization(
    X: torch.Tensor,
    Scale: torch.Tensor,
    B: torch.Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Three:
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
    result: Three = _LAYER_NORMALIZATION(X, Scale, B, axis=axis, epsilon=epsilon, stash_type=stash_type)
    return result


def _check_channels(
    op: str, names: tuple[str, str, str], x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, least: int
) -> None:
    check_float(op, names[0], x)
    if x.dim() < least:
        raise invalid(op, names[0], x, f"rank {least} or more, (batch, channels, ...)")
    for name, tensor in ((names[1], scale), (names[2], bias)):
        check_same_dtype(op, name, tensor, names[0], x.dtype)
        if tuple(tensor.shape) != (x.shape[1],):
            raise invalid(op, name, tensor, f"shape ({x.shape[1]},), the channels of {names[0]}")


def _group_check(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> None:
    op = "GroupNormalization"
    _check_channels(op, ("X", "scale", "bias"), x, scale, bias, 2)
    if num_groups <= 0 or x.shape[1] % num_groups:
        raise invalid(op, "num_groups", num_groups, f"a divisor of the {x.shape[1]} channels")
    check_not_negative(op, "epsilon", epsilon)
    check_choice(op, "stash_type", stash_type, _STASH_TYPES)


def _group_reference(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> torch.Tensor:
    wide = x.to(_stash_dtype(x, stash_type)).unflatten(1, (num_groups, x.shape[1] // num_groups))
    dims = list(range(2, wide.dim()))
    centred = wide - wide.mean(dims, keepdim=True)
    variance = (centred * centred).mean(dims, keepdim=True)
    normalized = (centred * torch.rsqrt(variance + epsilon)).flatten(1, 2)
    shape = [-1] + [1] * (x.dim() - 2)
    y: torch.Tensor = normalized * scale.view(shape) + bias.view(shape)
    return y.to(x.dtype)


def _group_composite(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> torch.Tensor:
    if stash_type == 11:
        return _group_reference(x, scale, bias, num_groups=num_groups, epsilon=epsilon, stash_type=stash_type)
    return torch.group_norm(x, num_groups, scale, bias, epsilon)


def _like_first(x: torch.Tensor, *args: object, **attributes: object) -> torch.Tensor:
    return x.new_empty(x.shape)


_GROUP_NORMALIZATION = declare(
    "GroupNormalization",
    21,
    "(Tensor X, Tensor scale, Tensor bias, *, int num_groups, float epsilon=1e-05, int stash_type=1) -> Tensor",
    reference=_group_reference,
    composite=_group_composite,
    fake=_like_first,
    check=_group_check,
)


def group_normalization(
    X: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> torch.Tensor:
    """ONNX GroupNormalization: zero mean and unit variance per sample and group of channels, then scale and
    bias.

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
    result: torch.Tensor = _GROUP_NORMALIZATION(
        X, scale, bias, num_groups=num_groups, epsilon=epsilon, stash_type=stash_type
    )
    return result


def _instance_check(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, *, epsilon: float = 1e-5) -> None:
    _check_channels("InstanceNormalization", ("input", "scale", "B"), x, scale, bias, 3)
    check_not_negative("InstanceNormalization", "epsilon", epsilon)


def _instance_reference(
    x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, *, epsilon: float = 1e-5
) -> torch.Tensor:
    return _group_reference(x, scale, bias, num_groups=x.shape[1], epsilon=epsilon)


def _instance_composite(
    x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, *, epsilon: float = 1e-5
) -> torch.Tensor:
    if x.shape[0] == 0:  # which torch's own refuses
        return _instance_reference(x, scale, bias, epsilon=epsilon)
    result: torch.Tensor = torch.instance_norm(x, scale, bias, None, None, True, 0.0, epsilon, False)
    return result


_INSTANCE_NORMALIZATION = declare(
    "InstanceNormalization",
    22,
    "(Tensor input, Tensor scale, Tensor B, *, float epsilon=1e-05) -> Tensor",
    reference=_instance_reference,
    composite=_instance_composite,
    fake=_like_first,
    check=_instance_check,
)


def instance_normalization(
    input: torch.Tensor, scale: torch.Tensor, B: torch.Tensor, *, epsilon: float = 1e-5
) -> torch.Tensor:
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
    result: torch.Tensor = _INSTANCE_NORMALIZATION(input, scale, B, epsilon=epsilon)
    return result
