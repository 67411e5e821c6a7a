"""RMSNormalization by the optional C kernel: what it takes, and how it is called."""

from __future__ import annotations

import struct

import torch

from onnxops_core.native.c_kernels import library
from onnxops_core.native.declaring.backends import Backend
from onnxops_core.native.normalization.calls import RMSNormalizationCall

__all__ = ["CPU_RMS_NORMALIZATION"]

_NORMALIZATION = struct.Struct("5qd")


def _rms_refuses(call: RMSNormalizationCall) -> str | None:
    x, scale = call.X, call.scale
    reason = library.refuses(x, scale)
    if reason is not None:
        return reason
    if call.stash_type == 11:
        return "statistics are not float32"
    if scale.shape != x.shape[call.axis :] or not (x.is_contiguous() and scale.is_contiguous()):
        return "scale is broadcast, or a tensor is not dense"
    return None


def _rms_run(call: RMSNormalizationCall) -> torch.Tensor:
    x, scale = call.X, call.scale
    out = torch.empty_like(x)
    columns = scale.numel()
    if columns:
        rows = x.numel() // columns
        packed = _NORMALIZATION.pack(x.data_ptr(), scale.data_ptr(), out.data_ptr(), rows, columns, call.epsilon)
        library.cpu_kernels().onnxops_rms_normalization(packed)
    return out


CPU_RMS_NORMALIZATION = Backend("C", _rms_refuses, _rms_run, "cpu")
