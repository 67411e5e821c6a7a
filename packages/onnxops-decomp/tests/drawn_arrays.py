"""The generator of random arrays, which is reset before each test."""

from __future__ import annotations

import numpy as np

__all__ = ["RNG", "reset"]

RNG = np.random.default_rng(0)
_START = RNG.bit_generator.state


def reset() -> None:
    """Let the generator begin anew."""
    RNG.bit_generator.state = _START
