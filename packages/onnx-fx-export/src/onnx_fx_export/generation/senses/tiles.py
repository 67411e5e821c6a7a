"""Images that models read in tiles of one size, and how the tokens of the tiles become those of the image.

The rules are those of LLaVA-NeXT (https://arxiv.org/abs/2310.03744) and LLaVA-OneVision
(https://arxiv.org/abs/2408.03326) as transformers computes them, in Python's numbers: a token more or less makes
another text.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["TileLayout"]

Array = npt.NDArray[Any]
# So much larger than what is kept at most may an image be before it is made smaller.
_TOO_LARGE = 1.1
_PLACES = 7


@dataclasses.dataclass(frozen=True)
class TileLayout:
    """How a model cuts images into tiles, the first of which shows all of the image.

    Attributes:
        sizes: Heights and widths, in pixels, that the other tiles may make up together.
        tile: How many rows and columns of pixels a tile has.
        side: How many rows and columns of tokens a tile becomes.
        most: The tokens of how many tiles are kept at most, if not all.
    """

    sizes: Sequence[Sequence[int]]
    tile: int
    side: int
    most: int | None = None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> TileLayout:
        """Return what a configuration says."""
        return cls(settings["sizes"], settings["tile"], settings["side"], settings.get("most"))

    def best(self, height: int, width: int) -> tuple[int, int]:
        """Return which of the sizes shows most of an image, with the least around it."""
        found, most, least = (0, 0), 0, math.inf
        for high, wide in self.sizes:
            scale = min(wide / width, high / height)
            shown = min(int(width * scale) * int(height * scale), width * height)
            wasted = high * wide - shown
            if shown > most or (shown == most and wasted < least):
                found, most, least = (high, wide), shown, wasted
        return found

    def count(self, height: int, width: int) -> int:
        """Return how many tiles an image has."""
        high, wide = self.best(height, width)
        return 1 + -(-high // self.tile) * -(-wide // self.tile)

    def packed(self, tiles: Array, newline: Array, height: int, width: int) -> Array:
        """Return what stands for the tokens of an image (tokens, width).

        Args:
            tiles: What was made of its tiles (tiles, side * side, width).
            newline: What stands behind each row (width,).
            height: The rows of pixels of the image.
            width: The columns of pixels of the image.
        """
        if len(tiles) == 1:
            return np.concatenate([tiles[0], newline[None]])
        high, wide = (size // self.tile for size in self.best(height, width))
        rows = tiles[1:].reshape(high, wide, self.side, self.side, -1).swapaxes(1, 2)
        shown = self._smaller(_without_padding(rows.reshape(high * self.side, wide * self.side, -1), height, width))
        ends = np.broadcast_to(newline, (len(shown), 1, shown.shape[2]))
        return np.concatenate([tiles[0], np.concatenate([shown, ends], 1).reshape(-1, shown.shape[2])])

    def _smaller(self, shown: Array) -> Array:
        """Return tokens (rows, columns, width) between which they are interpolated if there are too many."""
        if self.most is None:
            return shown
        ratio = math.sqrt(shown.shape[0] * shown.shape[1] / (self.most * self.side**2))
        if ratio <= _TOO_LARGE:
            return shown
        halfway = _interpolated(shown, int(shown.shape[0] // ratio)).swapaxes(0, 1)
        return _interpolated(halfway, int(shown.shape[1] // ratio)).swapaxes(0, 1)


def _without_padding(tokens: Array, height: int, width: int) -> Array:
    """Return the tokens (rows, columns, width) that show an image, without those above and below or beside it."""
    rows, columns = tokens.shape[:2]
    if width / height > columns / rows:
        padding = (rows - int(round(height * (columns / width), _PLACES))) // 2
        return tokens[padding : rows - padding]
    padding = (columns - int(round(width * (rows / height), _PLACES))) // 2
    return tokens[:, padding : columns - padding]


def _interpolated(tokens: Array, count: int) -> Array:
    """Return ``count`` rows between those of ``tokens`` (rows, ...), as bilinear interpolation of torch has them."""
    rows = len(tokens)
    at = np.maximum((np.arange(count) + 0.5) * (rows / count) - 0.5, 0)
    first = at.astype(np.int64)
    share = (at - first).astype(tokens.dtype).reshape(-1, *[1] * (tokens.ndim - 1))
    result: Array = tokens[first] * (1 - share) + tokens[np.minimum(first + 1, rows - 1)] * share
    return result
