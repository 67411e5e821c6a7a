"""Resampling of one axis from single operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.builder.sizes import Size
from onnxops_decomp.formulas.operands import arange

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["Ratio", "axis_ratio", "position_dtype", "resample", "resampled_size"]

_FLOAT, _DOUBLE, _INT64 = ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT64


Ratio = float | ir.Value


def position_dtype(x: ir.Value, mode: str) -> ir.DataType:
    """Return what positions in ``x`` are computed in: torch rounds those of nearest neighbours to FLOAT always."""
    return _DOUBLE if x.dtype == _DOUBLE and mode != "nearest" else _FLOAT


def axis_ratio(op: OpBuilder, size: Size, count: Size, *, align_corners: bool, dtype: ir.DataType = _FLOAT) -> Ratio:
    """Return how far apart neighbouring outputs lie in the input: ``size / count``, or the same between corners."""
    if align_corners:
        size, count = op.size_sub(size, 1), op.size_sub(count, 1)
    if isinstance(size, int) and isinstance(count, int):
        kind = dtype.numpy().type
        return float(kind(size) / kind(count)) if count > 0 else 0.0
    divisor = op.size_max(count, 1) if align_corners else count
    return op.Div(op.number(size, dtype), op.number(divisor, dtype))


def _clamped(op: OpBuilder, positions: ir.Value, size: Size) -> ir.Value:
    return op.Min(op.Max(positions, 0), op.size_sub(size, 1))


def _positions(op: OpBuilder, count: Size, ratio: Ratio, coordinates: str, dtype: ir.DataType) -> ir.Value:
    """Return where each output lies in the input."""
    index = op.cast(arange(op, count), dtype)
    if coordinates == "half_pixel":
        return op.Sub(op.Mul(op.Add(index, 0.5), ratio), 0.5)
    return op.Mul(index, ratio)


def _nearest(op: OpBuilder, size: Size, positions: ir.Value, nearest_mode: str) -> ir.Value:
    if nearest_mode == "round_prefer_ceil":
        positions = op.Add(positions, 0.5)
    elif nearest_mode == "round_prefer_floor":
        positions = op.Sub(positions, 0.5)
    rounded = op.Ceil(positions) if nearest_mode in ("round_prefer_floor", "ceil") else op.Floor(positions)
    return _clamped(op, op.cast(rounded, _INT64), size)


def _linear(op: OpBuilder, size: Size, positions: ir.Value) -> tuple[ir.Value, ir.Value]:
    positions = op.Max(positions, 0.0)
    floor = op.Floor(positions)
    fraction = op.Unsqueeze(op.Sub(positions, floor), [1])
    index = op.Add(op.Unsqueeze(op.cast(floor, _INT64), [1]), [0, 1])
    return _clamped(op, index, size), op.Concat(op.Sub(1.0, fraction), fraction, axis=1)


def _cubic_filter(op: OpBuilder, distance: ir.Value, a: float) -> ir.Value:
    """Return Keys' convolution kernel at absolute distances; 0 from 2 on."""
    x = op.Min(distance, 2.0)
    near = op.Add(op.Mul(op.Mul(op.Sub(op.Mul(x, a + 2), a + 3), x), x), 1.0)
    far = op.Sub(op.Mul(op.Add(op.Mul(op.Sub(op.Mul(x, a), 5 * a), x), 8 * a), x), 4 * a)
    return op.Where(op.LessOrEqual(x, 1.0), near, far)


def _cubic(op: OpBuilder, size: Size, positions: ir.Value, a: float) -> tuple[ir.Value, ir.Value]:
    floor = op.Floor(positions)
    fraction = op.Unsqueeze(op.Sub(positions, floor), [1])
    offsets = [-1, 0, 1, 2]
    index = op.Add(op.Unsqueeze(op.cast(floor, _INT64), [1]), offsets)
    distance = op.Abs(op.Sub(fraction, [float(offset) for offset in offsets]))
    return _clamped(op, index, size), _cubic_filter(op, distance, a)


def _antialiased(
    op: OpBuilder, size: Size, count: Size, ratio: Ratio, mode: str, a: float, dtype: ir.DataType
) -> tuple[ir.Value, ir.Value]:
    """Return taps and weights of the filter stretched over the inputs that one output covers.

    The weights outside the input are left out and the others sum to one, as in torch's ``_upsample_*_aa``.
    """
    reach = 1.0 if mode == "linear" else 2.0
    stretch = op.Max(op.constant(ratio, dtype) if isinstance(ratio, float) else ratio, 1.0)
    support = op.Mul(stretch, reach)
    center = op.Unsqueeze(op.Mul(op.Add(op.cast(arange(op, count), dtype), 0.5), ratio), [1])
    first = op.Max(op.Floor(op.Add(op.Sub(center, support), 0.5)), 0.0)
    end = op.Min(op.Floor(op.Add(op.Add(center, support), 0.5)), op.number(size, dtype))
    taps = op.as_size(op.Unsqueeze(op.Add(op.Mul(op.cast(op.Ceil(support), _INT64), 2), 1), [0]))
    reached = op.Add(first, op.cast(arange(op, taps), dtype))
    distance = op.Abs(op.Div(op.Add(op.Sub(reached, center), 0.5), stretch))
    weights = op.Max(op.Sub(1.0, distance), 0.0) if mode == "linear" else _cubic_filter(op, distance, a)
    weights = op.Where(op.Less(reached, end), weights, op.constant(0.0, dtype))
    index = _clamped(op, op.cast(reached, _INT64), size)
    return index, op.Div(weights, op.ReduceSum(weights, [1]))


def resample(
    op: OpBuilder,
    x: ir.Value,
    axis: int,
    count: Size,
    ratio: Ratio,
    *,
    mode: str,
    coordinates: str,
    nearest_mode: str = "floor",
    cubic_coeff_a: float = -0.75,
    antialias: bool = False,
) -> ir.Value:
    """Resample one axis of ``x`` to ``count`` elements by gathering and weighting them.

    Args:
        op: Builder in the newest dialect.
        x: Tensor to resample.
        axis: Axis, not negative.
        count: Size of the axis afterwards.
        ratio: Distance of neighbouring outputs in the input.
        mode: ``nearest``, ``linear`` or ``cubic``.
        coordinates: ``half_pixel``, or anything else for ``ratio * i``.
        nearest_mode: ``floor``, ``ceil``, ``round_prefer_floor`` or ``round_prefer_ceil``.
        cubic_coeff_a: Coefficient of the cubic kernel.
        antialias: Whether the filter widens where the axis shrinks.
    """
    size, dtype = op.size(x, axis), position_dtype(x, mode)
    if antialias and mode != "nearest":
        index, weights = _antialiased(op, size, count, ratio, mode, cubic_coeff_a, dtype)
    else:
        positions = _positions(op, count, ratio, coordinates, dtype)
        if mode == "nearest":
            return op.Gather(x, _nearest(op, size, positions, nearest_mode), axis=axis)
        if mode == "linear":
            index, weights = _linear(op, size, positions)
        else:
            index, weights = _cubic(op, size, positions, cubic_coeff_a)
    behind = op.rank(x) - axis - 1
    weights = op.cast(op.Unsqueeze(weights, list(range(2, 2 + behind))), op.dtype(x))
    return op.ReduceSum(op.Mul(op.Gather(x, index, axis=axis), weights), [axis + 1], keepdims=0)


def resampled_size(op: OpBuilder, size: Size, scale: float) -> Size:
    """Return ``floor(size * scale)``."""
    if isinstance(size, int):
        return int(size * scale)
    if scale == int(scale):
        return op.size_mul(size, int(scale))
    product = op.Floor(op.Mul(op.cast(size, ir.DataType.DOUBLE), scale))
    return op.as_size(op.Unsqueeze(op.cast(product, _INT64), [0]))
