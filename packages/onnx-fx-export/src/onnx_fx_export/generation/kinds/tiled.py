"""Models that read images in tiles of one size (LLaVA-NeXT, LLaVA-OneVision)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from onnx_fx_export.errors import OnnxExporterError
from onnx_fx_export.generation.config import VISION_FILE
from onnx_fx_export.generation.kinds.base import Part
from onnx_fx_export.generation.kinds.vision_language import VisionLanguage
from onnx_fx_export.generation.senses.tiles import TileLayout
from onnxops_core.exporting import replaced

__all__ = ["TiledVisionLanguage"]

_IMAGES, _SIZES = "pixel_values", "image_sizes"
_COUNTS = "batch_num_images"
# What joins tiles in the models themselves.
_JOINS = "pack_image_features"
_NARROW = 3
# Features of which it is tried how they are joined.
_ROUNDING = 1e-4


class TiledVisionLanguage(VisionLanguage):
    """Models whose images have any size, and are cut into tiles.

    Their graph reads as many tiles as the smallest image has; ``Generator`` joins what it makes of all of an image.
    """

    parameters: ClassVar = VisionLanguage.parameters | {_SIZES}
    names_of_images: tuple[str, ...] = (_IMAGES, _SIZES)
    _several = 2

    @functools.cached_property
    def _layout(self) -> TileLayout:
        config = self.model.config
        eyes = config.vision_config
        most = re.search(r"\d+$", str(getattr(config, "vision_aspect_ratio", "")))
        return TileLayout(
            [list(map(int, size)) for size in config.image_grid_pinpoints],
            int(eyes.image_size),
            int(eyes.image_size // eyes.patch_size),
            int(most[0]) if most else None,
        )

    @property
    def _smallest(self) -> tuple[int, int]:
        """The height and width that the fewest tiles make up."""
        high, wide = min(self._layout.sizes, key=lambda size: self._layout.count(*size))
        return high, wide

    @functools.cached_property
    def _apart(self) -> bool:
        """No, as a look at one image tells."""
        try:
            with torch.no_grad():
                self._check_joining()
                self._features_of(self._pictures(1)[0])
        except OnnxExporterError:
            raise
        except Exception as error:  # whatever a model raises that reads its images in another way
            raise self._refused(str(error)) from error
        return False

    def _check_joining(self) -> None:
        """Compare how tiles are joined with how the model does it, for images of many sizes.

        Raises:
            InvalidArgumentError: If they are joined in another way.
        """
        graph, random = TileGraph(self.model, self._smallest), torch.Generator().manual_seed(0)
        graph(self._tiles(self._smallest, random))
        for high, wide in self._layout.sizes:
            for height, width in ((high, wide), (high, wide // _NARROW), (high // 2 + 1, wide)):
                tiles = torch.rand(self._layout.count(height, width), self._layout.side**2, 2, generator=random)
                newline = torch.rand(2, generator=random)
                wanted = graph.joined_by_model(tiles, newline, (height, width)).numpy()
                found = self._layout.packed(tiles.numpy(), newline.numpy(), height, width)
                if found.shape != wanted.shape or np.abs(found - wanted).max() > _ROUNDING:
                    raise self._refused("it joins the tiles of images in another way")

    def _tiles(self, size: tuple[int, int], random: torch.Generator) -> torch.Tensor:
        """Return the random tiles (tiles, channels, height, width) of an image of a size."""
        channels, side = getattr(self.model.config.vision_config, "num_channels", 3), self._layout.tile
        count = self._layout.count(*size)
        return torch.rand(count, channels, side, side, generator=random).to(self.model.dtype)

    def _pictures(self, count: int) -> list[dict[str, torch.Tensor]]:
        """Return random images, each by the names of the model's parameters, with a first axis of 1."""
        (high, wide), random = self._smallest, torch.Generator().manual_seed(0)
        sizes = [((high, wide // 2 + 1), (high, wide), (high // _NARROW, wide))[place % 3] for place in range(count)]
        return [{_IMAGES: self._tiles(size, random)[None], _SIZES: torch.tensor([size])} for size in sizes]

    def _features_of(self, picture: Mapping[str, torch.Tensor]) -> torch.Tensor:
        graph, tiles = TileGraph(self.model, self._smallest), picture[_IMAGES][0]
        size, several = picture[_SIZES][0].tolist(), self._layout.count(*self._smallest)
        whole = torch.cat([tiles, tiles.new_zeros(-len(tiles) % several, *tiles.shape[1:])])
        made = [graph(some) for some in whole.split(several)]
        features = torch.cat([each["image_features"] for each in made])[: len(tiles)]
        packed = self._layout.packed(features.float().numpy(), made[0]["image_newline"].float().numpy(), *size)
        return torch.from_numpy(packed).to(self.model.dtype)

    def _count(self, picture: Mapping[str, torch.Tensor]) -> int:
        height, width = picture[_SIZES][0].tolist()
        tiles = np.zeros((self._layout.count(height, width), self._layout.side**2, 1), np.float32)
        return len(self._layout.packed(tiles, np.zeros(1, np.float32), height, width))

    def _vision(self) -> Part:
        tiles = self._tiles(self._smallest, torch.Generator().manual_seed(0))
        return Part(VISION_FILE, TileGraph(self.model, self._smallest), (tiles,), ({},), reads_steps=False)

    def config(self) -> dict[str, Any]:
        """Return ``genai_config.json``."""
        config = super().config()
        counts = [_COUNTS] if _COUNTS in inspect.signature(self.model.forward).parameters else []
        config["model"]["vision"] |= {"tiles": dataclasses.asdict(self._layout), "beside": [_SIZES, *counts]}
        return config


class TileGraph(torch.nn.Module):
    """What a model makes of tiles of images, which it does not join.

    Args:
        model: A model of transformers that reads images in tiles.
        size: The height and width of an image that has as many tiles as the graph reads.
    """

    def __init__(self, model: Any, size: tuple[int, int]) -> None:
        super().__init__()
        self.body = model.base_model
        self._size = size
        self._joining: dict[str, Any] = {}

    def forward(self, pixel_values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return ``image_features`` (tiles, tokens, width) and ``image_newline`` (width,).

        Args:
            pixel_values: Tiles (tiles, channels, height, width).
        """
        with self._apart():
            result = self.body.get_image_features(pixel_values, image_sizes=[self._size], return_dict=True)
        (features,) = result.pooler_output
        return {"image_features": features, "image_newline": self._joining["image_newline"]}

    @contextlib.contextmanager
    def _apart(self) -> Iterator[None]:
        """Let the model not join what it makes of tiles, and keep how it would."""

        def keep(image_features: Any, image_sizes: Any, **given: Any) -> tuple[Any, None]:
            self._joining.update(given)
            return image_features, None

        with replaced([(self.body, _JOINS, keep)], in_all_threads=True):
            yield

    def joined_by_model(self, tiles: torch.Tensor, newline: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """Return what the model makes of features of tiles (tiles, tokens, width), once the graph was called."""
        given = {**self._joining, "image_newline": newline}
        features, _ = self.body.pack_image_features([tiles], torch.tensor([size]), **given)
        result: torch.Tensor = features[0]
        return result
