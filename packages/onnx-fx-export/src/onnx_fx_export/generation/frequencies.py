"""Rotary embeddings whose frequencies change with the length of a text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["settled_frequencies"]


@contextlib.contextmanager
def settled_frequencies(model: torch.nn.Module, length: int) -> Iterator[None]:
    """Let rotary embeddings keep the frequencies that all texts up to a length have; undo it afterwards.

    Models with dynamic scaling ask at each step whether a text has outgrown what they were trained for. None does that
    is no longer than that.

    Args:
        model: A model of transformers, or a module that holds it.
        length: The most tokens that a text will have.
    """
    modules: Iterator[Any] = model.modules()
    settled = [
        module
        for module in modules
        if getattr(module, "rope_type", None) == "dynamic" and module.original_max_seq_len >= length
    ]
    own = [module.inv_freq for module in settled]
    try:
        for module in settled:
            module.rope_type, module.inv_freq = "default", module.original_inv_freq
        yield
    finally:
        for module, frequencies in zip(settled, own, strict=True):
            module.rope_type, module.inv_freq = "dynamic", frequencies
