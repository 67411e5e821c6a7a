"""Packing of padded sequences and back, in operators that torch.export records; see ``torch.nn.utils.rnn``.

The packed rows are those of the padded tensor that belong to a sequence, time first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from onnxops_decomp.torch_private import PACK_PADDED_SEQUENCE, PAD_PACKED_SEQUENCE

__all__ = ["PACKING", "packed_batch"]

# The attribute of batch sizes that holds the number of sequences: that of their first entry, as no sequence is empty.
_BATCH = "_onnxops_batch"


def packed_batch(tensor: Any, index: Any) -> Any:
    """Return the number of sequences if it is what an entry of batch sizes holds, else None."""
    return getattr(tensor, _BATCH, None) if isinstance(index, int) and index == 0 else None


def _pack(input: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows, and for each step how many sequences reach it; lengths fall."""
    steps = input.transpose(0, 1) if batch_first else input
    longest: Any = lengths.max().item()
    torch._check(longest >= 0)
    torch._check(longest <= steps.shape[0])
    ordinal = torch.arange(longest, device=lengths.device)
    alive = ordinal.unsqueeze(1) < lengths
    batch_sizes = alive.sum(1)
    setattr(batch_sizes, _BATCH, steps.shape[1])
    # Rows are counted from the start: what stands behind the longest sequence is not read.
    places = alive.flatten().nonzero().squeeze(1).to(input.device)
    return steps.flatten(0, 1).index_select(0, places), batch_sizes


def _pad(
    data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, padding_value: float, total_length: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the padded batch, and the lengths of its sequences."""
    length: Any = batch_sizes.shape[0]
    batch: Any = getattr(batch_sizes, _BATCH, None)
    if batch is None:
        batch = batch_sizes[0].item()
        torch._check(batch >= 0)
    alive = torch.arange(batch, device=batch_sizes.device) < batch_sizes.unsqueeze(1)
    before = batch_sizes.cumsum(0) - batch_sizes
    places = before.unsqueeze(1) + torch.arange(batch, device=batch_sizes.device)
    rows = data.index_select(0, torch.where(alive, places, 0).flatten().to(data.device))
    padded = rows.unflatten(0, (length, batch))
    shown = alive.to(data.device).reshape(length, batch, *[1] * (data.dim() - 1))
    padded = torch.where(shown, padded, padding_value).to(data.dtype)
    if total_length is not length:
        missing = total_length - length
        torch._check(missing >= 0)
        tail = padded.new_full((missing, *padded.shape[1:]), padding_value)
        padded = torch.cat([padded, tail])
    return padded.transpose(0, 1) if batch_first else padded, alive.sum(0)


PACKING: Mapping[Any, Callable[..., Any]] = {
    PACK_PADDED_SEQUENCE: _pack,
    PAD_PACKED_SEQUENCE: _pad,
}
