"""Whether a check of torch's or torchvision's own asks for a value, which changes no result."""

from __future__ import annotations

import os
import sys
from types import FrameType

import torch

from onnx_ts_legacy.graph.sources import user_frame

__all__ = ["in_a_check"]

# What torch's own modules check of what they are given, and torchvision's of images and of the number of boxes, which
# changes no result.
_CHECKS = {
    *("check_input", "check_hidden_size", "check_forward_args", "_verify_batch_size", "_check_input_dim"),
    "pad_packed_sequence",
    *("_check", "_check_index", "_check_is_size", "_check_not_implemented", "_check_type", "_check_value"),
}
_OF_BOXES = {
    *("BoxCoder.decode", "GeneralizedRCNN.forward", "GeneralizedRCNNTransform.forward", "RetinaNet.forward"),
    *("SSD.forward", "FCOS.forward", "_multiscale_roi_align", "batched_nms"),
}
_TORCH = os.path.dirname(torch.__file__) + os.sep
_TORCHVISION = f"{os.sep}torchvision{os.sep}"
# So many frames may lie between a check and what asks, those of our own included.
_DEPTH = 20


def in_a_check() -> bool:
    """Tell whether a check of torch's own asks."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None:
            break
        code = frame.f_code
        if code.co_name in _CHECKS and code.co_filename.startswith(_TORCH):
            return True
        frame = frame.f_back
    asking = user_frame()
    return asking is not None and _TORCHVISION in asking.f_code.co_filename and asking.f_code.co_qualname in _OF_BOXES
