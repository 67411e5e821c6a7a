"""Lets the tests import their shared helpers: pytest's importlib mode puts no folder on the path."""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# How long an example takes says more about the machine than about the code.
settings.register_profile("onnx-verify", deadline=None)
settings.load_profile("onnx-verify")


@pytest.fixture(autouse=True)
def _same_numbers_in_every_run() -> None:
    """Let a test draw the same numbers whatever ran before it, in this process or another."""
    torch.manual_seed(0)
