"""Sizes that several models compute with, in a file that defines none of them."""

from __future__ import annotations


def steps_of_two(length: int) -> int:
    """Return how many steps a layer of stride 2 leaves."""
    return int((length - 1) / 2 + 1)
