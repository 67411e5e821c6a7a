"""What all tests share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_numbers_in_every_run() -> None:
    """Let a test draw the same numbers whatever ran before it, in this process or another."""
    torch.manual_seed(0)
