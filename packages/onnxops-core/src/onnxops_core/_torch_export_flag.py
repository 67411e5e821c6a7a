"""Makes torch's own ``torch.onnx.is_in_onnx_export`` answer for our exporters too.

torch offers no public way to set that state, and its own flags live in modules that go away with TorchScript.
What is replaced here is the code of the public function for the time of an export: its identity stays, so
code that holds ``from torch.onnx import is_in_onnx_export`` sees the answer, and no private name of
``torch.onnx`` is touched. ``tests/test_export_state.py`` fails when torch changes what this relies on.
"""

from __future__ import annotations

import contextlib
import threading
import types
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_lock = threading.Lock()
_depth = 0
_original: types.FunctionType | None = None
_ours: Callable[[], bool] = bool


def torch_is_exporting() -> bool:
    """What torch itself says, our own answer left out."""
    function = _original or torch.onnx.is_in_onnx_export
    return bool(function())


def _combined_answer() -> bool:
    # Runs with the globals of torch.onnx (only the code object moves there), so it must import what it uses.
    from onnxops_core import _torch_export_flag

    return _torch_export_flag._ours() or _torch_export_flag.torch_is_exporting()


@contextlib.contextmanager
def answer_also(ours: Callable[[], bool]) -> Iterator[None]:
    """While entered, ``torch.onnx.is_in_onnx_export()`` is also true where ``ours()`` is."""
    global _depth, _original, _ours
    public: Any = torch.onnx.is_in_onnx_export
    with _lock:
        if _depth == 0:
            _original = types.FunctionType(public.__code__, public.__globals__)
            _ours = ours
            public.__code__ = _combined_answer.__code__
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0 and _original is not None:
                public.__code__ = _original.__code__
                _original = None


def mark_constant_for_dynamo(function: Callable[[], bool]) -> None:
    """What ``torch.compiler.assume_constant_result`` does, without importing all of Dynamo at import time."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
