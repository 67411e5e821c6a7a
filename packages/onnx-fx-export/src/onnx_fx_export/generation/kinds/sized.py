"""Models that read images of any size as pixels, with their sizes (Pixtral, Mistral 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from onnx_fx_export.generation.config import VISION_FILE
from onnx_fx_export.generation.kinds.base import Part
from onnx_fx_export.generation.kinds.vision_language import SIGHT, OwnSizesVisionLanguage, body_of, joined

__all__ = ["SizedVisionLanguage"]

_IMAGES, _SIZES = "pixel_values", "image_sizes"
# Rows and columns of images that are tried, in tokens.
_TRIED = ((2, 3), (4, 2), (3, 3))
# A capture takes sizes of one for another case.
_FEWEST, _MOST = 2, 1 << 16


class SizedVisionLanguage(OwnSizesVisionLanguage):
    """Models whose images have any size. Their graph reads one of them, without the padding that a batch has."""

    parameters: ClassVar = OwnSizesVisionLanguage.parameters | {_SIZES}
    names_of_images: tuple[str, ...] = (_IMAGES, _SIZES)
    _several = len(_TRIED)

    @property
    def _unit(self) -> int:
        """How many rows and columns of pixels a token has."""
        config = self.model.config
        return int(config.vision_config.patch_size * getattr(config, "spatial_merge_size", 1))

    def _pictures(self, count: int) -> list[dict[str, torch.Tensor]]:
        """Return random images, each by the names of the model's parameters, with a first axis of 1."""
        channels, random = getattr(self.model.config.vision_config, "num_channels", 3), torch.Generator().manual_seed(0)
        sizes = torch.tensor([_TRIED[place % len(_TRIED)] for place in range(count)]) * self._unit
        images = [torch.rand(1, channels, *size, generator=random).to(self.model.dtype) for size in sizes.tolist()]
        return [{_IMAGES: image, _SIZES: size[None]} for image, size in zip(images, sizes, strict=True)]

    def _features_of(self, picture: Mapping[str, torch.Tensor]) -> torch.Tensor:
        features: torch.Tensor = SizedVisionGraph(self.model)(picture[_IMAGES])["image_features"]
        return features

    def _vision(self) -> Part:
        rows, columns = (self._unit * torch.export.Dim(name, min=_FEWEST, max=_MOST) for name in ("rows", "columns"))
        (picture,) = self._pictures(1)
        return Part(
            VISION_FILE, SizedVisionGraph(self.model), (picture[_IMAGES],), ({2: rows, 3: columns},), reads_steps=False
        )

    def config(self) -> dict[str, Any]:
        """Return ``genai_config.json``."""
        config = super().config()
        config["model"]["vision"] |= {"side": self._unit, "fewest_sides": _FEWEST, "beside": [_SIZES]}
        return config


class SizedVisionGraph(torch.nn.Module):
    """What a model makes of an image of any size.

    Args:
        model: A model of transformers that reads images with their sizes.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._eyes = body_of(model, SIGHT)

    def forward(self, pixel_values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return ``image_features`` (tokens, width) of an image (1, channels, height, width)."""
        size = tuple(pixel_values.shape[2:])
        result = self._eyes.get_image_features(pixel_values=pixel_values, image_sizes=[size], return_dict=True)
        return {"image_features": joined(result.pooler_output)}
