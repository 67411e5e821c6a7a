"""MatMulNBits on NVIDIA GPUs: what the Triton kernel takes, and how it is called.

Kernel modules are imported when the first call needs one, so that importing the package needs no Triton.
"""

from __future__ import annotations

from typing import Any

import torch

from onnxops_core.native.declaring.backends import Backend, contiguous_or_none, first_arguments, triton_refuses

__all__ = ["MATMUL_NBITS"]


def _nbits_refuses(*args: Any, **attributes: Any) -> str | None:
    return triton_refuses(args)


def _nbits_run(*args: Any, K: int, N: int, block_size: int, bits: int = 4, **hints: Any) -> torch.Tensor:
    from onnxops_core.native.quantization import triton

    a, b, scales, zero_points, _, bias = first_arguments(args, 6)
    y = triton.matmul_nbits(
        a.reshape(-1, K).contiguous(),
        b.contiguous(),
        scales.contiguous(),
        contiguous_or_none(zero_points),
        contiguous_or_none(bias),
        block_size,
        bits,
    )
    return y.view(*a.shape[:-1], N)


MATMUL_NBITS = Backend("Triton", _nbits_refuses, _nbits_run)
