"""All functions that are replaced while a model is captured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from onnx_fx_export.capture.stand_ins.attention_masks import masks_where_needed
from onnx_fx_export.capture.stand_ins.boxes import any_number_of_boxes
from onnx_fx_export.capture.stand_ins.encoders import encoders_without_branches
from onnx_fx_export.capture.stand_ins.infinities import clamped_infinities
from onnx_fx_export.capture.stand_ins.masks import masks_without_loops
from onnx_fx_export.capture.stand_ins.patch_grids import patches_of_all_images
from onnx_fx_export.capture.stand_ins.recurrent import packed_states_unchecked
from onnx_fx_export.capture.stand_ins.tensor_truths import truths_of_elements
from onnxops_decomp.exporting import casts_that_change_something

__all__ = ["stand_ins"]


_STAND_INS = (
    *(any_number_of_boxes, masks_without_loops, masks_where_needed),
    *(encoders_without_branches, packed_states_unchecked, patches_of_all_images),
    *(casts_that_change_something, truths_of_elements, clamped_infinities),
)


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Replace the functions in the body."""
    with contextlib.ExitStack() as stack:
        for stand_in in _STAND_INS:
            stack.enter_context(stand_in())
        yield
