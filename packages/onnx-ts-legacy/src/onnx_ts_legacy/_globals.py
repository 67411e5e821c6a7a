"""What published symbolics ask ``GLOBALS`` for: how the running export was called."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onnx_ts_legacy.enumerations import OperatorExportTypes, TrainingMode

__all__ = ["DEFAULT_OPSET", "GLOBALS", "running_export"]

DEFAULT_OPSET = 17


class _Globals(threading.local):
    """State of the export that runs in this thread.

    Attributes:
        export_onnx_opset_version: Opset that is written.
        training_mode: Mode in which the model is captured.
        export_training: Whether the model itself was in training mode.
        operator_export_type: What becomes of operators that cannot be converted.
        in_onnx_export: Whether an export converts a graph.
        autograd_inlining: Whether functions without a symbolic are converted as what they do.
        onnx_shape_inference: Kept for compatibility; types and shapes are always known.
    """

    def __init__(self) -> None:
        self.export_onnx_opset_version = DEFAULT_OPSET
        self.training_mode = TrainingMode.EVAL
        self.export_training = False
        self.operator_export_type = OperatorExportTypes.ONNX
        self.in_onnx_export = False
        self.autograd_inlining = True
        self.onnx_shape_inference = True


GLOBALS = _Globals()


@contextmanager
def running_export(**state: Any) -> Iterator[None]:
    """Enter what an export was asked for; afterwards all is as before."""
    before = dict(vars(GLOBALS))
    for name, value in {**state, "in_onnx_export": True}.items():
        setattr(GLOBALS, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(GLOBALS, name, value)
