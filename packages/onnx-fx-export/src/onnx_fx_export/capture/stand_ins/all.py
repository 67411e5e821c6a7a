"""All functions that are replaced while a model is captured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from onnx_fx_export.capture.stand_ins.boxes import any_number_of_boxes
from onnx_fx_export.capture.stand_ins.encoders import encoders_without_branches
from onnx_fx_export.capture.stand_ins.masks import masks_without_loops
from onnx_fx_export.capture.stand_ins.recurrent import packed_states_unchecked

__all__ = ["stand_ins"]


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Replace the functions in the body."""
    with any_number_of_boxes(), masks_without_loops(), encoders_without_branches(), packed_states_unchecked():
        yield
