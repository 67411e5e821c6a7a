"""Normalizations on NVIDIA GPUs: what the Triton kernel takes, and how it is called.

Kernel modules are imported when the first call needs one, so that importing the package needs no Triton.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from onnxops_core.dtypes import torch_dtype
from onnxops_core.native.declaring.backends import Backend, contiguous_or_none, first_arguments, triton_refuses

__all__ = [
    "LAYER_NORMALIZATION",
    "RMS_NORMALIZATION",
    "SKIP_LAYER_NORMALIZATION",
    "SKIP_SIMPLIFIED_LAYER_NORMALIZATION",
]

_LARGEST_ROW = 1 << 15


def _columns(x: torch.Tensor, axis: int) -> int:
    return math.prod(x.shape[axis:] if axis >= 0 else x.shape[x.dim() + axis :])


def _norm_refuses(*args: Any, axis: int = -1, stash_type: int = 1, **attributes: Any) -> str | None:
    reason = triton_refuses(args)
    if reason is not None:
        return reason
    x = args[0]
    columns = _columns(x, axis)
    if columns > _LARGEST_ROW:
        return f"a row of {columns} elements does not fit into one program"
    if stash_type == 11:
        return "statistics in float64 would be computed in float32"
    if any(parameter is not None and parameter.numel() != columns for parameter in args[1:]):
        return "a parameter is broadcast"
    return None


def _rms_run(
    x: torch.Tensor, scale: torch.Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> torch.Tensor:
    from onnxops_core.native.normalization import triton

    columns = _columns(x, axis)
    return triton.normalize(x.contiguous(), scale.contiguous(), columns, epsilon, centre=False)[0]


RMS_NORMALIZATION = Backend("Triton", _norm_refuses, _rms_run)


def _layer_run(*args: Any, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
    from onnxops_core.native.normalization import triton

    x, scale, bias = first_arguments(args, 3)
    y, _, mean, inverse = triton.normalize(
        x.contiguous(),
        scale.contiguous(),
        _columns(x, axis),
        epsilon,
        centre=True,
        shift=None if bias is None else bias.contiguous(),
        statistics=True,
    )
    assert mean is not None
    assert inverse is not None
    first = axis % x.dim()
    shape = [*x.shape[:first], *([1] * (x.dim() - first))]
    stash = torch_dtype(stash_type)
    return y, mean.view(shape).to(stash), inverse.view(shape).to(stash)


LAYER_NORMALIZATION = Backend("Triton", _norm_refuses, _layer_run)


def _skip_refuses(*args: Any, **attributes: Any) -> str | None:
    reason = triton_refuses(args)
    if reason is None and args[0].shape[-1] > _LARGEST_ROW:
        reason = f"a row of {args[0].shape[-1]} elements does not fit into one program"
    return reason


def _skip_run(centre: bool, args: tuple[Any, ...], epsilon: float) -> Any:
    from onnxops_core.native.normalization import triton

    if centre:
        x, skip, gamma, beta, bias = first_arguments(args, 5)
    else:
        x, skip, gamma, bias = first_arguments(args, 4)
        beta = None
    y, total, _, _ = triton.normalize(
        x.contiguous(),
        gamma.contiguous(),
        x.shape[-1],
        epsilon,
        centre=centre,
        shift=contiguous_or_none(beta),
        skip=skip.contiguous(),
        bias=contiguous_or_none(bias),
        total=True,
    )
    return y, total


def _skip_layer_run(*args: Any, epsilon: float = 1e-12) -> Any:
    return _skip_run(True, args, epsilon)


def _skip_simplified_run(*args: Any, epsilon: float = 1e-12) -> Any:
    return _skip_run(False, args, epsilon)


SKIP_LAYER_NORMALIZATION = Backend("Triton", _skip_refuses, _skip_layer_run)
SKIP_SIMPLIFIED_LAYER_NORMALIZATION = Backend("Triton", _skip_refuses, _skip_simplified_run)
