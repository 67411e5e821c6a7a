"""SwiGLU on NVIDIA GPUs: what the Triton kernel takes, and how it is called.

Kernel modules are imported when the first call needs one, so that importing the package needs no Triton.
"""

from __future__ import annotations

import torch

from onnxops_core.native.activations.calls import SwiGLUCall
from onnxops_core.native.declaring.backends import Backend, triton_refuses

__all__ = ["SWIGLU"]


def _swiglu_refuses(call: SwiGLUCall) -> str | None:
    return triton_refuses((call.A, call.B))


def _swiglu_run(call: SwiGLUCall) -> torch.Tensor:
    from onnxops_core.native.activations import triton

    return triton.swiglu(call.A.contiguous(), call.B.contiguous(), call.alpha)


SWIGLU = Backend("Triton", _swiglu_refuses, _swiglu_run)
