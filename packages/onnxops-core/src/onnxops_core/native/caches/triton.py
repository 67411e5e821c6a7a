# Triton has no types, and a kernel's parameters are pointers and numbers of its own.
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def"
"""The write of an update into a cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from onnxops_core.native.declaring.tuning import Settings, autotuned, size_class

__all__ = ["write_update"]


_WRITE_SETTINGS: list[Settings] = [
    ({"TOKENS": tokens, "COLUMNS": columns}, warps, 1)
    for tokens, columns in ((8, 128), (4, 256), (16, 64), (64, 16), (512, 1), (1, 1024))
    for warps in (4, 8)
]


@autotuned(_WRITE_SETTINGS, key=["inner_class"])
@triton.jit(do_not_specialize=["inner_class"])
def _write_kernel(
    cache,
    update,
    starts,
    tokens,
    outer,
    length,
    size,
    inner,
    inner_class,
    HAS_STARTS: tl.constexpr,
    CIRCULAR: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    # Divisions of 64-bit numbers are slow: one for each token, none for its elements.
    parts = tl.cdiv(inner, COLUMNS)
    flat = (tl.program_id(0) // parts).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    row = flat // length
    target = flat % length
    exists = flat < tokens
    if HAS_STARTS:
        target += tl.load(starts + row // outer, mask=exists, other=0)
    if CIRCULAR:
        target = (target % size + size) % size
    column = (tl.program_id(0) % parts).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = exists[:, None] & (column < inner)[None, :]
    moved = tl.load(update + flat[:, None] * inner + column[None, :], mask=inside)
    # A start behind the cache cannot be reported from a kernel; it must not write outside of it.
    inside = inside & ((target >= 0) & (target < size))[:, None]
    tl.store(cache + (row * size + target)[:, None] * inner + column[None, :], moved, mask=inside)


def write_update(
    cache: torch.Tensor, update: torch.Tensor, starts: torch.Tensor | None, axis: int, circular: bool
) -> None:
    """Write a contiguous update into a contiguous cache ``(batch, ..., size, ...)`` of the same dtype, in place."""
    if update.numel() == 0:
        return
    carrier = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[cache.dtype.itemsize]
    inner = cache.shape[axis + 1 :].numel()
    tokens = update.numel() // inner
    _write_kernel[lambda meta: (triton.cdiv(tokens, meta["TOKENS"]) * triton.cdiv(inner, meta["COLUMNS"]),)](
        cache.view(carrier),
        update.view(carrier),
        update if starts is None else starts.contiguous(),
        tokens,
        cache.shape[1:axis].numel(),
        update.shape[axis],
        cache.shape[axis],
        inner,
        size_class(inner, 4096),
        HAS_STARTS=starts is not None,
        CIRCULAR=circular,
    )
