"""Matrix products."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxops_decomp.importing.registry import onnx_op
from onnxops_decomp.importing.values import widened


@onnx_op("MatMul")
@widened
def matmul(A: Tensor, B: Tensor) -> Tensor:
    return torch.matmul(A, B)


@onnx_op("Gemm", since=7)
def gemm(
    A: Tensor,
    B: Tensor,
    C: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    left, right = A.t() if transA else A, B.t() if transB else B
    if not A.is_floating_point():
        product = widened(torch.matmul)(left, right)
        product = product if alpha == 1 else (product * alpha).to(A.dtype)
        return product if C is None else product + (C if beta == 1 else (C * beta).to(A.dtype))
    if C is not None:
        return torch.addmm(C, left, right, beta=beta, alpha=alpha)
    product = torch.mm(left, right)
    return product if alpha == 1 else product * alpha


@onnx_op("Gemm")
def gemm_below_opset_7(
    A: Tensor,
    B: Tensor,
    C: Tensor,
    alpha: float = 1.0,
    beta: float = 1.0,
    broadcast: int = 0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    return gemm(A, B, C, alpha, beta, transA, transB)


@onnx_op("Einsum")
def einsum(*Inputs: Tensor, equation: str) -> Tensor:
    return torch.einsum(equation.replace(" ", ""), *Inputs)


@onnx_op("Det")
def det(X: Tensor) -> Tensor:
    result: Tensor = torch.linalg.det(X)
    return result


@onnx_op("MatMulInteger")
def matmul_integer(
    A: Tensor, B: Tensor, a_zero_point: Tensor | None = None, b_zero_point: Tensor | None = None
) -> Tensor:
    left, right = A.to(torch.int32), B.to(torch.int32)
    if a_zero_point is not None:
        # One zero point for each row stands in the last dimension but one.
        rows = a_zero_point.to(torch.int32)
        left = left - (rows.unsqueeze(-1) if rows.dim() == 1 and rows.numel() > 1 else rows)
    if b_zero_point is not None:
        right = right - b_zero_point.to(torch.int32)
    return torch.matmul(left, right)
