"""Whether tensors that a model writes to show memory that it sees in another way, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from onnxops_decomp.torch_private import flattened_subclass, is_without_data

__all__ = ["place_in_memory", "shared_memory", "with_line", "with_lines"]

# A network with normalization layers in training mode changes hundreds of buffers.
_SHOWN = 3


def with_line(path: str, line: str) -> str:
    """Return a path with the line that changes what it leads to."""
    return f"{path} (at {line})" if line else path


def with_lines(found: Mapping[str, str]) -> str:
    """Return paths with the lines that change what they lead to: the first few, and how many others there are."""
    most = len(found) if len(found) <= _SHOWN + 1 else _SHOWN
    shown = ", ".join(with_line(path, line) for path, line in [*found.items()][:most])
    return f"{shown} and {len(found) - most} others" if most < len(found) else shown


def place_in_memory(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Return what two tensors have in common that are one by different names; None if it has no memory of its own."""
    if not _has_memory(tensor):
        return None
    # A conjugate, and what it shows of its numbers, differs from them by a mark alone until it is computed.
    marks = tensor.is_conj(), tensor.is_neg()
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, *marks)


def shared_memory(
    name: str, tensor: torch.Tensor, others: Mapping[str, torch.Tensor], *, same_counts: bool = False
) -> str | None:
    """Return why a tensor cannot be written to; None if it shows no memory that is seen in another way, too.

    Args:
        name: What the message calls it.
        tensor: What is written to.
        others: Tensors by name, perhaps with ``tensor`` among them.
        same_counts: Whether one that shows just the same counts, too; else it is the same thing by another name.
    """
    other = next((other for other, value in others.items() if _overlap(tensor, value, same_counts)), None)
    if other is None and not _repeats_memory(tensor):
        return None
    repeated = "in which elements share memory, as after expand()"
    shares = repeated if other is None else f"which shares its memory with {other}"
    return (
        f"The model writes to {name}, {shares}. Values in an ONNX model never share memory: clone it before it is "
        "written to, or keep one tensor and take the other from it in forward."
    )


def _repeats_memory(tensor: torch.Tensor) -> bool:
    return _has_memory(tensor) and tensor.numel() > _extent(tensor)


def _overlap(a: torch.Tensor, b: torch.Tensor, same_counts: bool) -> bool:
    if not (_has_memory(a) and _has_memory(b)):
        return False
    if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    if place_in_memory(a) == place_in_memory(b):
        return same_counts
    start, end = _span(a)
    other_start, other_end = _span(b)
    if end <= other_start or other_end <= start:
        return False
    if a.dtype != b.dtype:
        return True
    mask = torch.zeros(max(end, other_end) // a.element_size(), dtype=torch.bool, device="cpu")
    mask.as_strided(a.shape, a.stride(), a.storage_offset()).fill_(True)
    return bool(mask.as_strided(b.shape, b.stride(), b.storage_offset()).any())


def _has_memory(tensor: torch.Tensor) -> bool:
    # A subclass that is made of other tensors has no memory of its own.
    has_data = not is_without_data(tensor) and not flattened_subclass(tensor)
    return tensor.layout is torch.strided and tensor.numel() > 0 and has_data


def _extent(tensor: torch.Tensor) -> int:
    """Return how many elements of the memory lie between the first and the last of a tensor."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((int(size) - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    start = int(tensor.storage_offset()) * tensor.element_size()
    return start, start + _extent(tensor) * tensor.element_size()
