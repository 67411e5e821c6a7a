"""Whether the running code is being exported to ONNX.

Exporters run a model's Python code inside :func:`onnx_export`. A model asks :func:`is_in_onnx_export` (or
torch's own
``torch.onnx.is_in_onnx_export``) to take another path while it is exported::

    if onnxops_core.is_in_onnx_export():
        y = onnxops_core.symbolic("com.example::Fused", (x,), dtype=x.dtype, shape=x.shape)
    else:
        y = fused(x)

The state belongs to the context (thread, asyncio task), not to the process: an export in one thread is not
seen by a model that runs in another.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING

import torch

from onnxops_core import _torch_export_flag
from onnxops_core.patching import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["as_torch_onnx", "is_in_onnx_export", "is_torch_onnx_call", "onnx_export", "unfused_layers"]

_EXPORTING: ContextVar[bool] = ContextVar("onnxops_core_exporting", default=False)
_AS_TORCH_ONNX: ContextVar[bool] = ContextVar("onnxops_core_as_torch_onnx", default=False)


def is_in_onnx_export() -> bool:
    """Tell whether an exporter of this project, or ``torch.onnx.export``, is running the calling code.

    Under Dynamo (``torch.compile``, strict ``torch.export``) the answer is a constant of the captured graph.
    """
    return _EXPORTING.get() or _torch_export_flag.torch_is_exporting()


@contextlib.contextmanager
def onnx_export() -> Iterator[None]:
    """Mark the body as being exported: ours and torch's ``is_in_onnx_export()`` are true inside.

    Contexts nest. Exporters enter it around the capture of a model; a test may enter it to take a model's
    export path.
    """
    token = _EXPORTING.set(True)
    try:
        with _torch_export_flag.answer_also(_EXPORTING.get):
            yield
    finally:
        _EXPORTING.reset(token)


@contextlib.contextmanager
def as_torch_onnx() -> Iterator[None]:
    """Mark exports in the body as calls of ``torch.onnx.export``, for which what is registered there holds."""
    token = _AS_TORCH_ONNX.set(True)
    try:
        yield
    finally:
        _AS_TORCH_ONNX.reset(token)


def is_torch_onnx_call() -> bool:
    """Tell whether the calling code runs inside :func:`as_torch_onnx`."""
    return _AS_TORCH_ONNX.get()


def unfused_layers() -> contextlib.AbstractContextManager[None]:
    """Keep transformer layers from being run by PyTorch's fused kernels (``torch.backends.mha``) in the body.

    Those kernels put zeros at padded positions, where the layers' own definition gives other values, and they stand
    for a whole layer in a trace. Exporters capture, and compare with, the definition.
    """
    return replaced([(torch.backends.mha, "get_fastpath_enabled", lambda: False)])


_torch_export_flag.mark_constant_for_dynamo(is_in_onnx_export)
