"""Where the patches of images stand, computed of all images at once.

Models of transformers that read images of any size, as patches in one row, find the places of the patches by
``transformers.vision_utils``, image by image in Python. The same numbers come from the grids by arithmetic on all
patches, which a graph can hold for any number of images.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from onnxops_core.exporting import replaced

__all__ = ["nearest_places", "patch_places", "patches_of_all_images", "window_order"]


@contextlib.contextmanager
def patches_of_all_images() -> Iterator[None]:
    """Replace what the library's functions do; models have them under names of their own."""
    home = sys.modules.get("transformers.vision_utils")
    found = [(getattr(home, stand_in.__name__, None), stand_in) for stand_in in _STAND_INS]
    with replaced([(own, "__code__", new.__code__) for own, new in found if _does_the_same(own, new)]):
        yield


@functools.cache
def _does_the_same(own: Any, new: Callable[..., Any]) -> bool:
    """Tell whether a function of the installed release gives what would stand for it, on some images."""
    if not _takes_the_same(own, new):
        return False
    with torch.device("cpu"), contextlib.suppress(Exception):
        sample = _STAND_INS[new]
        results, others = (function(*sample()) for function in (own, new))
        pairs = zip(*((each,) if isinstance(each, torch.Tensor) else each for each in (results, others)), strict=True)
        return all(torch.equal(torch.as_tensor(one), other) for one, other in pairs)
    return False


def _takes_the_same(own: Any, new: Callable[..., Any]) -> bool:
    """Tell whether a function is there, and is called as what would stand for it."""
    return inspect.isfunction(own) and [*inspect.signature(own).parameters] == [*inspect.signature(new).parameters]


# ---- what is run in place of the library's functions, among whose names it is


def get_vision_position_ids(
    grid_thw: torch.Tensor, spatial_merge_size: Any, include_temporal: bool = False, kwargs: Any = None
) -> Any:
    if kwargs is not None and (given := kwargs.pop("position_ids", None)) is not None:
        return given
    from onnx_fx_export.capture.stand_ins.patch_grids import patch_places

    return patch_places(grid_thw, spatial_merge_size, include_temporal)


def get_vision_window_index(
    grid_thw: torch.Tensor, spatial_merge_size: int, window_size: int, patch_size: int, kwargs: Any = None
) -> Any:
    given = [(kwargs or {}).pop(name, None) for name in ("window_index", "cu_window_seqlens")]
    if all(each is not None for each in given):
        return tuple(given)
    from onnx_fx_export.capture.stand_ins.patch_grids import window_order

    return window_order(grid_thw, spatial_merge_size, window_size // spatial_merge_size // patch_size)


def get_vision_nearest_position_ids(target_sizes: torch.Tensor, num_patches_per_side: int, kwargs: Any = None) -> Any:
    if kwargs is not None and (given := kwargs.pop("position_ids", None)) is not None:
        return given
    from onnx_fx_export.capture.stand_ins.patch_grids import nearest_places

    return nearest_places(target_sizes, num_patches_per_side)


# With arguments to try each of them on.
_STAND_INS: dict[Callable[..., Any], Callable[[], tuple[Any, ...]]] = {
    get_vision_position_ids: lambda: (torch.tensor([[1, 4, 6], [3, 8, 2]]), 2, True),
    get_vision_window_index: lambda: (torch.tensor([[1, 4, 6], [3, 8, 10]]), 2, 48, 8),
    get_vision_nearest_position_ids: lambda: (torch.tensor([[3, 5], [7, 2]]), 6),
}


# ---- arithmetic


def patch_places(grids: torch.Tensor, merge: int | torch.Tensor, with_frames: bool) -> torch.Tensor:
    """Return the row and the column of each patch of images that are laid out block by block.

    Args:
        grids: Frames, rows and columns of each image (images, 3).
        merge: How many rows and columns of patches a block has, of all images or of each (images,).
        with_frames: Whether the frame of each patch comes first.

    Returns:
        Places (patches, 2), or (patches, 3), int64.
    """
    image, place = _inside(grids.prod(1))
    of_image = grids[image]
    rows, columns = of_image[:, 1], of_image[:, 2]
    size = merge if isinstance(merge, int) else merge[image]
    frame, inside = _quotient(place, rows * columns)
    block, within = _quotient(inside, size * size)
    block_row, block_column = _quotient(block, _quotient(columns, size)[0])
    row, column = _quotient(within, size)
    places = [block_row * size + row, block_column * size + column]
    return torch.stack([frame, *places] if with_frames else places, dim=-1)


def window_order(grids: torch.Tensor, merge: int, window: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return in which order blocks of patches stand where those of a window follow each other.

    Args:
        grids: Frames, rows and columns of each image (images, 3).
        merge: How many rows and columns of patches a block has.
        window: How many rows and columns of blocks a window has.

    Returns:
        The order (blocks,), int64, and where the patches of windows begin, and the last ends (windows + 1,), int32.
    """
    frames, (rows, columns) = grids[:, 0], torch.div(grids[:, 1:], merge, rounding_mode="floor").unbind(1)
    image, place = _inside(frames * rows * columns)
    height, width = rows[image], columns[image]
    frame, inside = _quotient(place, height * width)
    row, column = _quotient(inside, width)
    top, left = (_quotient(each, window)[0] * window for each in (row, column))
    # How many blocks come before the window: whole images, frames and bands of windows, and windows in its band.
    blocks = frames * rows * columns
    first = (blocks.cumsum(0) - blocks)[image] + frame * height * width
    first = first + top * width + (height - top).clamp(max=window) * left
    order = (first + (row - top) * (width - left).clamp(max=window) + column - left).argsort()
    _, counts = torch.unique_consecutive(first[order], return_counts=True)
    return order, F.pad(counts.cumsum(0) * merge**2, (1, 0)).to(torch.int32)


def nearest_places(sizes: torch.Tensor, side: int) -> torch.Tensor:
    """Return for each patch the nearest entry of a square table that spans its image.

    Args:
        sizes: Rows and columns of each image (images, 2).
        side: How many rows and columns the table has.

    Returns:
        Entries (patches,), int64.
    """
    bounds = torch.arange(1 / side, 1.0, 1 / side, device=sizes.device)
    image, place = _inside(sizes.prod(1))
    rows, columns = sizes[image].unbind(1)
    at = [number / count for number, count in zip(_quotient(place, columns), (rows, columns), strict=True)]
    row, column = (torch.bucketize(each, bounds, right=True) for each in at)
    return row * side + column


def _inside(counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for elements of groups that follow each other the group of each, and its place therein."""
    counts = counts.to(torch.int64)
    group = torch.repeat_interleave(torch.arange(counts.shape[0], device=counts.device), counts)
    starts = counts.cumsum(0) - counts
    return group, torch.arange(group.shape[0], device=counts.device) - starts[group]


def _quotient(number: torch.Tensor, divisor: int | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return quotient and rest."""
    return torch.div(number, divisor, rounding_mode="floor"), number % divisor
