"""Takes the place of ``torch.onnx.export`` for code that calls it by that name."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from onnx_fx_export.api import export
from onnxops_core.exporting import as_torch_onnx, replaced
from onnxops_decomp.exporting import ONNXProgram

__all__ = ["replace_torch_onnx"]


def replace_torch_onnx() -> contextlib.AbstractContextManager[None]:
    """Route ``torch.onnx.export`` to this package inside the context.

    Tools that call ``torch.onnx.export`` by its full name use this exporter without a change. Calls that ask for the
    TorchScript exporter (``dynamo=False``) go to onnx-ts-legacy if it is installed, and symbolic functions that are
    registered with ``torch.onnx.register_custom_op_symbolic`` hold for them. A call of a program answers the tuple of
    all outputs, as torch's programs do, and nodes and values carry the metadata that torch's exporter writes.

    Example:
        >>> with replace_torch_onnx():
        ...     program = torch.onnx.export(torch.nn.ReLU(), (torch.ones(2),))
        >>> type(program).__name__
        'ONNXProgram'
    """
    return replaced([(torch.onnx, "export", _export)], in_all_threads=True)


def _export(model: Any, args: Any = (), f: Any = None, **arguments: Any) -> ONNXProgram:
    with as_torch_onnx():
        program = export(model, args, f, **{"metadata": "full", **arguments})
    program.answer = "tuple"
    return program
