"""Functions for models that are exported."""

from __future__ import annotations

import torch

from onnx_ts_legacy import _torch_private as private

__all__ = ["shape_as_tensor"]


def shape_as_tensor(x: torch.Tensor) -> torch.Tensor:
    """Return the shape of ``x`` as a 1-D int64 tensor that follows the input in an exported model."""
    return private.shape_as_tensor(x)
