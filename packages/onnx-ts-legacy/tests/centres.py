"""Numbers made of sizes, in a file that models reach through another one."""

from __future__ import annotations

import math

import torch


def centre(x: torch.Tensor) -> tuple[float, int, int]:
    """Return the middle row, half of the rows and the rows as numbers."""
    return float(x.size(0) - 1) / 2, int(x.size(0) / 2), len(x) + math.ceil(x.size(0) / 3)
