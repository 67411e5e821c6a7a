"""torchvision's operators from their definitions, where the library itself is not there to define them.

Every function follows the published description of the operator element by element, without regard for speed.
"""

from __future__ import annotations

import contextlib
import importlib
import math

import torch

__all__ = ["define"]


def _bilinear(plane: torch.Tensor, y: float, x: float) -> torch.Tensor:
    """Interpolate (C, H, W) at one position; outside by more than a pixel there is nothing."""
    channels, height, width = plane.shape
    if y < -1 or y > height or x < -1 or x > width:
        return torch.zeros(channels)
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    dy, dx = y - top, x - left
    upper = plane[:, top, left] * (1 - dx) + plane[:, top, right] * dx
    lower = plane[:, bottom, left] * (1 - dx) + plane[:, bottom, right] * dx
    return upper * (1 - dy) + lower * dy


def _nms(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    areas = (dets[:, 2] - dets[:, 0]) * (dets[:, 3] - dets[:, 1])
    kept: list[int] = []
    for index in scores.argsort(descending=True).tolist():
        overlaps = []
        for other in kept:
            size = torch.minimum(dets[index, 2:], dets[other, 2:]) - torch.maximum(dets[index, :2], dets[other, :2])
            common = size.clamp(min=0).prod()
            overlaps.append(float(common / (areas[index] + areas[other] - common)))
        if all(overlap <= iou_threshold for overlap in overlaps):
            kept.append(index)
    return torch.tensor(kept, dtype=torch.int64)


def _roi_align(
    input: torch.Tensor,
    rois: torch.Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> torch.Tensor:
    if 0 in input.shape[2:]:
        raise RuntimeError("the kernels of torchvision and of ONNX Runtime read beyond an image without pixels")
    result = torch.zeros(len(rois), input.shape[1], pooled_height, pooled_width)
    for index, (batch, *corners) in enumerate(rois.tolist()):
        left, top, right, bottom = (corner * spatial_scale - (0.5 if aligned else 0.0) for corner in corners)
        width, height = right - left, bottom - top
        if not aligned:
            width, height = max(width, 1.0), max(height, 1.0)
        bin_height, bin_width = height / pooled_height, width / pooled_width
        rows = sampling_ratio if sampling_ratio > 0 else math.ceil(height / pooled_height)
        columns = sampling_ratio if sampling_ratio > 0 else math.ceil(width / pooled_width)
        for i in range(pooled_height):
            for j in range(pooled_width):
                samples = [
                    _bilinear(
                        input[int(batch)],
                        top + (i + (a + 0.5) / rows) * bin_height,
                        left + (j + (b + 0.5) / columns) * bin_width,
                    )
                    for a in range(rows)
                    for b in range(columns)
                ]
                result[index, :, i, j] = torch.stack(samples).mean(0)
    return result


def _ps_roi_align(
    input: torch.Tensor,
    rois: torch.Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    channels = input.shape[1] // (pooled_height * pooled_width)
    result = torch.zeros(len(rois), channels, pooled_height, pooled_width)
    for i in range(pooled_height):
        for j in range(pooled_width):
            own = input[:, i * pooled_width + j :: pooled_height * pooled_width]
            pooled = _roi_align(own, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, True)
            result[:, :, i, j] = pooled[:, :, i, j]
    return result, torch.zeros(result.shape, dtype=torch.int32)


def _roi_pool(
    input: torch.Tensor, rois: torch.Tensor, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    result = torch.zeros(len(rois), input.shape[1], pooled_height, pooled_width)
    size = input.shape[2:]
    for index, (batch, *corners) in enumerate(rois.tolist()):
        left, top, right, bottom = (math.floor(corner * spatial_scale + 0.5) for corner in corners)
        height, width = max(bottom - top + 1, 1), max(right - left + 1, 1)
        for i in range(pooled_height):
            for j in range(pooled_width):
                rows = (top + i * height // pooled_height, top - (-(i + 1) * height // pooled_height))
                columns = (left + j * width // pooled_width, left - (-(j + 1) * width // pooled_width))
                (y0, y1), (x0, x1) = (
                    (min(max(start, 0), limit), min(max(end, 0), limit))
                    for (start, end), limit in zip((rows, columns), size, strict=True)
                )
                if y1 > y0 and x1 > x0:
                    result[index, :, i, j] = input[int(batch), :, y0:y1, x0:x1].amax((1, 2))
    return result, torch.zeros(result.shape, dtype=torch.int32)


def _zero_padded(plane: torch.Tensor, y: float, x: float) -> torch.Tensor:
    """Interpolate (C, H, W) at one position, as if zeros surrounded it."""
    height, width = plane.shape[1:]
    top, left = math.floor(y), math.floor(x)
    total = torch.zeros(plane.shape[0])
    for row, a in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, b in ((left, 1 - (x - left)), (left + 1, x - left)):
            if 0 <= row < height and 0 <= column < width:
                total = total + plane[:, row, column] * a * b
    return total


def _deform_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    offset: torch.Tensor,
    mask: torch.Tensor,
    bias: torch.Tensor,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> torch.Tensor:
    batch, channels = input.shape[:2]
    out, inner, kernel_h, kernel_w = weight.shape
    rows, columns = offset.shape[2:]
    shifts = offset.reshape(batch, offset_groups, kernel_h, kernel_w, 2, rows, columns)
    factors = mask.reshape(batch, offset_groups, kernel_h, kernel_w, rows, columns) if use_mask else None
    sampled = torch.zeros(batch, channels, kernel_h, kernel_w, rows, columns)
    share = channels // offset_groups
    for n, g, i, j, r, c in torch.cartesian_prod(
        *(torch.arange(k) for k in (batch, offset_groups, kernel_h, kernel_w, rows, columns))
    ).tolist():
        dy, dx = shifts[n, g, i, j, :, r, c].tolist()
        y, x = r * stride_h - pad_h + i * dilation_h + dy, c * stride_w - pad_w + j * dilation_w + dx
        value = _zero_padded(input[n, g * share : (g + 1) * share], y, x)
        sampled[n, g * share : (g + 1) * share, i, j, r, c] = value * (
            1 if factors is None else factors[n, g, i, j, r, c]
        )
    grouped = sampled.reshape(batch, groups, inner, kernel_h, kernel_w, rows, columns)
    kernels = weight.reshape(groups, out // groups, inner, kernel_h, kernel_w)
    result = torch.einsum("ngcijrs,gocij->ngors", grouped, kernels).reshape(batch, out, rows, columns)
    return result + bias[:, None, None]


def define() -> None:
    """Define the operators unless torchvision does, which ends the process where others have defined them before."""
    with contextlib.suppress(ImportError, RuntimeError):  # it may be missing, or made for another torch
        importlib.import_module("torchvision")
    if hasattr(torch.ops.torchvision, "nms"):
        return
    custom = torch.library.custom_op
    nms = custom("torchvision::nms", _nms, mutates_args=())
    nms.register_fake(lambda dets, *rest: dets.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64))
    align = custom("torchvision::roi_align", _roi_align, mutates_args=())
    align.register_fake(lambda x, r, scale, h, w, *rest: x.new_empty(r.shape[0], x.shape[1], h, w))
    ps_align = custom("torchvision::ps_roi_align", _ps_roi_align, mutates_args=())
    ps_align.register_fake(_two_of(lambda x, r, h, w: (r.shape[0], x.shape[1] // (h * w), h, w)))
    pool = custom("torchvision::roi_pool", _roi_pool, mutates_args=())
    pool.register_fake(_two_of(lambda x, r, h, w: (r.shape[0], x.shape[1], h, w)))
    deform = custom("torchvision::deform_conv2d", _deform_conv2d, mutates_args=())
    deform.register_fake(lambda x, w, o, *rest: x.new_empty(x.shape[0], w.shape[0], *o.shape[2:]))


def _two_of(shape):  # type: ignore[no-untyped-def]
    def fake(x, r, scale, h, w, *rest):  # type: ignore[no-untyped-def]
        empty = x.new_empty(shape(x, r, h, w))
        return empty, empty.to(torch.int32)

    return fake
