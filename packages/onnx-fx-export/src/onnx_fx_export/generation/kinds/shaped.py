"""Models that read images of any size as patches in rows, with how many rows and columns they have (LFM2-VL)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from onnx_fx_export.generation.config import VISION_FILE
from onnx_fx_export.generation.kinds.base import Part
from onnx_fx_export.generation.kinds.vision_language import SIGHT, OwnSizesVisionLanguage, body_of, joined

__all__ = ["ShapedVisionLanguage"]

_IMAGES, _SHAPES, _PARTS = "pixel_values", "spatial_shapes", "pixel_attention_mask"
# Rows and columns of images that are tried, in tokens.
_TRIED = ((2, 3), (1, 1), (4, 2))
# A capture takes an image of one token for another case; it has padding behind it.
_FEWEST, _MOST = 2, 1 << 16


class ShapedVisionLanguage(OwnSizesVisionLanguage):
    """Models whose images have any size. Their graph reads one of them, without most of the padding of a batch."""

    parameters: ClassVar = OwnSizesVisionLanguage.parameters | {_SHAPES, _PARTS}
    names_of_images: tuple[str, ...] = (_IMAGES, _SHAPES, _PARTS)
    _several = len(_TRIED)

    @property
    def _merge(self) -> int:
        """How many rows and columns of patches become one token."""
        return int(getattr(self.model.config, "downsample_factor", 1))

    def _pictures(self, count: int) -> list[dict[str, torch.Tensor]]:
        """Return random images, each by the names of the model's parameters, with a first axis of 1."""
        config, random = self.model.config.vision_config, torch.Generator().manual_seed(0)
        width, area = config.num_channels * config.patch_size**2, self._merge**2
        result = []
        for place in range(count):
            shape = torch.tensor(_TRIED[place % len(_TRIED)]) * self._merge
            patches = int(shape.prod())
            whole = max(patches, _FEWEST * area)
            image = torch.rand(1, whole, width, generator=random) * 2 - 1
            parts = (torch.arange(whole)[None] < patches).long()
            result.append({_IMAGES: image.to(self.model.dtype), _SHAPES: shape[None], _PARTS: parts})
        return result

    def _features_of(self, picture: Mapping[str, torch.Tensor]) -> torch.Tensor:
        features: torch.Tensor = ShapedVisionGraph(self.model)(*picture.values())["image_features"]
        return features

    def _vision(self) -> Part:
        (picture,) = self._pictures(1)
        patches = self._merge**2 * torch.export.Dim("block_count", min=_FEWEST, max=_MOST)
        shapes: tuple[dict[int, Any], ...] = ({1: patches}, {}, {1: patches})
        return Part(VISION_FILE, ShapedVisionGraph(self.model), tuple(picture.values()), shapes, reads_steps=False)

    def config(self) -> dict[str, Any]:
        """Return ``genai_config.json``."""
        config = super().config()
        config["model"]["vision"] |= {"block": self._merge, "fewest_blocks": _FEWEST}
        return config


class ShapedVisionGraph(torch.nn.Module):
    """What a model makes of the patches of an image of any size.

    Args:
        model: A model of transformers that reads patches with their rows and columns.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._eyes = body_of(model, SIGHT)

    def forward(
        self, pixel_values: torch.Tensor, spatial_shapes: torch.Tensor, pixel_attention_mask: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return ``image_features`` (tokens, width).

        Args:
            pixel_values: The patches of an image, row by row, with padding behind them (1, patches, numbers).
            spatial_shapes: Its rows and columns of patches (1, 2), int64.
            pixel_attention_mask: 1 for its patches and 0 for padding (1, patches), int64.
        """
        given = {_IMAGES: pixel_values, _SHAPES: spatial_shapes, _PARTS: pixel_attention_mask}
        return {"image_features": joined(self._eyes.get_image_features(**given, return_dict=True).pooler_output)}
