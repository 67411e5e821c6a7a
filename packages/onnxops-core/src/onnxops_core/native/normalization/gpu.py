"""Normalizations on NVIDIA GPUs: what the Triton kernel takes, and how it is called.

Kernel modules are imported when the first call needs one, so that importing the package needs no Triton.
"""

from __future__ import annotations

import math

import torch

from onnxops_core.dtypes import torch_dtype
from onnxops_core.native.declaring.backends import Backend, contiguous_or_none, triton_refuses
from onnxops_core.native.declaring.call import inputs_of
from onnxops_core.native.normalization.calls import (
    LayerNormalizationCall,
    RMSNormalizationCall,
    SkipLayerNormalizationCall,
    SkipSimplifiedLayerNormalizationCall,
    Three,
    Two,
)

__all__ = [
    "LAYER_NORMALIZATION",
    "RMS_NORMALIZATION",
    "SKIP_NORMALIZATION",
]

_LARGEST_ROW = 1 << 15


def _columns(x: torch.Tensor, axis: int) -> int:
    return math.prod(x.shape[axis:] if axis >= 0 else x.shape[x.dim() + axis :])


def _norm_refuses(call: RMSNormalizationCall | LayerNormalizationCall) -> str | None:
    reason = triton_refuses(inputs_of(call))
    if reason is not None:
        return reason
    columns = _columns(call.X, call.axis)
    if columns > _LARGEST_ROW:
        return f"a row of {columns} elements does not fit into one program"
    if call.stash_type == 11:
        return "statistics in float64 would be computed in float32"
    if any(parameter is not None and parameter.numel() != columns for parameter in inputs_of(call)[1:]):
        return "a parameter is broadcast"
    return None


def _rms_run(call: RMSNormalizationCall) -> torch.Tensor:
    from onnxops_core.native.normalization import triton

    columns = _columns(call.X, call.axis)
    return triton.normalize(call.X.contiguous(), call.scale.contiguous(), columns, call.epsilon, centre=False)[0]


RMS_NORMALIZATION = Backend("Triton", _norm_refuses, _rms_run)


def _layer_run(call: LayerNormalizationCall) -> Three:
    from onnxops_core.native.normalization import triton

    x = call.X
    y, _, mean, inverse = triton.normalize(
        x.contiguous(),
        call.Scale.contiguous(),
        _columns(x, call.axis),
        call.epsilon,
        centre=True,
        shift=contiguous_or_none(call.B),
        statistics=True,
    )
    assert mean is not None
    assert inverse is not None
    first = call.axis % x.dim()
    shape = [*x.shape[:first], *([1] * (x.dim() - first))]
    stash = torch_dtype(call.stash_type)
    return y, mean.view(shape).to(stash), inverse.view(shape).to(stash)


LAYER_NORMALIZATION = Backend("Triton", _norm_refuses, _layer_run)


_SkipCall = SkipLayerNormalizationCall | SkipSimplifiedLayerNormalizationCall


def _skip_refuses(call: _SkipCall) -> str | None:
    reason = triton_refuses(inputs_of(call))
    if reason is None and call.input.shape[-1] > _LARGEST_ROW:
        reason = f"a row of {call.input.shape[-1]} elements does not fit into one program"
    return reason


def _skip_run(call: _SkipCall) -> Two:
    from onnxops_core.native.normalization import triton

    centre = isinstance(call, SkipLayerNormalizationCall)
    y, total, _, _ = triton.normalize(
        call.input.contiguous(),
        call.gamma.contiguous(),
        call.input.shape[-1],
        call.epsilon,
        centre=centre,
        shift=contiguous_or_none(call.beta) if isinstance(call, SkipLayerNormalizationCall) else None,
        skip=call.skip.contiguous(),
        bias=contiguous_or_none(call.bias),
        total=True,
    )
    assert total is not None
    return y, total


SKIP_NORMALIZATION = Backend("Triton", _skip_refuses, _skip_run)
