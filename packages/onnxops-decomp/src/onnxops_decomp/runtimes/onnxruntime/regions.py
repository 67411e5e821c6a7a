"""Pooling over regions of images, composed region by region where runtimes have no kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.builder.forms import without_kernel
from onnxops_decomp.builder.sizes import Size
from onnxops_decomp.formulas.loops import repeat
from onnxops_decomp.formulas.operands import arange

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

_FLOAT, _INT32, _INT64 = ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64

Pooling = Callable[["OpBuilder", ir.Value, ir.Value], ir.Value]


def _by_region(
    op: OpBuilder, images: ir.Value, rois: ir.Value, batch: ir.Value, parts: Sequence[int], pool: Pooling
) -> ir.Value:
    """Stack ``pool(op, image, roi)`` for each region, image (C, H, W) and roi (4,), the result (C, *parts)."""

    def step(body: OpBuilder, i: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        image = body.Gather(images, body.Gather(batch, i, axis=0), axis=0)
        return [], [pool(body, image, body.Gather(rois, i, axis=0))]

    sizes = [op.size(rois, 0), op.size(images, 1), *parts]
    _, [stacked] = repeat(op, sizes[0], [], step)
    # What no iteration collects has no sizes but 0, and ONNX's evaluator joins instead of stacking.
    stacked.shape = None
    result = op.reshape(stacked, sizes)
    op.set_dims(result, [op.dim(size) for size in sizes])
    return result


# ---- RoiAlign


def _aligned(
    op: OpBuilder, image: ir.Value, axis: int, start: ir.Value, length: ir.Value, count: int, samples: int, mode: str
) -> ir.Value:
    """Pool interpolated samples in each of ``count`` parts of one axis; 0 samples is one for each pixel at most.

    The maximum is that of the weighted pixels, as ONNX defines it. No weight is negative, so that the maximum over one
    axis may be weighted along the other.
    """
    size = op.size(image, axis)
    part = op.Div(length, float(count))
    wanted = op.constant(samples) if samples else op.cast(op.Ceil(part), _INT64)
    taps = op.Max(wanted, 1)
    index = op.Range(0, op.Mul(taps, count), 1)
    within = op.Div(op.Add(op.cast(op.Mod(index, taps), _FLOAT), 0.5), op.cast(taps, _FLOAT))
    place = op.Add(start, op.Mul(op.Add(op.cast(op.Div(index, taps), _FLOAT), within), part))
    inside = op.And(op.GreaterOrEqual(place, -1.0), op.LessOrEqual(place, op.number(size, _FLOAT)))
    inside = op.And(inside, op.Greater(wanted, 0))
    last = op.number(op.size_sub(size, 1), _FLOAT)
    place = op.Min(op.Max(place, 0.0), last)
    low = op.Floor(place)
    fraction = op.Sub(place, low)
    terms: list[ir.Value] = []
    for tap, weight in ((low, op.Sub(1.0, fraction)), (op.Min(op.Add(low, 1.0), last), fraction)):
        weight = op.cast(op.Where(inside, weight, op.constant(0.0)), op.dtype(image))
        shaped = op.Unsqueeze(weight, list(range(1, 3 - axis))) if axis < 2 else weight
        terms.append(op.Mul(op.Gather(image, op.cast(tap, _INT64), axis=axis), shaped))
    sampled = op.Add(*terms) if mode == "avg" else op.Max(*terms)
    sizes: list[Size] = [*op.sizes(image)[:axis], count, -1, *op.sizes(image)[axis + 1 :]]
    reduction = "ReduceMean" if mode == "avg" else "ReduceMax"
    return op.emit(reduction, op.reshape(sampled, sizes), [axis + 1], keepdims=0)


@without_kernel("RoiAlign")
def roi_align(
    op: OpBuilder,
    X: ir.Value,
    rois: ir.Value,
    batch_indices: ir.Value,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> ir.Value:
    aligned = coordinate_transformation_mode == "half_pixel"

    def pool(body: OpBuilder, image: ir.Value, roi: ir.Value) -> ir.Value:
        corners = body.Mul(body.cast(roi, _FLOAT), spatial_scale)
        corners = body.Sub(corners, 0.5) if aligned else corners
        for axis, first, count in ((1, 1, output_height), (2, 0, output_width)):
            start, end = (body.Gather(corners, place, axis=0) for place in (first, first + 2))
            length = body.Sub(end, start)
            length = length if aligned else body.Max(length, 1.0)
            image = _aligned(body, image, axis, start, length, count, sampling_ratio, mode)
        return image

    return _by_region(op, X, rois, batch_indices, [output_height, output_width], pool)


# ---- MaxRoiPool


def _members(op: OpBuilder, size: Size, first: ir.Value, last: ir.Value, count: int) -> ir.Value:
    """Tell as (count, size) which pixels of one axis belong to each part of the region from ``first`` to ``last``."""
    part = op.Div(op.Max(op.Add(op.Sub(last, first), 1.0), 1.0), float(count))
    number = op.Unsqueeze(op.cast(arange(op, count), _FLOAT), [1])
    begin = op.Add(op.Floor(op.Mul(number, part)), first)
    end = op.Add(op.Ceil(op.Mul(op.Add(number, 1.0), part)), first)
    pixel = op.cast(arange(op, size), _FLOAT)
    return op.And(op.GreaterOrEqual(pixel, begin), op.Less(pixel, end))


def _any(op: OpBuilder, members: ir.Value, *, keepdims: int) -> ir.Value:
    """Tell which parts have pixels; without any pixels none has, where a maximum would be the least number."""
    return op.Greater(op.ReduceSum(op.cast(members, _INT32), [1], keepdims=keepdims), 0)


@without_kernel("MaxRoiPool")
def max_roi_pool(
    op: OpBuilder, X: ir.Value, rois: ir.Value, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> ir.Value:
    dtype = op.dtype(X)
    # Kernels, torchvision's too, begin with the least finite number.
    least = op.constant(float(ir.DataType(dtype).min), dtype)
    X = op.Max(X, least)

    def pool(body: OpBuilder, image: ir.Value, roi: ir.Value) -> ir.Value:
        scaled = body.Mul(body.cast(roi, _FLOAT), spatial_scale)
        # Halves are rounded away from zero.
        corners = body.Mul(body.Sign(scaled), body.Floor(body.Add(body.Abs(scaled), 0.5)))
        left, top, right, bottom = (body.Gather(corners, place, axis=0) for place in range(4))
        rows = _members(body, body.size(image, 1), top, bottom, pooled_shape[0])
        spread = body.Where(body.Unsqueeze(rows, [2]), body.Unsqueeze(image, [1]), least)
        image = body.ReduceMax(spread, [2], keepdims=0)
        columns = _members(body, body.size(image, 2), left, right, pooled_shape[1])
        image = body.ReduceMax(body.Where(columns, body.Unsqueeze(image, [2]), least), [3], keepdims=0)
        filled = body.And(_any(body, rows, keepdims=1), _any(body, columns, keepdims=0))
        return body.Where(filled, image, body.constant(0, dtype))

    batch = op.cast(op.Gather(rois, 0, axis=1), _INT64)
    return _by_region(op, X, op.Slice(rois, [1], [5], [1]), batch, pooled_shape, pool)
