"""Whether gradients are recorded while a model runs: as for inference, unless the model itself asks for some."""

from __future__ import annotations

import contextlib
import os
import traceback
import weakref
from typing import Any

import torch

__all__ = ["asks_for_gradients", "gradient_mode", "note_gradients"]

# Models whose forward differentiates what it computes, as those do that derive forces from an energy.
_DIFFERENTIATING: weakref.WeakSet[Any] = weakref.WeakSet()
_AUTOGRAD = os.path.join(os.path.dirname(torch.__file__), "autograd", "__init__.py")


def gradient_mode(model: Any) -> contextlib.AbstractContextManager[Any]:
    """Return what a model is to be run in: without gradients, unless :func:`note_gradients` noted some."""
    # Not every callable has a hash.
    return torch.enable_grad() if any(noted is model for noted in _DIFFERENTIATING) else torch.no_grad()


def note_gradients(model: torch.nn.Module) -> None:
    """Note that a model differentiates what it computes, and what it calls."""
    for module in model.modules():
        _DIFFERENTIATING.add(module)
        _DIFFERENTIATING.update(value for value in vars(module).values() if callable(value) and _may_be_noted(value))


def asks_for_gradients(error: BaseException) -> bool:
    """Tell whether an error came about where a model asks for gradients, which were not recorded."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_filename == _AUTOGRAD for frame, _ in frames)


def _may_be_noted(value: Any) -> bool:
    return type(value).__weakrefoffset__ != 0 and type(value).__hash__ is not None
