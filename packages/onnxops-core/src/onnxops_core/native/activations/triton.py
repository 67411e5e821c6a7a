# Triton has no types, and a kernel's parameters are pointers and numbers of its own.
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def"
"""SwiGLU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from onnxops_core.native.declaring.tuning import autotuned

__all__ = ["swiglu"]


@autotuned([({"BLOCK": block}, warps, 1) for block in (1024, 2048, 4096, 8192) for warps in (4, 8)], key=[])
@triton.jit
def _swiglu_kernel(a, b, out, count, alpha, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    gate = tl.load(a + place, mask=inside, other=0.0)
    value = tl.load(b + place, mask=inside, other=0.0).to(tl.float32)
    wide = gate.to(tl.float32)
    # Dividing by one plus an exponential that may be infinite is exact: it gives zero.
    tl.store(out + place, (wide / (1.0 + tl.exp(-alpha * wide)) * value).to(gate.dtype), mask=inside)


def swiglu(a: torch.Tensor, b: torch.Tensor, alpha: float) -> torch.Tensor:
    """Compute ``a * sigmoid(alpha * a) * b`` of contiguous tensors."""
    out = torch.empty_like(a)
    if a.numel():
        _swiglu_kernel[lambda meta: (triton.cdiv(a.numel(), meta["BLOCK"]),)](a, b, out, a.numel(), alpha)
    return out
