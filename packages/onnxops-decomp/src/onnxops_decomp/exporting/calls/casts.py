"""Modules that are cast to the dtype that they have, as routers of mixtures of experts cast their layers in each call.

``torch.nn.Module.to`` exchanges the data of each parameter, which no capture can do for those that it traces.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from onnxops_core.exporting import original, replaced

__all__ = ["casts_that_change_something"]


@contextlib.contextmanager
def casts_that_change_something() -> Iterator[None]:
    """Let ``module.to(dtype)`` leave a module alone all of whose tensors have the dtype."""
    with replaced([(torch.nn.Module, "to", _to)]):
        yield


def _to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    match args, kwargs:
        case ((torch.dtype() as dtype,), {}) if not kwargs and _is_of(self, dtype):
            return self
        case ((), {"dtype": torch.dtype() as dtype}) if len(kwargs) == 1 and _is_of(self, dtype):
            return self
    return original(torch.nn.Module, "to")(self, *args, **kwargs)


def _is_of(module: torch.nn.Module, dtype: torch.dtype) -> bool:
    """Tell whether all tensors that a cast is for have a dtype; one to complex or whole numbers torch warns of."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    numbers = [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]
    return dtype.is_floating_point and all(tensor.dtype == dtype for tensor in numbers)
