"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.builder.runtime import Deviation
from onnxops_decomp.dtypes import promote, to_ir
from onnxops_decomp.formulas.products import matrix_product
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.dtypes import Operand

aten = torch.ops.aten


def _is_static(number: Operand, value: float) -> bool:
    return not isinstance(number, ir.Value) and number == value


def scaled(op: OpBuilder, x: ir.Value, factor: Operand) -> ir.Value:
    """Return ``factor * x`` in the dtype of ``x``; nothing is emitted for a factor of one."""
    if _is_static(factor, 1):
        return x
    return op.Mul(x, op.cast(factor, op.dtype(x)) if isinstance(factor, ir.Value) else factor)


def _plus_scaled(op: OpBuilder, self: ir.Value, product: ir.Value, beta: Operand, alpha: Operand) -> ir.Value:
    """Return ``beta * self + alpha * product``; with a beta of 0 not even a NaN in ``self`` counts."""
    product = scaled(op, product, alpha)
    return product if _is_static(beta, 0) else op.Add(scaled(op, self, beta), product)


@lowering(aten.linear.default)
def linear(op: OpBuilder, input: ir.Value, weight: ir.Value, bias: ir.Value | None = None) -> ir.Value:
    if op.rank(input) == 2 and op.rank(weight) == 2 and op.dtype(input).is_floating_point():
        return op.Gemm(input, weight, bias, transB=1)
    # MatMul wants the weight transposed; the transpose of an initializer is folded by every runtime.
    product = matrix_product(op, input, op.Transpose(weight, perm=[1, 0]) if op.rank(weight) == 2 else weight)
    return product if bias is None else op.Add(product, bias)


@lowering(
    aten.matmul.default,
    aten.mm.default,
    aten.bmm.default,
    aten.mv.default,
    aten.dot.default,
    aten.vdot.default,
)
def matmul(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    return matrix_product(op, self, other)


@lowering("aten::mm.dtype", "aten::bmm.dtype")
def matmul_dtype(op: OpBuilder, self: ir.Value, mat2: ir.Value, out_dtype: torch.dtype) -> ir.Value:
    return matrix_product(op, op.cast(self, to_ir(out_dtype)), op.cast(mat2, to_ir(out_dtype)))


@lowering(aten.addmm.default)
def addmm(
    op: OpBuilder,
    self: ir.Value,
    mat1: ir.Value,
    mat2: ir.Value,
    *,
    beta: Operand = 1,
    alpha: Operand = 1,
) -> ir.Value:
    static = not isinstance(beta, ir.Value) and not isinstance(alpha, ir.Value)
    empty = op.dim(op.size(mat1, 1)) == 0 and op.deviates(Deviation.EMPTY_GEMM)
    if static and op.dtype(self).is_floating_point() and not empty:
        bias = None if beta == 0 else self
        left, right, flags = mat1, mat2, {}
        transposed = _source_of_transpose(mat2)
        if transposed is not None:
            right, flags = transposed, {"transB": 1}
        return op.Gemm(left, right, bias, alpha=alpha, beta=1.0 if bias is None else beta, **flags)
    return _plus_scaled(op, self, matrix_product(op, mat1, mat2), beta, alpha)


def _source_of_transpose(matrix: ir.Value) -> ir.Value | None:
    """Return the matrix that ``matrix`` is the transpose of, or None."""
    node = matrix.producer()
    if node is None or node.op_type != "Transpose" or node.domain != "" or "perm" not in node.attributes:
        return None
    return node.inputs[0] if list(node.attributes["perm"].as_ints()) == [1, 0] else None


@lowering("aten::addmm.dtype", "aten::baddbmm.dtype")
def addmm_dtype(
    op: OpBuilder,
    self: ir.Value,
    mat1: ir.Value,
    mat2: ir.Value,
    out_dtype: torch.dtype,
    *,
    beta: Operand = 1,
    alpha: Operand = 1,
) -> ir.Value:
    dtype = to_ir(out_dtype)
    product = matrix_product(op, op.cast(mat1, dtype), op.cast(mat2, dtype))
    return _plus_scaled(op, op.cast(self, dtype), product, beta, alpha)


@lowering(aten.baddbmm.default, aten.addmv.default)
def baddbmm(
    op: OpBuilder,
    self: ir.Value,
    batch1: ir.Value,
    batch2: ir.Value,
    *,
    beta: Operand = 1,
    alpha: Operand = 1,
) -> ir.Value:
    return _plus_scaled(op, self, matrix_product(op, batch1, batch2), beta, alpha)


@lowering(aten.addbmm.default)
def addbmm(
    op: OpBuilder,
    self: ir.Value,
    batch1: ir.Value,
    batch2: ir.Value,
    *,
    beta: Operand = 1,
    alpha: Operand = 1,
) -> ir.Value:
    product = op.ReduceSum(matrix_product(op, batch1, batch2), [0], keepdims=0)
    return _plus_scaled(op, self, product, beta, alpha)


@lowering(aten.addr.default)
def addr(
    op: OpBuilder, self: ir.Value, vec1: ir.Value, vec2: ir.Value, *, beta: Operand = 1, alpha: Operand = 1
) -> ir.Value:
    self, vec1, vec2 = promote(op, self, vec1, vec2)
    column = op.Unsqueeze(vec1, [1])
    if op.dtype(self) == ir.DataType.BOOL:
        product = op.And(column, vec2)
        product = product if alpha else op.And(product, op.constant(False))
        return op.Or(self, product) if beta else product
    return _plus_scaled(op, self, op.Mul(column, vec2), beta, alpha)


@lowering(aten.outer.default, aten.ger.default)
def outer(op: OpBuilder, self: ir.Value, vec2: ir.Value) -> ir.Value:
    self, vec2 = promote(op, self, vec2)
    column = op.Unsqueeze(self, [1])
    return op.And(column, vec2) if op.dtype(column) == ir.DataType.BOOL else op.Mul(column, vec2)


@lowering(aten.bilinear.default)
def bilinear(
    op: OpBuilder, input1: ir.Value, input2: ir.Value, weight: ir.Value, bias: ir.Value | None = None
) -> ir.Value:
    # out[..., k] = sum over i, j of input1[..., i] weight[k, i, j] input2[..., j]
    outputs, width1, width2 = op.sizes(weight)
    lead = op.sizes(input1)[:-1]
    flat = op.reshape(op.Transpose(weight, perm=[1, 0, 2]), [width1, op.size_mul(outputs, width2)])
    partial = op.reshape(matrix_product(op, input1, flat), [*lead, outputs, width2])
    result = op.Squeeze(matrix_product(op, partial, op.Unsqueeze(input2, [-1])), [-1])
    return result if bias is None else op.Add(result, bias)


@lowering(aten.tensordot.default)
def tensordot(
    op: OpBuilder, self: ir.Value, other: ir.Value, dims_self: Sequence[int], dims_other: Sequence[int]
) -> ir.Value:
    first, second = ([dim % op.rank(x) for dim in dims] for x, dims in ((self, dims_self), (other, dims_other)))
    # torch adds up what is to be multiplied with a single element.
    for mine, theirs in zip(first, second, strict=True):
        if op.size(self, mine) == 1:
            other = op.ReduceSum(other, [theirs], keepdims=1)
        elif op.size(other, theirs) == 1:
            self = op.ReduceSum(self, [mine], keepdims=1)
    left = [axis for axis in range(op.rank(self)) if axis not in first]
    right = [axis for axis in range(op.rank(other)) if axis not in second]
    sizes, others = op.sizes(self), op.sizes(other)
    count = op.size_mul(*(sizes[axis] for axis in first))
    a = op.reshape(op.Transpose(self, perm=[*left, *first]), [op.size_mul(*(sizes[axis] for axis in left)), count])
    b = op.reshape(op.Transpose(other, perm=[*second, *right]), [count, op.size_mul(*(others[axis] for axis in right))])
    return op.reshape(matrix_product(op, a, b), [*(sizes[axis] for axis in left), *(others[axis] for axis in right)])


@lowering(aten.inner.default)
def inner(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    if not op.rank(self) or not op.rank(other):
        return op.Mul(self, other)
    return tensordot(op, self, other, [-1], [-1])
