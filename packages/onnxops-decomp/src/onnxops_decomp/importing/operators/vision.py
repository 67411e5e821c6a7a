"""Detection and sampling, in the forms that came before those of onnxops-core."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxops_core import native
from onnxops_decomp.importing.registry import onnx_op

_MODES = {"bilinear": "linear", "bicubic": "cubic"}


@onnx_op("GridSample", since=16)
def grid_sample(
    X: Tensor, grid: Tensor, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Tensor:
    return native.grid_sample(
        X, grid, align_corners=bool(align_corners), mode=_MODES.get(mode, mode), padding_mode=padding_mode
    )


@onnx_op("DeformConv", since=19)
def deform_conv(
    X: Tensor,
    W: Tensor,
    offset: Tensor,
    B: Tensor | None = None,
    mask: Tensor | None = None,
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    offset_group: int = 1,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    return native.deform_conv(
        X,
        W,
        offset,
        B,
        mask,
        dilations=dilations or (),
        group=group,
        kernel_shape=kernel_shape or (),
        offset_group=offset_group,
        pads=pads or (),
        strides=strides or (),
    )


@onnx_op("RoiAlign", since=10)
def roi_align(
    X: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    coordinate_transformation_mode: str = "output_half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:
    return native.roi_align(
        X,
        rois,
        batch_indices,
        coordinate_transformation_mode=coordinate_transformation_mode,
        mode=mode,
        output_height=output_height,
        output_width=output_width,
        sampling_ratio=sampling_ratio,
        spatial_scale=spatial_scale,
    )


@onnx_op("MaxRoiPool")
def max_roi_pool(X: Tensor, rois: Tensor, pooled_shape: list[int], spatial_scale: float = 1.0) -> Tensor:
    scaled = rois[:, 1:] * spatial_scale
    corners = torch.where(scaled < 0, torch.ceil(scaled - 0.5), torch.floor(scaled + 0.5))  # x, y, x, y
    found = X.index_select(0, rois[:, 0].to(torch.int64))
    for axis, column, count in ((-1, 0, pooled_shape[1]), (-2, 1, pooled_shape[0])):
        first = corners[:, column : column + 1]
        step = (corners[:, column + 2 : column + 3] - first + 1).clamp(min=1) / count
        bins = torch.arange(count, device=X.device)
        start, end = torch.floor(bins * step) + first, torch.ceil((bins + 1) * step) + first
        place = torch.arange(X.shape[axis], device=X.device)
        inside = (place >= start.unsqueeze(-1)) & (place < end.unsqueeze(-1))  # (rois, bins, elements)
        spread = torch.where(inside[:, None, None], found.movedim(axis, -1).unsqueeze(-2), -torch.inf)
        found = spread.amax(-1).movedim(-1, axis)
    return torch.where(found == -torch.inf, 0, found)  # a bin of no elements is 0


@onnx_op("NonMaxSuppression", since=10)
def non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: int = 0,
    iou_threshold: float = 0.0,
    score_threshold: float | None = None,
    center_point_box: int = 0,
) -> Tensor:
    centers = bool(center_point_box)
    return native.non_max_suppression(
        boxes, scores, max_output_boxes_per_class, iou_threshold, score_threshold, center_point_box=centers
    )
