"""Makes torch's own ``torch.onnx.is_in_onnx_export`` answer for our exporters too.

torch offers no public way to set that state, and its own flags live in modules that go away with TorchScript.
What is replaced here is the code of the public function for the time of an export: its identity stays, so
code that holds ``from torch.onnx import is_in_onnx_export`` sees the answer, and no private name of
``torch.onnx`` is touched. ``tests/test_export_state.py`` fails when torch changes what this relies on.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from onnxops_core.patching import original, replaced

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_ours: Callable[[], bool] = bool


def torch_is_exporting() -> bool:
    """Return what torch itself says, our own answer left out."""
    public: Any = torch.onnx.is_in_onnx_export
    code = original(public, "__code__")
    return bool(public() if code is public.__code__ else types.FunctionType(code, public.__globals__)())


def _combined_answer() -> bool:
    # Runs with the globals of torch.onnx (only the code object moves there), so it must import what it uses.
    from onnxops_core import _torch_export_flag

    return _torch_export_flag._ours() or _torch_export_flag.torch_is_exporting()


def answer_also(ours: Callable[[], bool]) -> AbstractContextManager[None]:
    """While entered, ``torch.onnx.is_in_onnx_export()`` is also true where ``ours()`` is."""
    global _ours
    _ours = ours
    return replaced([(torch.onnx.is_in_onnx_export, "__code__", _combined_answer.__code__)])


def mark_constant_for_dynamo(function: Callable[[], bool]) -> None:
    """Return what ``torch.compiler.assume_constant_result`` does, without importing all of Dynamo at import time."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
