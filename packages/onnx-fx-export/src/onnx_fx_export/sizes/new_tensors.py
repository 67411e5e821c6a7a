"""Tensors that code makes of sizes beside another tensor, as ``x.new_tensor([x.shape[0]])`` does.

torch makes numbers of the example of what these functions are given, though not of what ``torch.tensor`` is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from onnxops_core.exporting import original, replaced

__all__ = ["new_tensors_of_sizes"]


@contextlib.contextmanager
def new_tensors_of_sizes() -> Iterator[None]:
    """Let tensors that are made of dynamic sizes hold these in the body."""
    with replaced([(torch.Tensor, "new_tensor", _new_tensor), (torch, "asarray", _asarray)]):
        yield


def _new_tensor(self: torch.Tensor, data: Any, **options: Any) -> torch.Tensor:
    if not _holds_sizes(data):
        made: torch.Tensor = original(torch.Tensor, "new_tensor")(self, data, **options)
        return made
    options["dtype"] = options.get("dtype") or self.dtype
    options["device"] = self.device if options.get("device") is None else options["device"]
    options.pop("layout", None)
    return torch.tensor(data, **options)


def _asarray(obj: Any, **options: Any) -> torch.Tensor:
    if not _holds_sizes(obj):
        made: torch.Tensor = original(torch, "asarray")(obj, **options)
        return made
    options.pop("copy", None)
    return torch.tensor(obj, **options)


def _holds_sizes(data: Any) -> bool:
    """Tell whether a number, or one in a list of lists, is symbolic."""
    if isinstance(data, list | tuple):
        return any(map(_holds_sizes, data))
    return isinstance(data, torch.SymInt | torch.SymFloat | torch.SymBool)
