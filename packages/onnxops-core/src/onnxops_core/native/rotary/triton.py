# Triton has no types, and a kernel's parameters are pointers and numbers of its own.
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def"
"""RotaryEmbedding in one pass: both layouts, with or without positions, features that are not rotated included."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from onnxops_core.native.declaring.tuning import Settings, autotuned

__all__ = ["rotary"]


_SETTINGS: list[Settings] = [({"BLOCK_HEADS": heads}, warps, 1) for heads in (4, 1, 8, 16, 32) for warps in (2, 4, 8)]


@autotuned(_SETTINGS, key=["heads", "HALF", "REST", "INTERLEAVED"])
@triton.jit
def _rotary_kernel(
    x,
    cos,
    sin,
    positions,
    out,
    length,
    heads,
    x_batch,
    x_head,
    x_token,
    out_batch,
    out_head,
    out_token,
    cache_batch,
    cache_row,
    cache_rows,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_POSITIONS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    batch = token // length
    place = token % length
    feature = tl.arange(0, BLOCK_HALF)
    real = feature < HALF
    row = batch * cache_batch + place * cache_row
    if HAS_POSITIONS:
        # A position outside of the caches cannot be reported from a kernel; it must not read outside of them.
        row = tl.minimum(tl.maximum(tl.load(positions + token), 0), cache_rows - 1) * cache_row
    c = tl.load(cos + row + feature, mask=real, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + row + feature, mask=real, other=0.0).to(tl.float32)[None, :]
    head = (tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)).to(tl.int64)[:, None]
    source = x + batch * x_batch + place * x_token + head * x_head
    target = out + batch * out_batch + place * out_token + head * out_head
    if INTERLEAVED:
        first = 2 * feature[None, :]
        second = first + 1
    else:
        first = feature[None, :]
        second = first + HALF
    inside = (head < heads) & real[None, :]
    a = tl.load(source + first, mask=inside, other=0.0)
    b = tl.load(source + second, mask=inside, other=0.0)
    wide_a = a.to(tl.float32)
    wide_b = b.to(tl.float32)
    tl.store(target + first, (wide_a * c - wide_b * s).to(a.dtype), mask=inside)
    tl.store(target + second, (wide_a * s + wide_b * c).to(a.dtype), mask=inside)
    if REST > 0:
        rest = tl.arange(0, BLOCK_REST)[None, :]
        kept = (head < heads) & (rest < REST)
        tl.store(target + 2 * HALF + rest, tl.load(source + 2 * HALF + rest, mask=kept), mask=kept)


def rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    *,
    interleaved: bool,
    width: int,
) -> torch.Tensor:
    """Rotate ``(batch, heads, sequence, size)``, of any strides but for dense features, into a contiguous tensor."""
    batch, heads, length, size = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch(x, cos, sin, positions, out, (batch, heads, length, size), interleaved, width)
    return out


def launch(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    out: torch.Tensor,
    shape: tuple[int, int, int, int],
    interleaved: bool,
    width: int,
) -> None:
    """Run the kernel on views ``(batch, heads, sequence, size)`` of input and output."""
    batch, heads, length, size = shape
    if out.numel() == 0:
        return
    half, rest = width // 2, size - width
    _rotary_kernel[lambda meta: (batch * length, triton.cdiv(heads, meta["BLOCK_HEADS"]))](
        x,
        cos,
        sin,
        cos if positions is None else positions.contiguous(),
        out,
        length,
        heads,
        x.stride(0),
        x.stride(1),
        x.stride(2),
        out.stride(0),
        out.stride(1),
        out.stride(2),
        cos.stride(0) if positions is None else 0,
        cos.stride(-2),
        cos.shape[0],
        HALF=half,
        REST=rest,
        INTERLEAVED=interleaved,
        HAS_POSITIONS=positions is not None,
        BLOCK_HALF=triton.next_power_of_2(half),
        BLOCK_REST=triton.next_power_of_2(max(rest, 1)),
    )
