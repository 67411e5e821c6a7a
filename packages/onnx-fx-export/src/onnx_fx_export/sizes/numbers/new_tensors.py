"""Tensors that code makes of sizes, as ``x.new_tensor([x.shape[0]])`` and ``torch.from_numpy(np.array(x.shape))`` do.

torch makes numbers of the example of what these functions are given, though not of a list that ``torch.tensor`` is
given.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from onnx_fx_export.sizes.numbers.arrays import (
    NotedNumbers,
    SizeArray,
    is_double,
    is_size,
    noted_numbers,
    tensor_of_sizes,
)
from onnx_fx_export.sizes.numbers.torch_private import tensors_of_doubles
from onnxops_core.exporting import original, replaced

__all__ = ["new_tensors_of_sizes"]


@contextlib.contextmanager
def new_tensors_of_sizes() -> Iterator[NotedNumbers]:
    """Let tensors that are made of dynamic sizes hold these in the body.

    Yields:
        The symbolic numbers that functions of NumPy gave.
    """
    functions = {"asarray": _asarray, "from_numpy": _from_numpy}
    places: list[tuple[Any, str, Any]] = [(torch, name, function) for name, function in functions.items()]
    places += [(torch.Tensor, "new_tensor", _new_tensor), tensors_of_doubles(is_double)]
    with replaced(places), noted_numbers() as numbers, _OfArrays():
        yield numbers


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


def _from_numpy(array: Any) -> torch.Tensor:
    of_sizes = _array_of_sizes(array)
    made: torch.Tensor = original(torch, "from_numpy")(array) if of_sizes is None else tensor_of_sizes(of_sizes)
    return made


def _array_of_sizes(data: Any) -> SizeArray | None:
    """Return an array with sizes in it, such as NumPy makes of several of them; None for anything else."""
    is_of_objects = isinstance(data, np.ndarray) and data.dtype == object
    return SizeArray.of(data) if is_of_objects and any(map(is_size, data.flat)) else None


class _OfArrays(TorchFunctionMode):
    """Lets functions that make tensors make them of arrays of sizes; torch has to find these in their place."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function."""
        if func in (torch.tensor, torch.as_tensor) and args and (array := _array_of_sizes(args[0])) is not None:
            return tensor_of_sizes(array, *args[1:], **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _holds_sizes(data: Any) -> bool:
    """Tell whether a number, or one in a list of lists, is symbolic."""
    if isinstance(data, list | tuple):
        return any(map(_holds_sizes, data))
    return isinstance(data, torch.SymInt | torch.SymFloat | torch.SymBool | SizeArray)
