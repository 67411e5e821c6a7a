"""MatMulNBits of the com.microsoft domain: a product with quantized weights."""

from __future__ import annotations

import torch

from onnxops_core.native.declaring.call import public
from onnxops_core.native.declaring.checks import (
    FLOATS,
    check_choice,
    check_dtype,
    check_same_dtype,
    invalid,
)
from onnxops_core.native.declaring.declare import declare
from onnxops_core.native.quantization.calls import MatMulNBitsCall
from onnxops_core.native.quantization.gpu import MATMUL_NBITS

__all__ = ["matmul_nbits"]


def _nbits_check(call: MatMulNBitsCall) -> None:
    a, K, N, block_size = call.A, call.K, call.N, call.block_size
    op = "MatMulNBits"
    check_dtype(op, "A", a, FLOATS)
    check_choice(op, "bits", call.bits, (2, 4, 8))
    check_choice(op, "accuracy_level", call.accuracy_level, (0, 1, 2, 3, 4))
    if call.weight_prepacked:
        raise invalid(
            op, "weight_prepacked", call.weight_prepacked, "False; the layout of prepacked weights is a runtime's own"
        )
    if K <= 0 or N <= 0:
        raise invalid(op, "K, N", (K, N), "positive numbers")
    if block_size < 16 or block_size & (block_size - 1):
        raise invalid(op, "block_size", block_size, "a power of two of at least 16")
    if a.dim() == 0 or a.shape[-1] != K:
        raise invalid(op, "A", a, f"a last dimension of K, {K}")
    blocks = -(-K // block_size)
    if call.B.dtype != torch.uint8 or tuple(call.B.shape) != (N, blocks, block_size * call.bits // 8):
        raise invalid(op, "B", call.B, f"shape ({N}, {blocks}, {block_size * call.bits // 8}) and dtype uint8")
    check_same_dtype(op, "scales", call.scales, "A", a.dtype)
    if tuple(call.scales.shape) not in ((N, blocks), (N * blocks,)):
        raise invalid(op, "scales", call.scales, f"shape ({N}, {blocks})")
    if call.g_idx is not None:
        raise invalid(op, "g_idx", call.g_idx, "none; this deprecated input is not supported")
    if call.zero_points is not None:
        packed = -(-blocks * call.bits // 8)
        shapes = {torch.uint8: ((N, packed), (N * packed,)), a.dtype: ((N, blocks), (N * blocks,))}
        if tuple(call.zero_points.shape) not in shapes.get(call.zero_points.dtype, ()):
            raise invalid(op, "zero_points", call.zero_points, f"uint8 ({N}, {packed}) or {a.dtype} ({N}, {blocks})")
    if call.bias is not None and (call.bias.dtype != a.dtype or tuple(call.bias.shape) != (N,)):
        raise invalid(op, "bias", call.bias, f"shape ({N},) and dtype {a.dtype}")


def _unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Split bytes ``(..., n)`` into ``(..., n * 8 / bits)`` numbers, the low bits first."""
    if bits == 8:
        return packed
    parts = [(packed >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    return torch.stack(parts, -1).flatten(-2)


def _weights(
    b: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor | None, bits: int, k: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return the dequantized rows ``(rows, K)``."""
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


def _nbits_reference(call: MatMulNBitsCall) -> torch.Tensor:
    dtype = torch.promote_types(call.A.dtype, torch.float32)
    y = call.A.to(dtype) @ _weights(call.B, call.scales, call.zero_points, call.bits, call.K, dtype).transpose(0, 1)
    return (y if call.bias is None else y + call.bias).to(call.A.dtype)


# Rows of the weight that are dequantized at a time, so that they stay in the cache.
_ROWS = 256


def _nbits_kernel(call: MatMulNBitsCall) -> torch.Tensor:
    a = call.A
    dtype = torch.promote_types(a.dtype, torch.float32)
    wide = a.to(dtype)
    y = torch.empty((*a.shape[:-1], call.N), dtype=a.dtype, device=a.device)
    scale_rows = call.scales.reshape(call.N, -1)
    zero_rows = None if call.zero_points is None else call.zero_points.reshape(call.N, -1)
    for start in range(0, call.N, _ROWS):
        part = slice(start, start + _ROWS)
        weights = _weights(
            call.B[part], scale_rows[part], None if zero_rows is None else zero_rows[part], call.bits, call.K, dtype
        )
        wide_bias = None if call.bias is None else call.bias[part].to(dtype)
        y[..., part] = torch.nn.functional.linear(wide, weights, wide_bias)
    return y


def _nbits_fake(call: MatMulNBitsCall) -> torch.Tensor:
    return call.A.new_empty((*call.A.shape[:-1], call.N))


_MATMUL_NBITS = declare(
    "MatMulNBits",
    1,
    MatMulNBitsCall,
    domain="com.microsoft",
    reference=_nbits_reference,
    kernel=_nbits_kernel,
    fake=_nbits_fake,
    check=_nbits_check,
    backends=(MATMUL_NBITS,),
    extensions=(torch.float64,),
    written=("bits",),  # ONNX Runtime before 1.23 has no default
)


matmul_nbits = public("matmul_nbits", MatMulNBitsCall, _MATMUL_NBITS)
