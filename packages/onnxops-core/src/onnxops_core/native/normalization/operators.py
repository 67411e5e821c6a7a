"""RMSNormalization, LayerNormalization, GroupNormalization and InstanceNormalization as torch operators."""

from __future__ import annotations

import torch

from onnxops_core.dtypes import torch_dtype
from onnxops_core.native.declaring.call import public
from onnxops_core.native.declaring.checks import (
    check_choice,
    check_float,
    check_not_negative,
    check_same_dtype,
    invalid,
)
from onnxops_core.native.declaring.declare import declare, like_first_input
from onnxops_core.native.normalization.calls import (
    GroupNormalizationCall,
    InstanceNormalizationCall,
    LayerNormalizationCall,
    RMSNormalizationCall,
    Three,
)
from onnxops_core.native.normalization.cpu import CPU_RMS_NORMALIZATION
from onnxops_core.native.normalization.gpu import LAYER_NORMALIZATION, RMS_NORMALIZATION

__all__ = ["group_normalization", "instance_normalization", "layer_normalization", "rms_normalization"]

_STASH_TYPES = (1, 10, 11, 16)


def _stash_dtype(x: torch.Tensor, stash_type: int) -> torch.dtype:
    """Return the dtype of stage one: never less than float32 or X's own, so that there is one final rounding."""
    return torch.promote_types(torch.promote_types(torch_dtype(stash_type), x.dtype), torch.float32)


def _check_axis_and_scale(
    op: str,
    call: RMSNormalizationCall | LayerNormalizationCall,
    parameters: tuple[tuple[str, torch.Tensor | None], ...],
) -> None:
    x, axis = call.X, call.axis
    check_float(op, "X", x)
    check_not_negative(op, "epsilon", call.epsilon)
    if x.dim() == 0 or not -x.dim() <= axis < x.dim():
        raise invalid(op, "axis", axis, f"a dimension of X, which has rank {x.dim()}")
    check_choice(op, "stash_type", call.stash_type, _STASH_TYPES)
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


def _rms_check(call: RMSNormalizationCall) -> None:
    _check_axis_and_scale("RMSNormalization", call, (("scale", call.scale),))


def _rms_reference(call: RMSNormalizationCall) -> torch.Tensor:
    dtype = _stash_dtype(call.X, call.stash_type)
    wide = call.X.to(dtype)
    mean = (wide * wide).mean(_dims(call.X, call.axis), keepdim=True)
    return (wide * torch.rsqrt(mean + call.epsilon) * call.scale).to(call.scale.dtype)


def _rms_composite(call: RMSNormalizationCall) -> torch.Tensor:
    shape = _normalized_shape(call.X, call.axis)
    if call.scale.dtype != call.X.dtype or list(call.scale.shape) != shape or call.stash_type == 11:
        return _rms_reference(call)
    return torch.nn.functional.rms_norm(call.X, shape, call.scale, call.epsilon)


# With no more elements than these, calls of torch cost more than the work, and one call wins.
_FEW = 1 << 15


def _rms_kernel(call: RMSNormalizationCall) -> torch.Tensor:
    x = call.X
    exact = x.dtype == torch.float64 or (x.dtype == torch.float32 and call.stash_type != 11)
    if not exact or call.scale.dtype != x.dtype or x.numel() <= _FEW:
        return _rms_composite(call).contiguous()
    # One pass for the norm, one to divide, one in place to scale: torch's own makes a tensor of squares
    # first.
    dims = _dims(x, call.axis)
    root = torch.linalg.vector_norm(x, 2, dims, keepdim=True)
    count = x.numel() // root.numel()
    return torch.mul(x, root.square_().div_(count).add_(call.epsilon).rsqrt_()).mul_(call.scale).contiguous()


def _rms_fake(call: RMSNormalizationCall) -> torch.Tensor:
    return call.X.new_empty(call.X.shape, dtype=call.scale.dtype)


_RMS_NORMALIZATION = declare(
    "RMSNormalization",
    23,
    RMSNormalizationCall,
    reference=_rms_reference,
    composite=_rms_composite,
    kernel=_rms_kernel,
    fake=_rms_fake,
    check=_rms_check,
    backends=(CPU_RMS_NORMALIZATION, RMS_NORMALIZATION),
)


rms_normalization = public("rms_normalization", RMSNormalizationCall, _RMS_NORMALIZATION)


def _layer_check(call: LayerNormalizationCall) -> None:
    _check_axis_and_scale("LayerNormalization", call, (("Scale", call.Scale), ("B", call.B)))
    check_same_dtype("LayerNormalization", "Scale", call.Scale, "X", call.X.dtype)
    check_same_dtype("LayerNormalization", "B", call.B, "X", call.X.dtype)
    check_choice("LayerNormalization", "stash_type", call.stash_type, (1, 16))


def _layer_reference(call: LayerNormalizationCall) -> Three:
    wide = call.X.to(_stash_dtype(call.X, call.stash_type))
    dims = _dims(call.X, call.axis)
    mean = wide.mean(dims, keepdim=True)
    centred = wide - mean
    inverse = torch.rsqrt((centred * centred).mean(dims, keepdim=True) + call.epsilon)
    y = centred * inverse * call.Scale
    if call.B is not None:
        y = y + call.B
    stash = torch_dtype(call.stash_type)
    return y.to(call.X.dtype), mean.to(stash), inverse.to(stash)


def _layer_composite(call: LayerNormalizationCall) -> Three:
    x = call.X
    if not _is_plain_layer(call):
        return _layer_reference(call)
    y = torch.nn.functional.layer_norm(x, _normalized_shape(x, call.axis), call.Scale, call.B, call.epsilon)
    # torch.native_layer_norm has the statistics as well, but drops their gradients.
    wide, dims, stash = x.to(_stash_dtype(x, call.stash_type)), _dims(x, call.axis), torch_dtype(call.stash_type)
    variance, mean = torch.var_mean(wide, dims, correction=0, keepdim=True)
    return y, mean.to(stash), torch.rsqrt(variance + call.epsilon).to(stash)


def _layer_kernel(call: LayerNormalizationCall) -> Three:
    if _is_plain_layer(call):
        shape = _normalized_shape(call.X, call.axis)
        y, mean, inverse = torch.native_layer_norm(call.X, shape, call.Scale, call.B, call.epsilon)
    else:
        y, mean, inverse = _layer_reference(call)
    stash = torch_dtype(call.stash_type)
    return y.contiguous(), mean.to(stash).contiguous(), inverse.to(stash).contiguous()


def _is_plain_layer(call: LayerNormalizationCall) -> bool:
    """Tell whether scale and bias have a value for each normalized element, as torch's layer norm wants."""
    shape = _normalized_shape(call.X, call.axis)
    return list(call.Scale.shape) == shape and (call.B is None or list(call.B.shape) == shape)


def _layer_fake(call: LayerNormalizationCall) -> Three:
    x = call.X
    first = call.axis % x.dim()
    shape = [*x.shape[:first], *([1] * (x.dim() - first))]
    stash = torch_dtype(call.stash_type)
    return x.new_empty(x.shape), x.new_empty(shape, dtype=stash), x.new_empty(shape, dtype=stash)


_LAYER_NORMALIZATION = declare(
    "LayerNormalization",
    17,
    LayerNormalizationCall,
    returns=("Y", "Mean", "InvStdDev"),
    reference=_layer_reference,
    composite=_layer_composite,
    kernel=_layer_kernel,
    fake=_layer_fake,
    check=_layer_check,
    backends=(LAYER_NORMALIZATION,),
)


layer_normalization = public("layer_normalization", LayerNormalizationCall, _LAYER_NORMALIZATION)


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


def _group_check(call: GroupNormalizationCall) -> None:
    op = "GroupNormalization"
    _check_channels(op, ("X", "scale", "bias"), call.X, call.scale, call.bias, 2)
    if call.num_groups <= 0 or call.X.shape[1] % call.num_groups:
        raise invalid(op, "num_groups", call.num_groups, f"a divisor of the {call.X.shape[1]} channels")
    check_not_negative(op, "epsilon", call.epsilon)
    check_choice(op, "stash_type", call.stash_type, _STASH_TYPES)


def _group_reference(call: GroupNormalizationCall) -> torch.Tensor:
    x = call.X
    wide = x.to(_stash_dtype(x, call.stash_type)).unflatten(1, (call.num_groups, x.shape[1] // call.num_groups))
    dims = list(range(2, wide.dim()))
    centred = wide - wide.mean(dims, keepdim=True)
    variance = (centred * centred).mean(dims, keepdim=True)
    normalized = (centred * torch.rsqrt(variance + call.epsilon)).flatten(1, 2)
    shape = [-1] + [1] * (x.dim() - 2)
    y: torch.Tensor = normalized * call.scale.view(shape) + call.bias.view(shape)
    return y.to(x.dtype)


def _group_composite(call: GroupNormalizationCall) -> torch.Tensor:
    if call.stash_type == 11:
        return _group_reference(call)
    return torch.group_norm(call.X, call.num_groups, call.scale, call.bias, call.epsilon)


_GROUP_NORMALIZATION = declare(
    "GroupNormalization",
    21,
    GroupNormalizationCall,
    reference=_group_reference,
    composite=_group_composite,
    fake=like_first_input,
    check=_group_check,
)


group_normalization = public("group_normalization", GroupNormalizationCall, _GROUP_NORMALIZATION)


def _instance_check(call: InstanceNormalizationCall) -> None:
    _check_channels("InstanceNormalization", ("input", "scale", "B"), call.input, call.scale, call.B, 3)
    check_not_negative("InstanceNormalization", "epsilon", call.epsilon)


def _instance_reference(call: InstanceNormalizationCall) -> torch.Tensor:
    x = call.input
    groups = GroupNormalizationCall(x, call.scale, call.B, num_groups=x.shape[1], epsilon=call.epsilon)
    return _group_reference(groups)


def _instance_composite(call: InstanceNormalizationCall) -> torch.Tensor:
    if call.input.shape[0] == 0:  # which torch's own refuses
        return _instance_reference(call)
    result: torch.Tensor = torch.instance_norm(
        call.input, call.scale, call.B, None, None, True, 0.0, call.epsilon, False
    )
    return result


_INSTANCE_NORMALIZATION = declare(
    "InstanceNormalization",
    22,
    InstanceNormalizationCall,
    reference=_instance_reference,
    composite=_instance_composite,
    fake=like_first_input,
    check=_instance_check,
)


instance_normalization = public("instance_normalization", InstanceNormalizationCall, _INSTANCE_NORMALIZATION)
