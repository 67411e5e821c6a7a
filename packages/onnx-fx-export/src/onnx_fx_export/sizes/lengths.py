"""``len`` of tensors as their first size, which may be dynamic.

Python makes a number of what ``__len__`` returns. The code of a model sees another ``len``, which leaves a size as it
is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from onnxops_core.exporting import replaced
from onnxops_decomp.exporting import homes_of

__all__ = ["lengths_as_sizes"]


@contextlib.contextmanager
def lengths_as_sizes(model: torch.nn.Module) -> Iterator[None]:
    """Let ``len`` of a tensor be dynamic in the body where the classes of a model are defined.

    Args:
        model: The model; the files that define its modules, and the classes that these extend, are its code.
    """
    with replaced([(home, "len", _length) for home in homes_of(model) if "len" not in vars(home)]):
        yield


def _length(value: Any) -> int | torch.SymInt:
    if isinstance(value, torch.Tensor) and value.dim() and isinstance(value.shape[0], torch.SymInt):
        return value.shape[0]
    return len(value)
