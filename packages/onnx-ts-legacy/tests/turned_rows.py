"""A function of tensors that leaves sizes to another file."""

from __future__ import annotations

import centres
import torch


def turned(x: torch.Tensor) -> torch.Tensor:
    """Multiply by the middle row, and add the numbers of rows."""
    middle, half, rows = centres.centre(x)
    return x * middle + half - rows
