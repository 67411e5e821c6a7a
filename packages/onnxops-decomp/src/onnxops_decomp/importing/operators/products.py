"""Matrix products."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxops_decomp.importing.registry import onnx_op
from onnxops_decomp.importing.values import in_float, widened


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
        return _integer_gemm(left, right, C, alpha, beta)
    if C is not None:
        return torch.addmm(C, left, right, beta=beta, alpha=alpha)
    product = torch.mm(left, right)
    return product if alpha == 1 else product * alpha


@widened
def _integer_gemm(left: Tensor, right: Tensor, C: Tensor | None, alpha: float, beta: float) -> Tensor:
    product = torch.matmul(left, right)
    if alpha == beta == 1:
        return product if C is None else product + C
    total = product.double() * alpha
    total = total if C is None else total + C.double() * beta
    return total.to(left.dtype)


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
@widened
def einsum(*Inputs: Tensor, equation: str) -> Tensor:
    # A sum of integers alone is wider in torch.
    return torch.einsum(equation.replace(" ", ""), *Inputs).to(Inputs[0].dtype)


@onnx_op("Det")
def det(X: Tensor) -> Tensor:
    result: Tensor = torch.linalg.det(in_float(X))
    return result.to(X.dtype)


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
