"""Operators of torchvision, by name: the library need not be installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.errors import LoweringError
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size


@lowering("torchvision::nms")
def nms(op: OpBuilder, dets: ir.Value, scores: ir.Value, iou_threshold: float) -> ir.Value:
    count = op.size(dets, 0)
    boxes, ranks = op.Unsqueeze(op.cast(dets, ir.DataType.FLOAT), [0]), op.cast(scores, ir.DataType.FLOAT)
    # Rows are (batch, class, box), in the order of falling scores as in torchvision.
    selected = op.NonMaxSuppression(boxes, op.Unsqueeze(ranks, [0, 1]), op.vector([count]), [iou_threshold])
    return op.Gather(selected, op.constant(2), axis=1)


def _static(size: Size, name: str) -> int:
    if not isinstance(size, int):
        raise LoweringError(f"{name} has to be static: ONNX has it as an attribute.")
    return size


@lowering("torchvision::roi_align")
def roi_align(
    op: OpBuilder,
    input: ir.Value,
    rois: ir.Value,
    spatial_scale: float,
    pooled_height: Size,
    pooled_width: Size,
    sampling_ratio: int,
    aligned: bool,
) -> ir.Value:
    batch = op.cast(op.Gather(rois, op.constant(0), axis=1), ir.DataType.INT64)
    return op.RoiAlign(
        input,
        op.Slice(rois, [1], [5], [1]),
        batch,
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
        output_height=_static(pooled_height, "pooled_height"),
        output_width=_static(pooled_width, "pooled_width"),
        sampling_ratio=max(sampling_ratio, 0),
        spatial_scale=spatial_scale,
    )


@lowering("torchvision::ps_roi_align")
def ps_roi_align(
    op: OpBuilder,
    input: ir.Value,
    rois: ir.Value,
    spatial_scale: float,
    pooled_height: Size,
    pooled_width: Size,
    sampling_ratio: int,
) -> tuple[ir.Value, None]:
    """Pool every channel everywhere, then keep for each bin the channel that belongs to it."""
    height, width = _static(pooled_height, "pooled_height"), _static(pooled_width, "pooled_width")
    pooled = roi_align(op, input, rois, spatial_scale, height, width, sampling_ratio, True)
    bins = height * width
    channels = op.size_floordiv(op.size(input, 1), bins)
    regions = op.size(rois, 0)
    pairs = op.reshape(pooled, [regions, channels, bins * bins])
    own = op.Gather(pairs, op.constant([index * (bins + 1) for index in range(bins)]), axis=2)
    return op.reshape(own, [regions, channels, height, width]), None


@lowering("torchvision::roi_pool")
def roi_pool(
    op: OpBuilder, input: ir.Value, rois: ir.Value, spatial_scale: float, pooled_height: Size, pooled_width: Size
) -> tuple[ir.Value, None]:
    shape = [_static(pooled_height, "pooled_height"), _static(pooled_width, "pooled_width")]
    return op.MaxRoiPool(input, rois, pooled_shape=shape, spatial_scale=spatial_scale), None


@lowering("torchvision::deform_conv2d")
def deform_conv2d(
    op: OpBuilder,
    input: ir.Value,
    weight: ir.Value,
    offset: ir.Value,
    mask: ir.Value,
    bias: ir.Value,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> ir.Value:
    return op.DeformConv(
        input,
        weight,
        offset,
        bias,
        mask if use_mask else None,
        strides=[stride_h, stride_w],
        pads=[pad_h, pad_w, pad_h, pad_w],
        dilations=[dilation_h, dilation_w],
        group=groups,
        offset_group=offset_groups,
    )
