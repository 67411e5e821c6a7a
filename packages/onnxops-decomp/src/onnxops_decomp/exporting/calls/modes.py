"""The mode that a module is exported in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["in_mode"]

_PRESERVE, _TRAINING = 1, 2  # of torch.onnx.TrainingMode


@contextlib.contextmanager
def in_mode(model: Any, training: Any) -> Iterator[None]:
    """Put a module in a mode, and each of its parts back in its own mode afterwards.

    Args:
        model: A module; anything else stays as it is.
        training: A ``TrainingMode`` of torch or of onnx-ts-legacy, or its number; None preserves the modes.
    """
    mode = _PRESERVE if training is None else int(getattr(training, "value", training))
    if not isinstance(model, torch.nn.Module) or mode == _PRESERVE:
        yield
        return
    before = [(module, module.training) for module in model.modules()]
    model.train(mode == _TRAINING)
    try:
        yield
    finally:
        for module, own in before:
            module.training = own
