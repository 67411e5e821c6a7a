"""The detection models of torchvision, captured although they ask how many boxes there are.

``torchvision.ops.boxes.batched_nms`` chooses between two ways to the same result by the number of boxes, which depends
on the values of tensors, and torch.export cannot follow it. While a model is captured, the way that takes any number of
boxes stands in its place; torchvision takes it too when it is traced.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

from onnxops_core.exporting import replaced

__all__ = ["any_number_of_boxes"]


@contextlib.contextmanager
def any_number_of_boxes() -> Iterator[None]:
    """Replace ``batched_nms`` for models that call it by its module, as those of torchvision do."""
    boxes: Any = sys.modules.get("torchvision.ops.boxes")
    if boxes is None:
        yield
        return
    with replaced([(boxes, "batched_nms", _batched_nms)], in_all_threads=True):
        yield


def _batched_nms(boxes: torch.Tensor, scores: torch.Tensor, idxs: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Suppress boxes of each category alone: moved apart by category, boxes of two categories do not overlap."""
    # The zero gives the largest coordinate of no boxes a value, and changes no other: an offset may be larger.
    largest = torch.cat([boxes.flatten(), boxes.new_zeros(1)]).max()
    offsets = idxs.to(boxes) * (largest + 1)
    kept: torch.Tensor = torch.ops.torchvision.nms(boxes + offsets[:, None], scores, iou_threshold)
    return kept
