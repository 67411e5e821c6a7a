"""Traced detection models of torchvision keep the boxes that eager PyTorch keeps, for images of other sizes."""

from __future__ import annotations

import pytest
import torch
from detection_models import MODELS, apart
from torch.utils import _pytree as pytree

import onnx_ts_legacy


@pytest.mark.parametrize("name", MODELS)
def test_a_traced_detection_model_finds_the_same_boxes(name: str) -> None:
    detection = pytest.importorskip("torchvision.models.detection")
    torch.manual_seed(0)
    model = apart(getattr(detection, name)(**MODELS[name]).eval())

    class Found(torch.nn.Module):
        """The boxes, scores and labels of one image."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(pytree.tree_leaves(self.model([image])))

    found = Found().eval()
    program = onnx_ts_legacy.export(
        found, (torch.rand(3, 96, 112),), opset_version=13, dynamic_axes={"image": {1: "h", 2: "w"}}
    )

    # Both are resized by whole factors: ONNX Runtime rounds others to float.
    for size in ((96, 112), (96, 128), (48, 60)):
        image = torch.rand(3, *size)
        with torch.no_grad():
            expected = found(image)
        assert len(expected[0]) > 5
        for actual, wanted in zip(program(image), expected, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=1e-3)
