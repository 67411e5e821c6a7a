# Triton has no types, and a kernel's parameters are pointers and numbers of its own.
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def"
"""MatMulNBits: the weight is dequantized tile by tile on its way into the product."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["matmul_nbits"]


@triton.jit
def _product_kernel(
    a,
    b,
    scales,
    zeros,
    bias,
    out,
    m_size,
    n_size,
    k_size,
    row_bytes,
    blocks,
    zero_bytes,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    ZEROS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    per_byte: tl.constexpr = 8 // BITS
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    column = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    in_rows = row < m_size
    in_columns = column < n_size
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k_size, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        in_k = k < k_size
        left = tl.load(a + row[:, None] * k_size + k[None, :], mask=in_rows[:, None] & in_k[None, :], other=0.0)
        inside = in_k[:, None] & in_columns[None, :]
        packed = tl.load(b + column[None, :] * row_bytes + (k // per_byte)[:, None], mask=inside, other=0).to(tl.int32)
        quantized = ((packed >> ((k % per_byte) * BITS)[:, None]) & ((1 << BITS) - 1)).to(tl.float32)
        block = (k // GROUP)[:, None]
        if ZEROS == 0:
            zero = 1 << (BITS - 1)
        elif ZEROS == 1:
            held = tl.load(zeros + column[None, :] * zero_bytes + block // per_byte, mask=inside, other=0).to(tl.int32)
            zero = ((held >> ((block % per_byte) * BITS)) & ((1 << BITS) - 1)).to(tl.float32)
        else:
            zero = tl.load(zeros + column[None, :] * blocks + block, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scales + column[None, :] * blocks + block, mask=inside, other=0.0).to(tl.float32)
        weight = (quantized - zero) * scale
        total += tl.dot(left, weight.to(left.dtype), input_precision="ieee")
    if HAS_BIAS:
        total += tl.load(bias + column, mask=in_columns, other=0.0).to(tl.float32)[None, :]
    place = row[:, None] * n_size + column[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=in_rows[:, None] & in_columns[None, :])


_CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, num_warps=warps, num_stages=stages)
    for m, n, k, warps, stages in (
        (16, 32, 128, 4, 3),
        (16, 64, 128, 4, 4),
        (32, 64, 64, 4, 4),
        (64, 128, 64, 8, 3),
        (128, 128, 32, 8, 3),
    )
]
_tuned_kernel = triton.autotune(_CONFIGS, key=["m_size", "n_size", "k_size"])(_product_kernel)


def matmul_nbits(
    a: torch.Tensor,
    b: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    bias: torch.Tensor | None,
    block_size: int,
    bits: int,
    *,
    tune: bool = True,
) -> torch.Tensor:
    """Multiplies contiguous ``(M, K)`` with the dequantized weight ``(N, K)``, transposed.

    Args:
        a: float16, bfloat16 or float32.
        b: ``(N, blocks, block_size * bits / 8)`` uint8.
        scales: ``(N, blocks)`` of a's dtype.
        zero_points: uint8 ``(N, ceil(blocks * bits / 8))``, or of a's dtype ``(N, blocks)``, or None.
        bias: ``(N,)`` or None.
        block_size: values per scale.
        bits: 2, 4 or 8.
        tune: whether tile sizes are chosen by measuring; otherwise they are fixed and small.
    """
    m, k = a.shape
    n, blocks = b.shape[:2]
    out = torch.empty((m, n), dtype=a.dtype, device=a.device)
    if out.numel() == 0:
        return out
    zeros = 0 if zero_points is None else 1 if zero_points.dtype == torch.uint8 else 2
    arguments = (
        a,
        b,
        scales,
        a if zero_points is None else zero_points,
        a if bias is None else bias,
        out,
        m,
        n,
        k,
        blocks * b.shape[2],
        blocks,
        -(-blocks * bits // 8),
    )
    options = {"BITS": bits, "GROUP": block_size, "ZEROS": zeros, "HAS_BIAS": bias is not None}
    if tune:
        _tuned_kernel[lambda meta: (triton.cdiv(m, meta["BLOCK_M"]), triton.cdiv(n, meta["BLOCK_N"]))](
            *arguments, **options
        )
    else:
        grid = (triton.cdiv(m, 16), triton.cdiv(n, 16))
        _product_kernel[grid](*arguments, **options, BLOCK_M=16, BLOCK_N=16, BLOCK_K=32)
    return out
