"""Normalization layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import torch

from onnxops_decomp.builder.runtime import Deviation
from onnxops_decomp.builder.sizes import is_zero
from onnxops_decomp.dtypes import to_torch
from onnxops_decomp.lowerings.reductions.over_dimensions import mean
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

aten = torch.ops.aten

_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def _filled(op: OpBuilder, fill: float, dtype: ir.DataType, sizes: Sequence[Size]) -> ir.Value:
    """Return a tensor of one number, as a stand-in for an affine parameter that is absent."""
    static = [size for size in sizes if isinstance(size, int)]
    if len(static) == len(sizes):
        return op.constant(np.full(static, fill), dtype)
    return op.expand(op.Reshape(op.constant(fill, dtype), [1] * len(sizes)), sizes)


def _affine(
    op: OpBuilder, input: ir.Value, weight: ir.Value | None, bias: ir.Value | None, sizes: Sequence[Size]
) -> tuple[ir.Value, ir.Value]:
    """Return weight and bias of a normalization, both in the dtype of the input and present."""
    dtype = op.dtype(input)
    scale = _filled(op, 1.0, dtype, sizes) if weight is None else op.cast(weight, dtype)
    shift = _filled(op, 0.0, dtype, sizes) if bias is None else op.cast(bias, dtype)
    return scale, shift


@lowering(aten.layer_norm.default)
def layer_norm(
    op: OpBuilder,
    input: ir.Value,
    normalized_shape: Sequence[Size],
    weight: ir.Value | None = None,
    bias: ir.Value | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> ir.Value:
    scale, shift = _affine(op, input, weight, bias, normalized_shape)
    return op.LayerNormalization(
        input, scale, None if bias is None else shift, axis=-len(normalized_shape), epsilon=eps
    )


@lowering(aten.native_layer_norm.default)
def native_layer_norm(
    op: OpBuilder,
    input: ir.Value,
    normalized_shape: Sequence[Size],
    weight: ir.Value | None,
    bias: ir.Value | None,
    eps: float,
) -> tuple[ir.Value, ...]:
    scale, shift = _affine(op, input, weight, bias, normalized_shape)
    result, mean, rstd = op.emit_many(
        "LayerNormalization",
        3,
        input,
        scale,
        None if bias is None else shift,
        axis=-len(normalized_shape),
        epsilon=eps,
    )
    return result, op.cast(mean, op.dtype(input)), op.cast(rstd, op.dtype(input))


@lowering(aten.rms_norm.default)
def rms_norm(
    op: OpBuilder,
    input: ir.Value,
    normalized_shape: Sequence[Size],
    weight: ir.Value | None = None,
    eps: float | None = None,
) -> ir.Value:
    dtype = op.dtype(input)
    if eps is None:
        eps = torch.finfo(torch.float32 if dtype in _HALF else to_torch(dtype)).eps
    scale, _ = _affine(op, input, weight, None, normalized_shape)
    return op.RMSNormalization(input, scale, axis=-len(normalized_shape), epsilon=eps)


def _channel_axes(op: OpBuilder, input: ir.Value) -> list[int]:
    """Return the axes that a statistic per channel is taken over."""
    return [axis for axis in range(op.rank(input)) if axis != 1]


def _batch_statistics(op: OpBuilder, input: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return mean and variance per channel, in float for half floats as torch accumulates them."""
    wide = op.cast(input, ir.DataType.FLOAT) if op.dtype(input) in _HALF else input
    axes = _channel_axes(op, input)
    mean = op.ReduceMean(wide, axes, keepdims=1)
    centered = op.Sub(wide, mean)
    variance = op.ReduceMean(op.Mul(centered, centered), axes, keepdims=0)
    return op.Squeeze(mean, axes), variance


@lowering(aten.batch_norm.default)
def batch_norm(
    op: OpBuilder,
    input: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    running_mean: ir.Value | None,
    running_var: ir.Value | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> ir.Value:
    if op.rank(input) < 2:
        # Torch takes a vector if it is empty.
        return input
    if training or running_mean is None or running_var is None:
        mean, variance = _batch_statistics(op, input)
    else:
        mean, variance = running_mean, running_var
    return _batch_normalized(op, input, weight, bias, mean, variance, eps)


def _batch_normalized(
    op: OpBuilder,
    input: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    mean: ir.Value,
    variance: ir.Value,
    eps: float,
) -> ir.Value:
    # Parameters and statistics of a wider dtype than the input (mixed precision) make torch compute in theirs.
    present = [op.dtype(value) for value in (weight, bias, mean, variance) if value is not None]
    dtype = op.dtype(input)
    wide = next((other for other in present if other != dtype and dtype in _HALF), dtype)
    x = op.cast(input, wide)
    scale, shift = _affine(op, x, weight, bias, [op.size(input, 1)])
    result = op.BatchNormalization(x, scale, shift, op.cast(mean, wide), op.cast(variance, wide), epsilon=eps)
    return op.cast(result, dtype)


@lowering(aten._native_batch_norm_legit_functional.default)
def native_batch_norm_functional(
    op: OpBuilder,
    input: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    running_mean: ir.Value | None,
    running_var: ir.Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value | None, ir.Value | None]:
    """Return the output, the saved mean and inverse deviation, and both running statistics as they are afterwards."""
    if not training:
        assert running_mean is not None
        assert running_var is not None
        result = _batch_normalized(op, input, weight, bias, running_mean, running_var, eps)
        nothing = op.constant([], ir.DataType.FLOAT if op.dtype(input) in _HALF else op.dtype(input))
        return result, nothing, nothing, running_mean, running_var
    mean, variance = _batch_statistics(op, input)
    result = _batch_normalized(op, input, weight, bias, mean, variance, eps)
    rstd = op.Reciprocal(op.Sqrt(op.Add(variance, eps)))
    count = op.size_mul(*(op.size(input, axis) for axis in _channel_axes(op, input)))
    return (
        result,
        mean,
        rstd,
        _updated(op, running_mean, mean, momentum),
        _updated(op, running_var, _unbiased(op, variance, count), momentum),
    )


def _unbiased(op: OpBuilder, variance: ir.Value, count: Size) -> ir.Value:
    dtype = op.dtype(variance)
    if isinstance(count, int):
        return op.Mul(variance, count / (count - 1) if count > 1 else float("nan"))
    n = op.cast(count, dtype)
    return op.Mul(variance, op.Div(n, op.Sub(n, 1.0)))


def _updated(op: OpBuilder, running: ir.Value | None, batch: ir.Value, momentum: float) -> ir.Value | None:
    if running is None:
        return None
    dtype = op.dtype(running)
    return op.Add(op.Mul(running, 1.0 - momentum), op.Mul(op.cast(batch, dtype), momentum))


@lowering(
    *(aten.native_batch_norm.default, aten._native_batch_norm_legit.no_stats),
    aten._native_batch_norm_legit_no_training.default,
)
def native_batch_norm(
    op: OpBuilder,
    input: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    running_mean: ir.Value | None = None,
    running_var: ir.Value | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[ir.Value, ...]:
    uses_batch = training or running_mean is None
    return native_batch_norm_functional(op, input, weight, bias, running_mean, running_var, uses_batch, momentum, eps)[
        :3
    ]


@lowering(aten.instance_norm.default)
def instance_norm(
    op: OpBuilder,
    input: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    running_mean: ir.Value | None,
    running_var: ir.Value | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> ir.Value:
    if not use_input_stats and running_mean is not None and running_var is not None:
        return _batch_normalized(op, input, weight, bias, running_mean, running_var, eps)
    scale, shift = _affine(op, input, weight, bias, [op.size(input, 1)])
    return op.InstanceNormalization(input, scale, shift, epsilon=eps)


@lowering(aten.group_norm.default)
def group_norm(
    op: OpBuilder,
    input: ir.Value,
    num_groups: int,
    weight: ir.Value | None = None,
    bias: ir.Value | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> ir.Value:
    if is_zero(op.size(input, 0)):
        return op.filled_with_zeros(op.sizes(input), op.dtype(input))
    scale, shift = _affine(op, input, weight, bias, [op.size(input, 1)])
    x = input if op.rank(input) > 2 else op.Unsqueeze(input, [2])
    # By default the statistics are computed in FLOAT.
    stash_type = int(ir.DataType.DOUBLE) if op.dtype(x) == ir.DataType.DOUBLE else None
    result = op.GroupNormalization(x, scale, shift, num_groups=num_groups, epsilon=eps, stash_type=stash_type)
    return result if op.rank(input) > 2 else op.Squeeze(result, [2])


@lowering(aten.native_group_norm.default)
def native_group_norm(
    op: OpBuilder,
    input: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    N: Size,
    C: Size,
    HxW: Size,
    group: int,
    eps: float,
) -> tuple[ir.Value, ir.Value, ir.Value]:
    grouped = op.reshape(input, [N, group, op.size_mul(op.size_floordiv(C, group), HxW)])
    average = mean(op, grouped, 2, keepdim=True, of_nothing=0.0)
    centered = op.Sub(grouped, average)
    variance = mean(op, op.Mul(centered, centered), 2)
    rstd = op.Reciprocal(op.Sqrt(op.Add(variance, eps)))
    # There may turn out to be no elements.
    static = all(isinstance(size, int) for size in op.sizes(input))
    if static or not op.deviates(Deviation.EMPTY_NORMALIZATION):
        return group_norm(op, input, group, weight, bias, eps), op.Squeeze(average, [2]), rstd
    result = op.reshape(op.Mul(centered, op.Unsqueeze(rstd, [2])), op.sizes(input))
    axes = list(range(1, op.rank(input) - 1))
    result = result if weight is None else op.Mul(result, op.Unsqueeze(op.cast(weight, op.dtype(input)), axes))
    result = result if bias is None else op.Add(result, op.Unsqueeze(op.cast(bias, op.dtype(input)), axes))
    return result, op.Squeeze(average, [2]), rstd
