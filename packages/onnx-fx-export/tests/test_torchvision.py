"""Detection models of torchvision keep the boxes that eager PyTorch keeps, for images that capture has not seen."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision_operators
from detection_models import MODELS, OF_BOXES, apart
from torch.utils import _pytree as pytree

from onnx_fx_export import export


@pytest.mark.parametrize("name", MODELS)
def test_a_detection_model_finds_the_same_boxes(name: str) -> None:
    detection = pytest.importorskip("torchvision.models.detection")
    torch.manual_seed(0)
    model = apart(getattr(detection, name)(**MODELS[name]).eval())

    program = export(model, ([torch.rand(3, 96, 112)],), opset_version=18)

    for _ in range(3):
        images = [torch.rand(3, 96, 112)]
        with torch.no_grad():
            expected = pytree.tree_leaves(model(images))
        assert len(expected[0]) > 5
        for actual, wanted in zip(pytree.tree_leaves(program(images)), expected, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.wide
@pytest.mark.parametrize("name", MODELS)
def test_a_detection_model_takes_images_of_any_size(name: str) -> None:
    detection = pytest.importorskip("torchvision.models.detection")
    torch.manual_seed(0)
    model = apart(getattr(detection, name)(**MODELS[name]).eval())

    assert_right_at_any_size(model)


@pytest.mark.wide
@pytest.mark.parametrize("name", OF_BOXES)
def test_what_is_computed_of_boxes_is_right_in_images_of_any_size(name: str) -> None:
    pytest.importorskip("torchvision.models.detection")
    torch.manual_seed(0)
    assert_right_at_any_size(apart(OF_BOXES[name]().eval()))


def assert_right_at_any_size(model: torch.nn.Module) -> None:
    shapes = {"images": [{1: "height", 2: "width"}]}
    program = export(model, ([torch.rand(3, 96, 112)],), opset_version=18, dynamic_shapes=shapes)

    for height, width in ((96, 112), (80, 130), (150, 100)):
        images = [torch.rand(3, height, width)]
        with torch.no_grad():
            expected = pytree.tree_leaves(model(images))
        assert len(expected[0]) > 5
        for actual, wanted in zip(pytree.tree_leaves(program(images)), expected, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=5e-3)


class Suppressing(torch.nn.Module):
    """What the models call, by the module as they do; torchvision's own asks for the number of boxes."""

    def forward(self, boxes: torch.Tensor, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        good = torch.where(scores > 0.3)[0]
        library: Any = sys.modules["torchvision.ops.boxes"]
        return library.batched_nms(boxes[good], scores[good], labels[good], 0.4)


def batched_nms(boxes: torch.Tensor, scores: torch.Tensor, idxs: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """One category after the other, as torchvision defines it."""
    if boxes.numel() == 0:
        return torch.empty(0, dtype=torch.int64)
    kept = torch.zeros(len(scores), dtype=torch.bool)
    for label in idxs.unique():
        own = torch.where(idxs == label)[0]
        kept[own[torch.ops.torchvision.nms(boxes[own], scores[own], iou_threshold)]] = True
    places = torch.where(kept)[0]
    return places[scores[places].argsort(descending=True)]


def test_boxes_are_suppressed_by_category_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    torchvision_operators.define()
    library = SimpleNamespace(batched_nms=batched_nms)
    monkeypatch.setitem(sys.modules, "torchvision.ops.boxes", library)
    model = Suppressing()

    def example(count: int, best: float = 1.0) -> tuple[torch.Tensor, ...]:
        corner = torch.rand(count, 2) * 6 - 3
        boxes = torch.cat([corner, corner + torch.rand(count, 2) * 4 + 1], 1)
        return boxes, torch.rand(count) * best, torch.randint(0, 3, (count,))

    program = export(model, example(8), dynamic_shapes=[{0: "n"}] * 3)

    assert library.batched_nms is batched_nms
    for arguments in (example(8), example(40), example(5, best=0.2), example(120)):
        torch.testing.assert_close(program(*arguments), model(*arguments))


def expand_masks(mask: torch.Tensor, padding: int) -> tuple[torch.Tensor, float]:
    return F.pad(mask, (padding,) * 4), (mask.shape[-1] + 2 * padding) / mask.shape[-1]


def expand_boxes(boxes: torch.Tensor, scale: float) -> torch.Tensor:
    center, half = (boxes[:, 2:] + boxes[:, :2]) * 0.5, (boxes[:, 2:] - boxes[:, :2]) * 0.5 * scale
    return torch.cat([center - half, center + half], 1)


def paste_masks_in_image(masks: torch.Tensor, boxes: torch.Tensor, img_shape: tuple[int, int]) -> torch.Tensor:
    """One mask after the other, as torchvision defines it."""
    masks, scale = expand_masks(masks, 1)
    pasted = masks.new_zeros(len(masks), 1, *img_shape)
    for mask, image, (left, top, right, bottom) in zip(
        masks, pasted, expand_boxes(boxes, scale).long().tolist(), strict=True
    ):
        size = max(bottom - top + 1, 1), max(right - left + 1, 1)
        resized = F.interpolate(mask[None], size=size, mode="bilinear", align_corners=False)[0, 0]
        y0, y1, x0, x1 = max(top, 0), min(bottom + 1, img_shape[0]), max(left, 0), min(right + 1, img_shape[1])
        image[0, y0:y1, x0:x1] = resized[y0 - top : y1 - top, x0 - left : x1 - left]
    return pasted


class Pasting(torch.nn.Module):
    def forward(self, image: torch.Tensor, masks: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        height, width = image.shape[-2:]
        library: Any = sys.modules["torchvision.models.detection.roi_heads"]
        return library.paste_masks_in_image(masks, boxes, (height, width))


def test_masks_are_pasted_into_images_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = {"expand_masks": expand_masks, "expand_boxes": expand_boxes}
    library = SimpleNamespace(paste_masks_in_image=paste_masks_in_image, **functions)
    monkeypatch.setitem(sys.modules, "torchvision.models.detection.roi_heads", library)
    model = Pasting()
    torch.manual_seed(0)

    def example(count: int, height: int, width: int) -> tuple[torch.Tensor, ...]:
        # Each box is partly in the image, as torchvision needs.
        corner = torch.rand(count, 2) * torch.tensor([width, height]) - 2
        boxes = torch.cat([corner, corner + torch.rand(count, 2) * 12 + 3], 1)
        return torch.zeros(3, height, width), torch.rand(count, 1, 7, 7), boxes

    program = export(model, example(3, 20, 30), dynamic_shapes=({1: "height", 2: "width"}, {0: "n"}, {0: "n"}))

    assert library.paste_masks_in_image is paste_masks_in_image
    for arguments in (example(3, 20, 30), example(5, 33, 17), example(2, 9, 40)):
        torch.testing.assert_close(program(*arguments), model(*arguments))
