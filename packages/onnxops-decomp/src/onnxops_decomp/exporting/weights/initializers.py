"""Weights that share torch's memory and are written piece by piece."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onnxops_decomp.passes import DerivedTensor
from onnxops_decomp.torch_private import is_without_data

__all__ = ["TIED_KEY", "StreamedTensor", "has_data"]

_BLOCK_BYTES = 8 << 20
# Elements side by side: with 4 bytes each, a cache line of what is written, so that none is fetched twice.
_TILE = 16
_AHEAD = 2

# Key in a value's ``meta`` of the names that the module has for one weight.
TIED_KEY = "onnxops.tied"


class StreamedTensor(ir.tensor_adapters.TorchTensor):
    """A torch tensor that is written piece by piece.

    A transposed weight has to be put in order on its way to the file; in pieces, that takes a few MiB and no copy of
    the whole.
    """

    def tofile(self, file: Any) -> None:
        """Write the bytes to a binary file; the next pieces are put in order meanwhile."""
        with ThreadPoolExecutor(_AHEAD) as pool:
            pending: deque[Future[memoryview]] = deque()
            for block in _blocks(self.raw.detach()):
                pending.append(pool.submit(_in_order, block))
                if len(pending) > _AHEAD:
                    file.write(pending.popleft().result())
            for future in pending:
                file.write(future.result())


def _blocks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield a tensor in row-major order, as pieces that are in order already or small."""
    size = tensor.numel() * tensor.element_size()
    if size <= _BLOCK_BYTES or (tensor.is_contiguous() and tensor.device.type == "cpu"):
        yield tensor
        return
    rows = max(1, _BLOCK_BYTES * tensor.shape[0] // size)
    for block in tensor.split(rows):
        yield from _blocks(block[0]) if rows == 1 else [block]


def _in_order(block: torch.Tensor) -> memoryview:
    """Return the bytes of a block in row-major order; a matrix is copied by tiles that the processor's cache holds."""
    ordered = block = block.cpu()
    if not block.is_contiguous():
        # NumPy asks for huge pages, and a tile touches as many pages as the block has rows.
        memory = np.empty(block.numel() * block.element_size(), np.uint8)
        ordered = torch.from_numpy(memory).view(block.dtype).view(block.shape)
        for old, new in zip(block.split(_TILE, -1), ordered.split(_TILE, -1), strict=True):
            new.copy_(old)
    return ordered.reshape(-1).view(torch.uint8).numpy().data


def has_data(tensor: ir.TensorProtocol) -> bool:
    """Tell whether a tensor has contents; the weights of a model that was never allocated have none."""
    if isinstance(tensor, DerivedTensor):
        return all(has_data(source) for source in tensor.sources)
    return not isinstance(tensor, ir.tensor_adapters.TorchTensor) or not is_without_data(tensor.raw)
