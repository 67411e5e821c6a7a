"""RoiAlign (opset 22) and NonMaxSuppression (opset 11) as torch operators."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import cast

import torch

from onnxops_core.native.declaring.call import Call, Integer, Number, OptionalNumber, operator_call, public
from onnxops_core.native.declaring.checks import check_choice, check_dtype, check_float, check_same_dtype, invalid
from onnxops_core.native.declaring.declare import declare

__all__ = ["non_max_suppression", "roi_align"]


@operator_call
class RoiAlignCall(Call[torch.Tensor]):
    """ONNX RoiAlign: pools regions of images to a fixed size, by bilinear samples.

    Args:
        X: ``(batch, channels, height, width)``; a float dtype.
        rois: ``(regions, 4)`` of X's dtype: x1, y1, x2, y2.
        batch_indices: ``(regions,)`` int64, each region's image.
        coordinate_transformation_mode: ``"half_pixel"`` shifts regions by half a pixel;
            ``"output_half_pixel"`` does not, and makes regions at least one pixel wide and high.
        mode: ``"avg"``, or ``"max"`` for the largest weighted corner of any sample.
        output_height: bins per region, vertically.
        output_width: bins per region, horizontally.
        sampling_ratio: samples per bin and dimension; 0 for as many as a bin has pixels, rounded up.
        spatial_scale: factor from the regions' coordinates to pixels of X.

    Returns:
        ``(regions, channels, output_height, output_width)`` of X's dtype.

    Raises:
        ValueError: shapes, dtypes, attributes or indices that the specification forbids.

    Source: https://onnx.ai/onnx/operators/onnx__RoiAlign.html
    """

    X: torch.Tensor
    rois: torch.Tensor
    batch_indices: torch.Tensor
    _: KW_ONLY
    coordinate_transformation_mode: str = "half_pixel"
    mode: str = "avg"
    output_height: int = 1
    output_width: int = 1
    sampling_ratio: int = 0
    spatial_scale: float = 1.0


def _roi_check(call: RoiAlignCall) -> None:
    x, rois = call.X, call.rois
    op = "RoiAlign"
    check_float(op, "X", x)
    check_same_dtype(op, "rois", rois, "X", x.dtype)
    check_choice(
        op, "coordinate_transformation_mode", call.coordinate_transformation_mode, ("half_pixel", "output_half_pixel")
    )
    check_choice(op, "mode", call.mode, ("avg", "max"))
    if x.dim() != 4 or x.shape[2] == 0 or x.shape[3] == 0:
        raise invalid(op, "X", x, "(batch, channels, height, width), height and width not zero")
    if rois.dim() != 2 or rois.shape[1] != 4:
        raise invalid(op, "rois", rois, "shape (number of regions, 4)")
    if call.batch_indices.dtype != torch.int64 or tuple(call.batch_indices.shape) != (rois.shape[0],):
        raise invalid(op, "batch_indices", call.batch_indices, f"shape ({rois.shape[0]},) and dtype int64")
    for name, value, least in (
        ("output_height", call.output_height, 1),
        ("output_width", call.output_width, 1),
        ("sampling_ratio", call.sampling_ratio, 0),
    ):
        if value < least:
            raise invalid(op, name, value, f"a number of at least {least}")
    if not 0 < call.spatial_scale < math.inf:
        raise invalid(op, "spatial_scale", call.spatial_scale, "a positive finite number")


def _roi_check_values(call: RoiAlignCall) -> None:
    if call.batch_indices.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(call.batch_indices))
    if low < 0 or high >= call.X.shape[0]:
        expected = f"numbers from 0 to {call.X.shape[0] - 1} (extremes shown)"
        raise invalid("RoiAlign", "batch_indices", (low, high), expected)


def _axis_samples(
    start: torch.Tensor, extent: torch.Tensor, counts: torch.Tensor, bins: int, samples: int, size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Place samples along one dimension.

    Returns for ``(regions, bins, samples)`` the lower and the upper pixel, the upper's weight, and whether a
    sample
    counts: a region has only as many as its count, and none outside of the image.
    """
    width = (extent / bins).view(-1, 1, 1)
    number = counts.view(-1, 1, 1)
    bin_index = torch.arange(bins, device=start.device, dtype=start.dtype).view(1, -1, 1)
    step = torch.arange(samples, device=start.device, dtype=start.dtype).view(1, 1, -1)
    position = start.view(-1, 1, 1) + bin_index * width + (step + 0.5) * width / number
    counted = (position >= -1.0) & (position <= size) & (step < number)
    position = position.clamp(0, size - 1)
    low = torch.floor(position.detach()).clamp(max=max(size - 2, 0))
    return low.to(torch.int64), (low + 1).clamp(max=size - 1).to(torch.int64), position - low, counted


def _largest(counts: torch.Tensor, sampling_ratio: int) -> int:
    """Return how many samples the region with most of them has along a dimension; 1 for no region."""
    if sampling_ratio > 0 or counts.shape[0] == 0:
        return max(sampling_ratio, 1)
    largest = cast(int, counts.to(torch.int64).amax().clamp(min=1).item())
    torch._check(largest >= 1)
    return largest


def _pool(
    x: torch.Tensor, boxes: torch.Tensor, batch_indices: torch.Tensor, mode: str, bins: tuple[int, int], ratio: int
) -> torch.Tensor:
    """Pool regions given as ``(x, y, width, height)`` in pixels."""
    height, width = x.shape[2:]
    adaptive = [torch.ceil(boxes[:, 3 - i].detach() / bins[i]).clamp(min=0) for i in range(2)]
    counts = [torch.full_like(count, ratio) if ratio > 0 else count for count in adaptive]
    samples = [_largest(count, ratio) for count in counts]
    y_low, y_high, y_weight, y_in = _axis_samples(boxes[:, 1], boxes[:, 3], counts[0], bins[0], samples[0], height)
    x_low, x_high, x_weight, x_in = _axis_samples(boxes[:, 0], boxes[:, 2], counts[1], bins[1], samples[1], width)
    planes = x.transpose(0, 1).flatten(1)
    base = (batch_indices * (height * width)).view(-1, 1, 1, 1, 1)
    inside = y_in[:, :, :, None, None] & x_in[:, None, None]
    terms = []
    for rows, row_weight in ((y_low, 1 - y_weight), (y_high, y_weight)):
        for columns, column_weight in ((x_low, 1 - x_weight), (x_high, x_weight)):
            index = base + rows[:, :, :, None, None] * width + columns[:, None, None]
            weight = row_weight[:, :, :, None, None] * column_weight[:, None, None]
            # (channels, regions, bins, samples, bins, samples)
            term = planes[:, index] * weight
            terms.append(torch.where(inside, term, torch.zeros_like(term)))
    if mode == "avg":
        total = sum(terms[1:], terms[0]).sum((3, 5))
        pooled = total / (counts[0] * counts[1]).clamp(min=1).view(-1, 1, 1)
    else:
        pooled = _largest_term(terms, counts, samples)
    return pooled.transpose(0, 1).clone(memory_format=torch.contiguous_format)


def _largest_term(terms: list[torch.Tensor], counts: list[torch.Tensor], samples: list[int]) -> torch.Tensor:
    """Return the largest weighted corner of a region's samples; a sample outside of the image contributes zero."""
    device = terms[0].device
    rows = torch.arange(samples[0], device=device) < counts[0].unsqueeze(1)
    columns = torch.arange(samples[1], device=device) < counts[1].unsqueeze(1)
    exists = rows[:, None, :, None, None] & columns[:, None, None, None, :]
    largest = torch.stack([term.masked_fill(~exists, -torch.inf) for term in terms]).amax((0, 4, 6))
    empty = (counts[0] * counts[1] == 0).view(-1, 1, 1)
    return largest.masked_fill(empty, 0.0)


def _roi_reference(call: RoiAlignCall) -> torch.Tensor:
    dtype = torch.promote_types(call.X.dtype, torch.float32)
    half_pixel = call.coordinate_transformation_mode == "half_pixel"
    corners = call.rois.to(dtype) * call.spatial_scale - (0.5 if half_pixel else 0.0)
    extents = corners[:, 2:] - corners[:, :2]
    if not half_pixel:
        extents = extents.clamp(min=1.0)
    boxes = torch.cat((corners[:, :2], extents), 1)
    bins = (call.output_height, call.output_width)
    pooled = _pool(call.X.to(dtype), boxes, call.batch_indices, call.mode, bins, call.sampling_ratio)
    return pooled.to(call.X.dtype)


def _roi_fake(call: RoiAlignCall) -> torch.Tensor:
    return call.X.new_empty((call.rois.shape[0], call.X.shape[1], call.output_height, call.output_width))


_ROI_ALIGN = declare(
    "RoiAlign",
    22,
    RoiAlignCall,
    reference=_roi_reference,
    fake=_roi_fake,
    check=_roi_check,
    check_values=_roi_check_values,
    opset_of_call=lambda call: 16,
)


roi_align = public("roi_align", RoiAlignCall, _ROI_ALIGN)


@operator_call
class NonMaxSuppressionCall(Call[torch.Tensor]):
    """ONNX NonMaxSuppression: per class the best boxes that do not overlap better ones too much.

    Args:
        boxes: ``(batch, boxes, 4)`` float32: y1, x1, y2, x2 of any two opposite corners, or centre x, y,
            width, height.
        scores: ``(batch, classes, boxes)`` float32.
        max_output_boxes_per_class: how many boxes are kept at most; 0 keeps none. A number or a one-element
            tensor, as the thresholds.
        iou_threshold: a box that overlaps a kept one by more (intersection over union) is dropped; 0 to 1.
        score_threshold: only boxes with a larger score are kept; all if None.
        center_point_box: whether boxes are given by centre and size.

    Returns:
        ``(kept, 3)`` int64: batch, class and box index.

    Raises:
        ValueError: shapes, dtypes or thresholds that the specification forbids.

    Decomposed into ATen operators, every box that may be kept is a step of its own, so ``max_output_boxes_per_class``
    may then be at most 1024 where the number of boxes is larger or dynamic; else NotImplementedError says so.

    Source: https://onnx.ai/onnx/operators/onnx__NonMaxSuppression.html
    """

    boxes: torch.Tensor
    scores: torch.Tensor
    max_output_boxes_per_class: Integer = Integer(0)
    iou_threshold: Number = Number(0.0)
    score_threshold: OptionalNumber = OptionalNumber(None)
    _: KW_ONLY
    center_point_box: bool = False


def _nms_check(call: NonMaxSuppressionCall) -> None:
    boxes, scores = call.boxes, call.scores
    op = "NonMaxSuppression"
    for name, tensor in (("boxes", boxes), ("scores", scores)):
        check_dtype(op, name, tensor, frozenset({torch.float32}))
    if boxes.dim() != 3 or boxes.shape[2] != 4:
        raise invalid(op, "boxes", boxes, "shape (batch, boxes, 4)")
    if scores.dim() != 3 or scores.shape[0] != boxes.shape[0] or scores.shape[2] != boxes.shape[1]:
        raise invalid(op, "scores", scores, f"shape (batch {boxes.shape[0]}, classes, boxes {boxes.shape[1]})")
    if call.max_output_boxes_per_class < 0:
        raise invalid(op, "max_output_boxes_per_class", call.max_output_boxes_per_class, "no negative number")
    if call.score_threshold is not None and math.isnan(call.score_threshold):
        raise invalid(op, "score_threshold", call.score_threshold, "a number, or None")
    if not 0 <= call.iou_threshold <= 1:
        raise invalid(op, "iou_threshold", call.iou_threshold, "a number from 0 to 1")


def _corners(boxes: torch.Tensor, center_point_box: bool) -> torch.Tensor:
    """Return ``(..., 4)`` boxes as smallest x and y, largest x and y."""
    if center_point_box:
        centre, half = boxes[..., :2], boxes[..., 2:] / 2
        return torch.cat((centre - half, centre + half), -1)
    y1, x1, y2, x2 = boxes.unbind(-1)
    smallest = torch.stack((torch.minimum(x1, x2), torch.minimum(y1, y2)), -1)
    return torch.cat((smallest, torch.stack((torch.maximum(x1, x2), torch.maximum(y1, y2)), -1)), -1)


def _overlaps(box: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Intersection over union of boxes ``(..., 1, 4)`` with others ``(..., n, 4)``; zero where one is empty."""
    sides = torch.minimum(box[..., 2:], others[..., 2:]) - torch.maximum(box[..., :2], others[..., :2])
    shared = sides.clamp(min=0).prod(-1)
    area = (box[..., 2:] - box[..., :2]).prod(-1)
    areas = (others[..., 2:] - others[..., :2]).prod(-1)
    union = area + areas - shared
    proper = (area > 0) & (areas > 0) & (union > 0)
    return torch.where(proper, shared / union, torch.zeros_like(union))


def _select(corners: torch.Tensor, scores: torch.Tensor, most: int, iou: float, least: float | None) -> list[int]:
    order = torch.sort(scores, descending=True, stable=True).indices
    if least is not None:
        order = order[scores[order] > least]
    chosen: list[int] = []
    while order.numel() and len(chosen) < most:
        best = int(order[0])
        chosen.append(best)
        order = order[1:]
        order = order[_overlaps(corners[best : best + 1], corners[order]) <= iou]
    return chosen


def _nms_reference(call: NonMaxSuppressionCall) -> torch.Tensor:
    corners, scores = _corners(call.boxes, call.center_point_box), call.scores
    most, iou, least = call.max_output_boxes_per_class, call.iou_threshold, call.score_threshold
    found = [
        (batch, label, box)
        for batch in range(scores.shape[0])
        for label in range(scores.shape[1])
        for box in _select(corners[batch], scores[batch, label], most, iou, least)
    ]
    return torch.tensor(found, dtype=torch.int64, device=call.boxes.device).reshape(-1, 3)


# The decomposition takes so many operators for each box that it may keep.
_UNROLLED_BOXES = 1024


def _nms_composite(call: NonMaxSuppressionCall) -> torch.Tensor:
    """Keep one box after the other, for all batches and classes at once, without a look at the data."""
    batch, classes, count = call.scores.shape
    most = call.max_output_boxes_per_class
    most = min(most, count) if isinstance(count, int) else most
    if most > _UNROLLED_BOXES:
        raise NotImplementedError(
            f"NonMaxSuppression decomposes for at most {_UNROLLED_BOXES} boxes per class, because every box is a step "
            f"of its own; max_output_boxes_per_class is {call.max_output_boxes_per_class}"
        )
    sorted_scores, order = torch.sort(call.scores, dim=-1, descending=True, stable=True)
    least = call.score_threshold
    alive = torch.ones_like(order, dtype=torch.bool) if least is None else sorted_scores > least
    corners = _corners(call.boxes, call.center_point_box)[:, None].expand(batch, classes, count, 4)
    corners = corners.gather(2, order[..., None].expand(batch, classes, count, 4))
    # One box more, empty, stands for "none is left".
    corners, order = torch.nn.functional.pad(corners, (0, 0, 0, 1)), torch.nn.functional.pad(order, (0, 1))
    alive, ranks = torch.nn.functional.pad(alive, (0, 1)), torch.arange(count + 1, device=call.boxes.device)
    kept, found = [], []
    for _ in range(most):
        best = torch.where(alive, ranks, count).amin(-1, keepdim=True)
        kept.append(order.gather(2, best))
        found.append(best < count)
        box = corners.gather(2, best[..., None].expand(batch, classes, 1, 4))
        alive = alive & (ranks != best) & (_overlaps(box, corners) <= call.iou_threshold)
    if not most:
        return call.boxes.new_empty((0, 3), dtype=torch.int64)
    where = torch.cat(found, -1).nonzero()
    chosen = torch.cat(kept, -1)[where[:, 0], where[:, 1], where[:, 2]]
    return torch.cat((where[:, :2], chosen[:, None]), 1)


def _nms_fake(call: NonMaxSuppressionCall) -> torch.Tensor:
    count = torch.library.get_ctx().new_dynamic_size()
    return call.boxes.new_empty((count, 3), dtype=torch.int64)


_NMS = declare(
    "NonMaxSuppression",
    11,
    NonMaxSuppressionCall,
    reference=_nms_reference,
    composite=_nms_composite,
    kernel=_nms_reference,
    fake=_nms_fake,
    check=_nms_check,
    scalar_inputs={"max_output_boxes_per_class": 7, "iou_threshold": 1, "score_threshold": 1},
)


non_max_suppression = public("non_max_suppression", NonMaxSuppressionCall, _NMS)
