"""SwiGLU on NVIDIA GPUs: what the Triton kernel takes, and how it is called.

Kernel modules are imported when the first call needs one, so that importing the package needs no Triton.
"""

from __future__ import annotations

from typing import Any

import torch

from onnxops_core.native.declaring.backends import Backend, triton_refuses

__all__ = ["SWIGLU"]


def _swiglu_refuses(*args: Any, **attributes: Any) -> str | None:
    return triton_refuses(args)


def _swiglu_run(a: torch.Tensor, b: torch.Tensor, *, alpha: float = 1.0) -> torch.Tensor:
    from onnxops_core.native.activations import triton

    return triton.swiglu(a.contiguous(), b.contiguous(), alpha)


SWIGLU = Backend("Triton", _swiglu_refuses, _swiglu_run)
