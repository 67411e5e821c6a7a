"""The parameters of MatMulNBits."""

from __future__ import annotations

from dataclasses import KW_ONLY

import torch

from onnxops_core.native.declaring.call import Call, operator_call

__all__ = ["MatMulNBitsCall"]


@operator_call
class MatMulNBitsCall(Call[torch.Tensor]):
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

    A: torch.Tensor
    B: torch.Tensor
    scales: torch.Tensor
    zero_points: torch.Tensor | None = None
    g_idx: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    _: KW_ONLY
    K: int
    N: int
    block_size: int
    bits: int = 4
    accuracy_level: int = 0
    weight_prepacked: bool = False
