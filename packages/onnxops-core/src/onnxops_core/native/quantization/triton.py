# Triton has no types, and a kernel's parameters are pointers and numbers of its own.
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def"
"""MatMulNBits: the weight is dequantized tile by tile on its way into the product."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from onnxops_core.native.declaring.tuning import Settings, autotuned, size_class

__all__ = ["matmul_nbits"]


_SETTINGS: list[Settings] = [
    ({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_BYTES": b}, warps, stages)
    for m, n, b, warps, stages in (
        (16, 32, 32, 4, 3),
        (16, 16, 128, 4, 4),
        (16, 64, 64, 4, 4),
        (32, 64, 32, 4, 4),
        (64, 128, 32, 8, 3),
        (128, 128, 16, 8, 3),
        (32, 32, 16, 4, 2),
    )
]


@autotuned(_SETTINGS, key=["m_class", "n_size", "k_size", "BITS"])
@triton.jit(do_not_specialize=["m_class"])
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
    m_class,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    ZEROS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
):
    per_byte: tl.constexpr = 8 // BITS
    largest: tl.constexpr = (1 << BITS) - 1
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_rows = row < m_size
    in_columns = column < n_size
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, row_bytes, BLOCK_BYTES):
        byte = start + tl.arange(0, BLOCK_BYTES)
        inside = (byte < row_bytes)[:, None] & in_columns[None, :]
        # Bytes are read as they lie, and each once: the values of a byte are columns of a that are per_byte apart.
        packed = tl.load(b + column[None, :] * row_bytes + byte[:, None], mask=inside, other=0).to(tl.int32)
        # Blocks are at least 16 values long, so that the values of a byte share one.
        block = (byte * per_byte // GROUP)[:, None]
        scale = tl.load(scales + column[None, :] * blocks + block, mask=inside, other=0.0).to(tl.float32)
        if ZEROS == 0:
            zero = 1.0 * (1 << (BITS - 1))
        elif ZEROS == 1:
            held = tl.load(zeros + column[None, :] * zero_bytes + block // per_byte, mask=inside, other=0).to(tl.int32)
            zero = ((held >> ((block % per_byte) * BITS)) & largest).to(tl.float32)
        else:
            zero = tl.load(zeros + column[None, :] * blocks + block, mask=inside, other=0.0).to(tl.float32)
        for part in tl.static_range(per_byte):
            k = byte * per_byte + part
            left = tl.load(
                a + row[:, None] * k_size + k[None, :], mask=in_rows[:, None] & (k < k_size)[None, :], other=0.0
            )
            weight = (((packed >> (part * BITS)) & largest).to(tl.float32) - zero) * scale
            total += tl.dot(left, weight.to(left.dtype), input_precision="tf32x3")
    if HAS_BIAS:
        total += tl.load(bias + column, mask=in_columns, other=0.0).to(tl.float32)[None, :]
    place = row[:, None] * n_size + column[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=in_rows[:, None] & in_columns[None, :])


def matmul_nbits(
    a: torch.Tensor,
    b: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    bias: torch.Tensor | None,
    block_size: int,
    bits: int,
) -> torch.Tensor:
    """Multiply contiguous ``(M, K)`` with the dequantized weight ``(N, K)``, transposed.

    Args:
        a: float16, bfloat16 or float32.
        b: ``(N, blocks, block_size * bits / 8)`` uint8.
        scales: ``(N, blocks)`` of a's dtype.
        zero_points: uint8 ``(N, ceil(blocks * bits / 8))``, or of a's dtype ``(N, blocks)``, or None.
        bias: ``(N,)`` or None.
        block_size: values per scale.
        bits: 2, 4 or 8.
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
        size_class(m, 256),
    )
    options = {"BITS": bits, "GROUP": block_size, "ZEROS": zeros, "HAS_BIAS": bias is not None}
    _product_kernel[lambda meta: (triton.cdiv(m, meta["BLOCK_M"]), triton.cdiv(n, meta["BLOCK_N"]))](
        *arguments, **options
    )
    return out
