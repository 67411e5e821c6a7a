# Triton has no types, and a kernel's parameters are pointers and numbers of its own.
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def"
"""SwiGLU, and the write of an update into a cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["swiglu", "write_update"]


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
    """Computes ``a * sigmoid(alpha * a) * b`` of contiguous tensors."""
    out = torch.empty_like(a)
    if a.numel():
        block = 1024
        _swiglu_kernel[(triton.cdiv(a.numel(), block),)](a, b, out, a.numel(), alpha, BLOCK=block, num_warps=4)
    return out


@triton.jit
def _write_kernel(
    cache,
    update,
    starts,
    count,
    outer,
    length,
    size,
    inner,
    HAS_STARTS: tl.constexpr,
    CIRCULAR: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    column = place % inner
    token = place // inner % length
    row = place // (inner * length)
    target = token
    if HAS_STARTS:
        target += tl.load(starts + row // outer, mask=inside, other=0)
    if CIRCULAR:
        target = (target % size + size) % size
    # A start behind the cache cannot be reported from a kernel; it must not write outside of it.
    inside = inside & (target >= 0) & (target < size)
    tl.store(cache + (row * size + target) * inner + column, tl.load(update + place, mask=inside), mask=inside)


def write_update(
    cache: torch.Tensor, update: torch.Tensor, starts: torch.Tensor | None, axis: int, circular: bool
) -> None:
    """Writes a contiguous update into a contiguous cache ``(batch, ..., size, ...)`` of the same dtype, in
    place."""
    if update.numel() == 0:
        return
    carrier = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[cache.dtype.itemsize]
    inner = cache.shape[axis + 1 :].numel()
    block = 1024
    _write_kernel[(triton.cdiv(update.numel(), block),)](
        cache.view(carrier),
        update.view(carrier),
        update if starts is None else starts.contiguous(),
        update.numel(),
        cache.shape[1:axis].numel(),
        update.shape[axis],
        cache.shape[axis],
        inner,
        HAS_STARTS=starts is not None,
        CIRCULAR=circular,
        BLOCK=block,
        num_warps=4,
    )
