"""The instance masks of torchvision's models, pasted into the image without a loop over the boxes.

``torchvision.models.detection.roi_heads.paste_masks_in_image`` resizes each mask to its box, whose size data decides,
and copies it into an image. A row of the image is a mixture of the rows of the mask, and so is a column: both mixtures
are products with matrices, which hold zeros outside of the box.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

from onnxops_core.exporting import replaced

__all__ = ["masks_without_loops"]


@contextlib.contextmanager
def masks_without_loops() -> Iterator[None]:
    """Replace ``paste_masks_in_image`` where torchvision's models look for it."""
    names = ("torchvision.models.detection.roi_heads", "torchvision.models.detection.transform")
    homes = [home for name in names if (home := sys.modules.get(name)) is not None]
    with replaced([(home, "paste_masks_in_image", _paste_masks) for home in homes], in_all_threads=True):
        yield


def _paste_masks(masks: torch.Tensor, boxes: torch.Tensor, img_shape: tuple[int, int], padding: int = 1) -> Any:
    """Return masks (N, 1, M, M) in the size of the image (N, 1, height, width), by the same arithmetic."""
    library: Any = sys.modules["torchvision.models.detection.roi_heads"]
    padded, scale = library.expand_masks(masks, padding=padding)
    left, top, right, bottom = library.expand_boxes(boxes, scale).to(torch.int64).unbind(1)
    height, width = img_shape
    rows = _shares(top, bottom, height, padded)
    columns = _shares(left, right, width, padded)
    return (rows @ padded[:, 0] @ columns.transpose(1, 2))[:, None]


def _shares(first: torch.Tensor, last: torch.Tensor, size: int, masks: torch.Tensor) -> torch.Tensor:
    """Return for each box (N, size, M) what share the rows of its mask have in each row of the image.

    As in bilinear interpolation between the centers of pixels (``align_corners=False``).
    """
    count = masks.shape[-1]
    places = torch.arange(size, device=masks.device) - first[:, None]
    length = (last - first + 1).clamp(min=1)[:, None]
    source = ((places + 0.5) * (count / length.to(masks.dtype)) - 0.5).clamp(0, count - 1)
    distances = (source[..., None] - torch.arange(count, device=masks.device)).abs()
    inside = (places >= 0) & (places <= (last - first)[:, None])
    return (1 - distances).clamp(min=0) * inside[..., None]
