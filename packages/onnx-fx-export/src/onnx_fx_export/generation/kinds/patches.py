"""Images as patches on grids: where each patch stands, and which patches attend to each other.

Models that read images of any size compute this in Python, image by image. The same numbers come from the grids by
arithmetic on all patches at once, which a graph can hold for any number of images.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import torch

from onnx_fx_export.generation.requirements import transformers
from onnxops_core.exporting import replaced

__all__ = ["PatchLayout", "attention_by_segments", "lengths_of_images"]

# Models hand over which patches belong together only to what they take for flash attention, and tell it by this word.
_ATTENTION = "flash_by_segments"
# Which parameter says how many patches each image has.
_LENGTHS = "lengths"


@dataclasses.dataclass(frozen=True)
class PatchLayout:
    """How a model lays out the patches of images, block by block, of which each becomes one token.

    Attributes:
        merge: How many patches a block has in each direction.
        window: How many blocks a window of attention has in each direction, if there are windows.
        side: How many rows and columns a table of learned positions has, between which patches stand, if there is one.
    """

    merge: int
    window: int | None
    side: int | None = None

    def places(self, grids: torch.Tensor, patches: int) -> dict[str, Any]:
        """Return what a tower of transformers computes of the grids of images, by the names of its arguments.

        In the place of the bounds of segments (``cu_seqlens``) stand the segments that the patches belong to, for
        :func:`attention_by_segments`.

        Args:
            grids: Frames, rows and columns of patches (images, 3), int64.
            patches: How many patches all images have.
        """
        area = self.merge**2
        unit = torch.arange(patches // area, device=grids.device)
        counts = grids.prod(1) // area
        ends = counts.cumsum(0)
        image = torch.searchsorted(ends, unit, right=True)
        rows, columns = (grids[:, 1:] // self.merge)[image].unbind(1)
        inside = (unit - (ends - counts)[image]) % (rows * columns)
        frame, row, column = unit - inside, inside // columns, inside % columns
        within = torch.arange(area, device=grids.device)
        of_patches = torch.stack([
            (row[:, None] * self.merge + within // self.merge).reshape(-1),
            (column[:, None] * self.merge + within % self.merge).reshape(-1),
        ], 1)  # fmt: skip
        places = {"position_ids": of_patches, "cu_seqlens": frame.repeat_interleave(area), "max_seqlen": 1}
        if self.window:
            places |= self._windows(frame, row, column, rows, columns)
        if self.side:
            sizes = torch.stack([rows, columns], 1).repeat_interleave(area, 0) * self.merge
            places |= self._neighbours(of_patches, sizes, self.side)
        return places

    @staticmethod
    def _neighbours(places: torch.Tensor, sizes: torch.Tensor, side: int) -> dict[str, Any]:
        """Return the four entries of a table around each patch, and their weights, both (patches, 4).

        Args:
            places: Row and column of each patch (patches, 2), int64.
            sizes: Rows and columns of its image (patches, 2), int64.
            side: Rows and columns of the table, whose corners are those of the image.
        """
        at = places.float() * (side - 1) / (sizes - 1).clamp(min=1)
        first = at.floor()
        entries = torch.stack([first.long(), (first.long() + 1).clamp(max=side - 1)], -1)
        weights = torch.stack([1 - (at - first), at - first], -1)
        (rows, columns), (of_rows, of_columns) = entries.unbind(1), weights.unbind(1)
        return {
            "interp_indices": (rows[:, :, None] * side + columns[:, None]).flatten(1),
            "interp_weights": (of_rows[:, :, None] * of_columns[:, None]).flatten(1),
        }

    def _windows(
        self, frame: torch.Tensor, row: torch.Tensor, column: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor
    ) -> dict[str, Any]:
        """Return the order of blocks in which those of a window follow each other, and the window of each patch.

        Args:
            frame: The first block of the frame that a block belongs to (blocks,), int64.
            row: The row of each block.
            column: The column of each block.
            rows: How many rows its frame has.
            columns: How many columns its frame has.
        """
        assert self.window is not None
        top, left = row // self.window * self.window, column // self.window * self.window
        height, width = (rows - top).clamp(max=self.window), (columns - left).clamp(max=self.window)
        window = frame + top * columns + height * left
        order = (window + (row - top) * width + column - left).argsort()
        segments = window[order].repeat_interleave(self.merge**2)
        return {"window_index": order, "cu_window_seqlens": segments, "max_window_seqlen": 1}


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    cu_seq_lens_q: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return attention (1, T, heads, width) of patches to those of their own segment.

    Args:
        module: The layer.
        query: Queries (1, heads, T, width).
        key: Keys, of the same shape, or with fewer heads that several queries share.
        value: Values, of the shape of the keys.
        attention_mask: None.
        scaling: What products are multiplied by.
        cu_seq_lens_q: The segment of each patch (T,), int64; or how many that follow each other are one, a number.
    """
    sharing = query.shape[1] // key.shape[1]
    if sharing > 1:
        key, value = (each.repeat_interleave(sharing, 1) for each in (key, value))
    segments = cu_seq_lens_q if cu_seq_lens_q.dim() else torch.arange(query.shape[2]) // cu_seq_lens_q
    together = segments[:, None] == segments
    result = torch.nn.functional.scaled_dot_product_attention(query, key, value, together[None, None], scale=scaling)
    return result.transpose(1, 2), None


@contextlib.contextmanager
def lengths_of_images(tower: Any, lengths: torch.Tensor) -> Iterator[None]:
    """Let a tower whose positions follow from how many patches each image has (GLM-4V) not count them by segments.

    Args:
        tower: The tower, in whose calls segments stand in the place of their bounds.
        lengths: How many patches each image has (images,), int64.
    """
    embeddings = getattr(tower, "embeddings", None)
    if embeddings is None or _LENGTHS not in inspect.signature(embeddings.forward).parameters:
        yield
        return
    own = embeddings.forward

    def counted(patches: torch.Tensor, _: torch.Tensor, *args: Any, **given: Any) -> Any:
        return own(patches, lengths, *args, **given)

    with replaced([(embeddings, "forward", counted)], in_all_threads=True):
        yield


@contextlib.contextmanager
def attention_by_segments(config: Any) -> Iterator[None]:
    """Let a tower attend within segments by a mask, and not segment by segment in a loop of Python.

    Args:
        config: The configuration of the tower.
    """
    transformers().AttentionInterface.register(_ATTENTION, _attend)
    own = config._attn_implementation
    config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = own
