"""Weights that share torch's memory and are written piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import numpy.typing as npt
import onnx_ir as ir
import torch

from onnxops_decomp.passes import ComputedTensor
from onnxops_decomp.passes.pieces import BLOCK_BYTES, in_order, touch_pages, write_pieces
from onnxops_decomp.torch_private import is_without_data

__all__ = ["TIED_KEY", "StreamedTensor", "has_data", "row_blocks", "touch_tensor", "write_blocks"]

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# Key in a value's ``meta`` of the names that the module has for one weight.
TIED_KEY = "onnxops.tied"


class StreamedTensor(ir.tensor_adapters.TorchTensor):
    """A torch tensor that is written piece by piece.

    A transposed weight has to be put in order on its way to the file; in pieces, that takes a few MiB and no copy of
    the whole.

    Args:
        tensor: The contents.
        name: The name of the initializer.
        weight: The name of the torch weight that they are; default: the same.
        perm: Order of the axes of that weight in ``tensor``, if it is not their own.
    """

    def __init__(
        self,
        tensor: torch.Tensor,
        name: str | None = None,
        *,
        weight: str | None = None,
        perm: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(tensor, name=name)
        self.weight, self.perm = name if weight is None else weight, perm

    def permuted(self, perm: Sequence[int], name: str) -> StreamedTensor:
        """Return the tensor with its axes in another order, a view."""
        of_weight = tuple(perm) if self.perm is None else tuple(self.perm[axis] for axis in perm)
        return StreamedTensor(self.raw.permute(tuple(perm)), name, weight=self.weight, perm=of_weight)

    def tofile(self, file: Any) -> None:
        """Write the bytes to a binary file; the next pieces are put in order meanwhile."""
        touch_tensor(self.raw)
        write_blocks(file, _blocks(self.raw.detach()))


def write_blocks(
    file: Any, blocks: Iterable[torch.Tensor], conversion: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> None:
    """Write tensors to a binary file, one after the other; the next ones are put in order and converted meanwhile."""

    def prepared(block: torch.Tensor) -> npt.NDArray[Any]:
        ordered = _in_order(block)
        return _integers(ordered if conversion is None else conversion(ordered).contiguous())

    write_pieces(file, blocks, prepared)


def touch_tensor(tensor: torch.Tensor) -> None:
    """Read the pages of a tensor that is not in order, in the order of its memory, as :func:`touch_pages` does."""
    if tensor.device.type == "cpu":
        touch_pages(_integers(tensor))


def row_blocks(tensor: torch.Tensor, most_bytes: int) -> Sequence[torch.Tensor]:
    """Return the rows of a tensor of at least one dimension, in blocks of so many bytes if a row is not larger."""
    size = tensor.numel() * tensor.element_size()
    blocks: Sequence[torch.Tensor] = tensor.split(max(1, most_bytes * tensor.shape[0] // max(1, size)))
    return blocks


def _blocks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield a tensor in row-major order, as pieces that are in order already or small."""
    size = tensor.numel() * tensor.element_size()
    if size <= BLOCK_BYTES or (tensor.is_contiguous() and tensor.device.type == "cpu"):
        yield tensor
        return
    for block in row_blocks(tensor, BLOCK_BYTES):
        yield from _blocks(block[0]) if len(block) == 1 else [block]


def _in_order(block: torch.Tensor) -> torch.Tensor:
    """Return a block in row-major order, on the CPU."""
    block = block.cpu()
    return block if block.is_contiguous() else torch.from_numpy(in_order(_integers(block))).view(block.dtype)


def _integers(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return the elements of a tensor on the CPU as integers of the same size, in the same memory.

    There are no integers as large as complex128, which stays what it is.
    """
    integers = _INTEGERS.get(tensor.element_size(), tensor.dtype)
    return tensor.detach().resolve_conj().view(integers).numpy()


def has_data(tensor: ir.TensorProtocol) -> bool:
    """Tell whether a tensor has contents; the weights of a model that was never allocated have none."""
    # To ask whether it is an instance takes long where there are protocols among the bases.
    kinds = type(tensor).__mro__
    if ComputedTensor in kinds:
        return all(map(has_data, cast(ComputedTensor, tensor).sources))
    return ir.tensor_adapters.TorchTensor not in kinds or not is_without_data(tensor.raw)
