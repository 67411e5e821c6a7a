"""Distances between rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import promoted
from onnxops_decomp.formulas.operands import broadcast_sizes
from onnxops_decomp.lowerings.layout.shapes import axis_in
from onnxops_decomp.lowerings.pointwise.comparison import clamp_min
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.spec.inference import same_dim

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

aten = torch.ops.aten

_FEW = 25
_PRODUCTS_ALWAYS, _PRODUCTS_NEVER = 1, 2


@lowering(aten.cdist.default, aten._cdist_forward.default)
def cdist(op: OpBuilder, x1: ir.Value, x2: ir.Value, p: float = 2.0, compute_mode: int | None = None) -> ir.Value:
    if p == 2 and _by_products(op, x1, x2, compute_mode):
        return _distances_by_products(op, x1, x2)
    return _lengths(op, op.Sub(op.Unsqueeze(x1, [-2]), op.Unsqueeze(x2, [-3])), p)


def _by_products(op: OpBuilder, x1: ir.Value, x2: ir.Value, compute_mode: int | None) -> bool:
    """Tell whether torch multiplies matrices, which loses digits for close rows: for more than 25, or when asked to.

    Of a number of rows known only at run time the differences themselves are taken.
    """
    if compute_mode in (_PRODUCTS_ALWAYS, _PRODUCTS_NEVER):
        return compute_mode == _PRODUCTS_ALWAYS
    rows = (op.size(x1, -2), op.size(x2, -2))
    return all(isinstance(count, int) for count in rows) and any(isinstance(n, int) and n > _FEW for n in rows)


def _distances_by_products(op: OpBuilder, x1: ir.Value, x2: ir.Value) -> ir.Value:
    """Return the roots of ``|a|^2 + |b|^2 - 2 a b`` for all pairs of rows."""
    of_first, of_second = (op.ReduceSum(op.Mul(rows, rows), [-1], keepdims=1) for rows in (x1, x2))
    ones, other_ones = (op.expand(op.constant(1.0, op.dtype(each)), op.sizes(each)) for each in (of_first, of_second))
    left = op.Concat(op.Mul(x1, -2.0), of_first, ones, axis=-1)
    right = op.Concat(x2, other_ones, of_second, axis=-1)
    rank = op.rank(x2)
    squares = op.MatMul(left, op.Transpose(right, perm=[*range(rank - 2), rank - 1, rank - 2]))
    return op.Sqrt(op.Relu(squares))


@lowering(aten.pdist.default, aten._pdist_forward.default)
def pdist(op: OpBuilder, self: ir.Value, p: float = 2.0) -> ir.Value:
    rows = op.size(self, 0)
    if isinstance(rows, int):
        first, second = (op.constant(index) for index in np.triu_indices(rows, 1))
    else:
        above = op.NonZero(op.Trilu(op.expand(op.constant([[1]]), [rows, rows]), 1, upper=1))
        first, second = (op.Gather(above, op.constant(place), axis=0) for place in (0, 1))
    return _lengths(op, op.Sub(op.Gather(self, first, axis=0), op.Gather(self, second, axis=0)), p)


def _lengths(op: OpBuilder, difference: ir.Value, p: float) -> ir.Value:
    """Return the p-norm of the rows."""
    if p == 0:
        moved = op.Not(op.Equal(difference, 0.0))
        return op.ReduceSum(op.cast(moved, op.dtype(difference)), [-1], keepdims=0)
    if p == 1:
        return op.ReduceL1(difference, [-1], keepdims=0)
    if p == 2:
        return op.ReduceL2(difference, [-1], keepdims=0)
    if math.isinf(p):
        width = op.size(difference, -1)
        if isinstance(width, int) and width == 0:
            return op.ReduceSum(difference, [-1], keepdims=0)
        return op.ReduceMax(op.Abs(difference), [-1], keepdims=0)
    # An exponent of its own dtype, which for a number would be FLOAT.
    power, root = (op.constant(exponent, op.dtype(difference)) for exponent in (float(p), 1 / p))
    return op.Pow(op.ReduceSum(op.Pow(op.Abs(difference), power), [-1], keepdims=0), root)


@lowering(aten.cosine_similarity.default)
@promoted("x1", "x2")
def cosine_similarity(op: OpBuilder, x1: ir.Value, x2: ir.Value, dim: int = 1, eps: float = 1e-8) -> ir.Value:
    axis = axis_in(max(op.rank(x1), op.rank(x2)), dim) - max(op.rank(x1), op.rank(x2))
    if not all(_has_size(op, x, other, axis) for x, other in ((x1, x2), (x2, x1))):
        sizes = broadcast_sizes(op, [x1, x2], "cosine_similarity", 7)
        x1, x2 = op.expand(x1, sizes), op.expand(x2, sizes)
    if op.dtype(x1) == ir.DataType.FLOAT16:
        # Products of elements leave its range, those of directions do not.
        lengths = [op.ReduceL2(x, [axis], keepdims=1) for x in (x1, x2)]
        first, second = (op.Div(x, clamp_min(op, length, eps)) for x, length in zip((x1, x2), lengths, strict=True))
        return op.ReduceSum(op.Mul(first, second), [axis], keepdims=0)
    # ReduceL2 has the same range, and kernels that take twice as long.
    dot, *squares = (op.ReduceSum(op.Mul(*pair), [axis], keepdims=0) for pair in ((x1, x2), (x1, x1), (x2, x2)))
    return op.Div(dot, op.Mul(*(clamp_min(op, op.Sqrt(each), eps) for each in squares)))


def _has_size(op: OpBuilder, x: ir.Value, other: ir.Value, axis: int) -> bool:
    """Tell whether a tensor is as long as another along an axis, counted from the end."""
    ranks = op.rank(x), op.rank(other)
    return -axis <= min(ranks) and same_dim(op.dim(op.size(x, axis)), op.dim(op.size(other, axis)))
