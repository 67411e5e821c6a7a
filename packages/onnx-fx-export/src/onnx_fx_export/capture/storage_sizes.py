"""Refuses code that reads how large the memory of a tensor is: a capture holds that as the number of the example."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from onnx_fx_export.errors import CaptureError
from onnx_fx_export.sizes.texts import asking_frame
from onnxops_core.exporting import original, replaced

__all__ = ["refused_storage_sizes"]

_READING = [
    (kind, name) for kind in (torch.UntypedStorage, torch.TypedStorage) for name in ("__len__", "nbytes", "size")
]


@contextlib.contextmanager
def refused_storage_sizes() -> Iterator[None]:
    """Refuse the sizes of storages in the code of a model whose dimensions are dynamic."""

    def refusing(kind: type, name: str) -> Callable[[Any], Any]:
        def read(self: Any) -> Any:
            # The frame in between is that of the replacement.
            frame = asking_frame(sys._getframe(2))
            if frame is None:
                return original(kind, name)(self)
            line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            raise CaptureError(
                f"The size of a tensor's storage is read at {line}, and the capture would fix the example's. Use "
                "x.numel() * x.element_size(), or declare all dimensions static."
            )

        return read

    with replaced([(kind, name, refusing(kind, name)) for kind, name in _READING]):
        yield
