"""Weights are written piece by piece, and the next pieces are put in order meanwhile."""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["BLOCK_BYTES", "as_integers", "in_order", "touch_pages", "write_pieces"]

Array = npt.NDArray[Any]
Block = TypeVar("Block")

BLOCK_BYTES = 4 << 20
# Linux keeps what one call writes in pages as large as it is, where it finds such; looking for pages of 2 MiB and more
# takes several times as long as writing.
_WRITTEN_BYTES = 256 << 10
# Elements side by side: with 4 bytes each, a cache line of what is written, so that none is fetched twice.
_TILE = 16
_AHEAD = 2


def write_pieces(file: Any, blocks: Iterable[Block], prepared: Callable[[Block], Array]) -> None:
    """Write arrays to a binary file, one after the other; the next ones are prepared meanwhile.

    Args:
        file: The file.
        blocks: What the arrays are made of.
        prepared: Makes an array in row-major order of a block, in a thread of its own.
    """
    with ThreadPoolExecutor(_AHEAD) as pool:
        pending: deque[Future[Array]] = deque()
        for block in blocks:
            pending.append(pool.submit(prepared, block))
            if len(pending) > _AHEAD:
                _write(file, pending.popleft().result())
        for future in pending:
            _write(file, future.result())


def _write(file: Any, array: Array) -> None:
    data = array.reshape(-1).view(np.uint8).data
    for begin in range(0, len(data), _WRITTEN_BYTES):
        file.write(data[begin : begin + _WRITTEN_BYTES])


def as_integers(array: Array) -> Array:
    """Return the elements of an array as unsigned integers of the same size, if there are such."""
    return array.view(f"u{array.itemsize}") if array.itemsize <= 8 else array


def touch_pages(array: Array) -> None:
    """Read one element of each page of a large array that is not in order, in the order of its memory.

    Where the memory is a file that is mapped, it is then read from front to end, and not as the blocks need it.
    """
    if array.flags.c_contiguous or array.nbytes <= BLOCK_BYTES or min(array.strides) < 0:
        return
    step = mmap.PAGESIZE // array.itemsize
    last = sum((count - 1) * stride for count, stride in zip(array.shape, array.strides, strict=True)) // array.itemsize
    np.lib.stride_tricks.as_strided(array, (last // step + 1,), (step * array.itemsize,), writeable=False).max()


def in_order(array: Array) -> Array:
    """Return an array in row-major order; it is copied by tiles that the processor's cache holds."""
    if array.flags.c_contiguous:
        return array
    # NumPy asks for huge pages, of which a tile touches as many as the array has rows, and takes less time for a tile.
    new = np.empty(array.shape, array.dtype)
    for start in range(0, array.shape[-1], _TILE):
        new[..., start : start + _TILE] = array[..., start : start + _TILE]
    return new
