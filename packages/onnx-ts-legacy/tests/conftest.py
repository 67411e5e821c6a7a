"""Lets the tests import their shared helpers (pytest's importlib mode puts no folder on the path), and cleans up."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from onnx_ts_legacy.registration import registry

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _same_numbers_in_every_run() -> None:
    """Let a test draw the same numbers whatever ran before it, in this process or another."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def no_symbolic_stays() -> Iterator[None]:
    """Take out what a test registered."""
    yield
    for name in registry.names():
        for opset in range(7, 27):
            registry.unregister(name, opset)
