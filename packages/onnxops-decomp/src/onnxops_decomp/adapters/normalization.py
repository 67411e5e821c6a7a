"""Normalization operators in the opsets before they came."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.builder.forms import adapter

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def _stash(op: OpBuilder, X: ir.Value, stash_type: int) -> ir.Value:
    """Cast to the dtype that the first stage is computed in; a wider one than asked for stays."""
    return op.cast(X, ir.DataType(stash_type)) if op.dtype(X) in _HALF else X


@adapter("LayerNormalization", below=17)
def layer_normalization(
    op: OpBuilder,
    X: ir.Value,
    Scale: ir.Value,
    B: ir.Value | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    _outputs: int = 1,
) -> ir.Value | tuple[ir.Value, ...]:
    rank = op.rank(X)
    axes = list(range(axis % rank, rank))
    wide = _stash(op, X, stash_type)
    mean = op.ReduceMean(wide, axes)
    centered = op.Sub(wide, mean)
    deviation = op.Sqrt(op.Add(op.ReduceMean(op.Mul(centered, centered), axes), epsilon))
    result = op.Mul(op.cast(op.Div(centered, deviation), op.dtype(X)), Scale)
    result = result if B is None else op.Add(result, B)
    return result if _outputs == 1 else (result, mean, op.Reciprocal(deviation))[:_outputs]


@adapter("RMSNormalization", below=23)
def rms_normalization(
    op: OpBuilder, X: ir.Value, scale: ir.Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> ir.Value:
    rank = op.rank(X)
    wide = _stash(op, X, stash_type)
    # ONNX Runtime knows the normalization by a power, and runs it as one operation; for doubles its older releases take
    # 1e-5 for the epsilon then.
    is_double = op.dtype(wide) == ir.DataType.DOUBLE
    square = op.Mul(wide, wide) if is_double else op.Pow(wide, op.constant(2.0, op.dtype(wide)))
    mean = op.ReduceMean(square, list(range(axis % rank, rank)))
    normalized = op.Div(wide, op.Sqrt(op.Add(mean, epsilon)))
    return op.Mul(op.cast(normalized, op.dtype(X)), scale)


def _standardized(op: OpBuilder, x: ir.Value, epsilon: float) -> ir.Value:
    """Bring (N, G, L) to mean 0 and variance 1 over L."""
    centered = op.Sub(x, op.ReduceMean(x, [2]))
    variance = op.ReduceMean(op.Mul(centered, centered), [2])
    return op.Div(centered, op.Sqrt(op.Add(variance, epsilon)))


# Scale and bias of each channel, not of each group.
@adapter("GroupNormalization", below=21, keeps_meaning=False)
def group_normalization(
    op: OpBuilder,
    X: ir.Value,
    scale: ir.Value,
    bias: ir.Value,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> ir.Value:
    # Opset 18 has the operator with one scale per group, which cannot say what a scale per channel does.
    rank, sizes = op.rank(X), op.sizes(X)
    wide = _stash(op, X, stash_type)
    dtype = op.dtype(wide)
    ones, zeros = op.constant([1.0] * num_groups, dtype), op.constant([0.0] * num_groups, dtype)
    rest = [size for size in sizes[1:] if isinstance(size, int)]
    # Reshape infers no size beside a batch of 0.
    length = math.prod(rest) // num_groups if len(rest) == rank - 1 else -1
    grouped = op.reshape(wide, [sizes[0], num_groups, length])
    if dtype == ir.DataType.DOUBLE and not op.takes_doubles("InstanceNormalization"):
        normalized = _standardized(op, grouped, epsilon)
    else:
        normalized = op.InstanceNormalization(grouped, ones, zeros, epsilon=epsilon)
    normalized = op.reshape(normalized, sizes)
    per_channel = list(range(1, rank - 1))
    result = op.Mul(op.cast(normalized, op.dtype(X)), op.Unsqueeze(scale, per_channel))
    return op.Add(result, op.Unsqueeze(bias, per_channel))
