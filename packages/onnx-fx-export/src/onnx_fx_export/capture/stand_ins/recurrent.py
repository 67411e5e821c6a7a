"""Recurrent layers over packed sequences, whose first states fit each batch that they are made for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from onnxops_core.exporting import original, replaced

__all__ = ["packed_states_unchecked"]


@contextlib.contextmanager
def packed_states_unchecked() -> Iterator[None]:
    """Let layers not compare their states with the number of sequences in a pack, which would become a constant."""
    with replaced([(torch.nn.RNNBase, "check_forward_args", _check_forward_args)]):
        yield


def _check_forward_args(self: torch.nn.RNNBase, input: torch.Tensor, hidden: Any, batch_sizes: Any) -> None:
    if batch_sizes is None:
        original(torch.nn.RNNBase, "check_forward_args")(self, input, hidden, batch_sizes)
    else:
        self.check_input(input, batch_sizes)
