"""Small detection models of torchvision, and how their scores are spread."""

from __future__ import annotations

import functools
from typing import Any

import torch

SMALL = {"weights": None, "weights_backbone": None, "num_classes": 4}
PYRAMID = {**SMALL, "min_size": 96, "max_size": 128}
PROPOSALS = {"rpn_pre_nms_top_n_test": 60, "rpn_post_nms_top_n_test": 20, "box_score_thresh": 0.1}
MODELS = {
    "fasterrcnn_mobilenet_v3_large_320_fpn": {**PYRAMID, **PROPOSALS},
    "retinanet_resnet50_fpn": {**PYRAMID, "score_thresh": 0.01, "topk_candidates": 40},
}


def apart(model: torch.nn.Module) -> torch.nn.Module:
    """Spread the scores of an untrained model: where many are equal, rounding decides which boxes come first."""
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    with torch.no_grad():
        for norm in norms:
            norm.momentum = None
            norm.train()
        model([torch.rand(3, 96, 112) for _ in range(4)])
        for name, parameter in model.named_parameters():
            if name.startswith(("rpn", "roi_heads")) and "cls" in name and name.endswith("weight"):
                parameter.mul_(5)
    return model.eval()


def on_two_levels(name: str, **options: Any) -> torch.nn.Module:
    """Return a model with regions on a small pyramid of two levels, and a third one for proposals."""
    import torchvision
    from torchvision.models import detection
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.backbone_utils import BackboneWithFPN

    body = torchvision.models.resnet.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1])
    backbone = BackboneWithFPN(body, {"layer2": "0", "layer4": "1"}, [128, 512], 256)
    anchors = AnchorGenerator(((16,), (32,), (64,)), ((0.5, 1.0, 2.0),) * 3)
    sizes = {"min_size": 96, "max_size": 128}
    model: torch.nn.Module = getattr(detection, name)(
        backbone, **sizes, **PROPOSALS, **options, rpn_anchor_generator=anchors
    )
    return model


# Models that compute more of each box than its class.
OF_BOXES = {
    "masks": functools.partial(on_two_levels, "MaskRCNN", num_classes=4),
    "keypoints": functools.partial(on_two_levels, "KeypointRCNN", num_classes=2, num_keypoints=5),
}
