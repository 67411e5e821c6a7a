"""MatMulNBits of the com.microsoft domain: a product with quantized weights."""

from __future__ import annotations

import torch

from onnxops_core.native.declaring.arguments import flag
from onnxops_core.native.declaring.checks import (
    FLOATS,
    check_choice,
    check_dtype,
    check_same_dtype,
    invalid,
)
from onnxops_core.native.declaring.declare import declare
from onnxops_core.native.quantization.gpu import MATMUL_NBITS

__all__ = ["matmul_nbits"]


def _nbits_check(
    a: torch.Tensor,
    b: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None = None,
    g_idx: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    K: int,
    N: int,
    block_size: int,
    bits: int = 4,
    accuracy_level: int = 0,
    weight_prepacked: bool = False,
) -> None:
    op = "MatMulNBits"
    check_dtype(op, "A", a, FLOATS)
    check_choice(op, "bits", bits, (2, 4, 8))
    check_choice(op, "accuracy_level", accuracy_level, (0, 1, 2, 3, 4))
    if weight_prepacked:
        raise invalid(
            op, "weight_prepacked", weight_prepacked, "False; the layout of prepacked weights is a runtime's own"
        )
    if K <= 0 or N <= 0:
        raise invalid(op, "K, N", (K, N), "positive numbers")
    if block_size < 16 or block_size & (block_size - 1):
        raise invalid(op, "block_size", block_size, "a power of two of at least 16")
    if a.dim() == 0 or a.shape[-1] != K:
        raise invalid(op, "A", a, f"a last dimension of K, {K}")
    blocks = -(-K // block_size)
    if b.dtype != torch.uint8 or tuple(b.shape) != (N, blocks, block_size * bits // 8):
        raise invalid(op, "B", b, f"shape ({N}, {blocks}, {block_size * bits // 8}) and dtype uint8")
    check_same_dtype(op, "scales", scales, "A", a.dtype)
    if tuple(scales.shape) not in ((N, blocks), (N * blocks,)):
        raise invalid(op, "scales", scales, f"shape ({N}, {blocks})")
    if g_idx is not None:
        raise invalid(op, "g_idx", g_idx, "none; this deprecated input is not supported")
    if zero_points is not None:
        packed = -(-blocks * bits // 8)
        shapes = {torch.uint8: ((N, packed), (N * packed,)), a.dtype: ((N, blocks), (N * blocks,))}
        if tuple(zero_points.shape) not in shapes.get(zero_points.dtype, ()):
            raise invalid(op, "zero_points", zero_points, f"uint8 ({N}, {packed}) or {a.dtype} ({N}, {blocks})")
    if bias is not None and (bias.dtype != a.dtype or tuple(bias.shape) != (N,)):
        raise invalid(op, "bias", bias, f"shape ({N},) and dtype {a.dtype}")


def _unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Splits bytes ``(..., n)`` into ``(..., n * 8 / bits)`` numbers, the low bits first."""
    if bits == 8:
        return packed
    parts = [(packed >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    return torch.stack(parts, -1).flatten(-2)


def _weights(
    b: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor | None, bits: int, k: int, dtype: torch.dtype
) -> torch.Tensor:
    """Returns the dequantized rows ``(rows, K)``."""
    rows, blocks = b.shape[:2]
    values = _unpack(b, bits).to(dtype)
    if zero_points is None:
        values = values - 2 ** (bits - 1)
    elif zero_points.dtype == torch.uint8:
        zeros = _unpack(zero_points.reshape(rows, -1), bits)[:, :blocks]
        values = values - zeros.to(dtype).unsqueeze(-1)
    else:
        values = values - zero_points.reshape(rows, blocks, 1).to(dtype)
    return (values * scales.reshape(rows, blocks, 1).to(dtype)).flatten(1)[:, :k]


def _nbits_reference(
    a: torch.Tensor,
    b: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None = None,
    g_idx: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    K: int,
    N: int,
    block_size: int,
    bits: int = 4,
    accuracy_level: int = 0,
    weight_prepacked: bool = False,
) -> torch.Tensor:
    dtype = torch.promote_types(a.dtype, torch.float32)
    y = a.to(dtype) @ _weights(b, scales, zero_points, bits, K, dtype).transpose(0, 1)
    return (y if bias is None else y + bias).to(a.dtype)


# Rows of the weight that are dequantized at a time, so that they stay in the cache.
_ROWS = 256


def _nbits_kernel(
    a: torch.Tensor,
    b: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None = None,
    g_idx: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    K: int,
    N: int,
    block_size: int,
    bits: int = 4,
    accuracy_level: int = 0,
    weight_prepacked: bool = False,
) -> torch.Tensor:
    dtype = torch.promote_types(a.dtype, torch.float32)
    wide = a.to(dtype)
    y = torch.empty((*a.shape[:-1], N), dtype=a.dtype, device=a.device)
    scale_rows = scales.reshape(N, -1)
    zero_rows = None if zero_points is None else zero_points.reshape(N, -1)
    for start in range(0, N, _ROWS):
        part = slice(start, start + _ROWS)
        weights = _weights(b[part], scale_rows[part], None if zero_rows is None else zero_rows[part], bits, K, dtype)
        wide_bias = None if bias is None else bias[part].to(dtype)
        y[..., part] = torch.nn.functional.linear(wide, weights, wide_bias)
    return y


def _nbits_fake(a: torch.Tensor, *args: object, N: int, **attributes: object) -> torch.Tensor:
    return a.new_empty((*a.shape[:-1], N))


_MATMUL_NBITS = declare(
    "MatMulNBits",
    1,
    "(Tensor A, Tensor B, Tensor scales, Tensor? zero_points=None, Tensor? g_idx=None, Tensor? bias=None, *, int K, "
    "int N, int block_size, int bits=4, int accuracy_level=0, bool weight_prepacked=False) -> Tensor",
    domain="com.microsoft",
    reference=_nbits_reference,
    kernel=_nbits_kernel,
    fake=_nbits_fake,
    check=_nbits_check,
    backends=(MATMUL_NBITS,),
    extensions=(torch.float64,),
)


def matmul_nbits(
    A: torch.Tensor,
    B: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None = None,
    g_idx: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    K: int,
    N: int,
    block_size: int,
    bits: int = 4,
    accuracy_level: int = 0,
    weight_prepacked: bool = False,
) -> torch.Tensor:
    """com.microsoft MatMulNBits: a product with a matrix that is quantized in blocks of its rows.

    Args:
        A: ``(..., K)``; float16, bfloat16 or float32, and beyond ONNX Runtime float64.
        B: ``(N, blocks, block_size * bits / 8)`` uint8, ``blocks = ceil(K / block_size)``; low bits come
            first.
        scales: ``(N, blocks)`` of A's dtype.
        zero_points: ``(N, ceil(blocks * bits / 8))`` uint8, packed as B, or ``(N, blocks)`` of A's dtype; by
            default
            ``2 ** (bits - 1)``.
        g_idx: deprecated; must be None.
        bias: ``(N,)`` of A's dtype.
        K: the number of input features.
        N: the number of output features.
        block_size: values per scale; a power of two of at least 16.
        bits: 2, 4 or 8.
        weight_prepacked: must be False: B stands in ONNX's own layout.
        accuracy_level: a hint for runtimes; the result here is always computed in float32 at least.

    Returns:
        ``(..., N)`` of A's dtype, rounded once.

    Raises:
        ValueError: shapes, dtypes or attributes that the operator does not take.

    Source:
        https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
    """
    result: torch.Tensor = _MATMUL_NBITS(
        A,
        B,
        scales,
        zero_points,
        g_idx,
        bias,
        K=K,
        N=N,
        block_size=block_size,
        bits=bits,
        accuracy_level=accuracy_level,
        weight_prepacked=flag("MatMulNBits", "weight_prepacked", weight_prepacked),
    )
    return result
