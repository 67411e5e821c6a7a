"""MatMulNBits on NVIDIA GPUs: what the Triton kernel takes, and how it is called.

Kernel modules are imported when the first call needs one, so that importing the package needs no Triton.
"""

from __future__ import annotations

import torch

from onnxops_core.native.declaring.backends import Backend, contiguous_or_none, triton_refuses
from onnxops_core.native.declaring.call import inputs_of
from onnxops_core.native.quantization.calls import MatMulNBitsCall

__all__ = ["MATMUL_NBITS"]


def _nbits_refuses(call: MatMulNBitsCall) -> str | None:
    return triton_refuses(inputs_of(call))


def _nbits_run(call: MatMulNBitsCall) -> torch.Tensor:
    from onnxops_core.native.quantization import triton

    y = triton.matmul_nbits(
        call.A.reshape(-1, call.K).contiguous(),
        call.B.contiguous(),
        call.scales.contiguous(),
        contiguous_or_none(call.zero_points),
        contiguous_or_none(call.bias),
        call.block_size,
        call.bits,
    )
    return y.view(*call.A.shape[:-1], call.N)


MATMUL_NBITS = Backend("Triton", _nbits_refuses, _nbits_run)
