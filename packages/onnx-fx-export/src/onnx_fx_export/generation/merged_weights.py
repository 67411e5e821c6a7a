"""Weights that are joined of others while a checkpoint is read, in files instead of memory."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from onnx_fx_export.errors import SaveError

__all__ = ["MergedOnDisk"]

_LARGE = 1 << 24
_JOINING = (torch.stack, torch.cat)
_COPYING = (torch.Tensor.contiguous, torch.Tensor.reshape, torch.Tensor.clone, torch.Tensor.to)


class MergedOnDisk(TorchFunctionMode):
    """Lets what is joined or copied of large tensors without gradients lie in temporary files, which are mapped.

    Checkpoints have a tensor for each expert, and models one for all experts of a layer: transformers joins them when
    it loads a folder. The files have no names, and are gone with the tensors.

    Args:
        folder: Where the files are made.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._failure: SaveError | None = None

    def __exit__(self, *error: Any) -> None:
        """End it.

        Raises:
            SaveError: If the disk had no room for a result; transformers only reports that it could not join them.
        """
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if self._failure:
            raise self._failure

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, and have a large result written to a file."""
        kwargs = kwargs or {}
        if func in _JOINING and "out" not in kwargs and args and _are_plain(args[0]):
            on_paper = func([tensor.to("meta") for tensor in args[0]], *args[1:], **kwargs)
            if on_paper.nbytes >= _LARGE:
                return func(args[0], *args[1:], **kwargs, out=self._place(on_paper.shape, on_paper.dtype))
        result = func(*args, **kwargs)
        if func in _COPYING and _are_plain((args[0], result)) and result.nbytes >= _LARGE and _is_copy(result, args[0]):
            return self._place(result.shape, result.dtype).copy_(result)
        return result

    def _place(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of a file."""
        size = math.prod(shape) * dtype.itemsize
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                if hasattr(os, "posix_fallocate"):  # a process that writes to a mapped file without room is ended
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    file.truncate(size)
                return torch.from_numpy(np.memmap(file, np.uint8, "r+", shape=(size,))).view(dtype).view(shape)
        except OSError as error:
            self._failure = SaveError(
                f"Weights that are joined from several of the checkpoint cannot be stored in {self._folder}: "
                f"{error.strerror or error}."
            )
            raise


def _are_plain(tensors: Any) -> bool:
    return all(
        type(x) in (torch.Tensor, torch.nn.Parameter) and x.device.type == "cpu" and not x.requires_grad
        for x in tensors
    )


def _is_copy(result: torch.Tensor, source: torch.Tensor) -> bool:
    return result.untyped_storage().data_ptr() != source.untyped_storage().data_ptr()
