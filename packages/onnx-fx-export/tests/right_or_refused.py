"""Models that one export may refuse, and no export may get wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from onnx_fx_export import OnnxExporterError, export


def check_right_or_refused(model: Callable[..., Any], lengths: Iterable[int]) -> None:
    """Check that a model of rows (B, T, 3) is exported right for what its program does not refuse, or not exported."""
    try:
        program = export(model, (torch.randn(2, 5, 3),), dynamic_shapes=({0: "batch", 1: "length"},))
    except OnnxExporterError:
        return
    for length in lengths:
        x = torch.randn(3, length, 3)
        try:
            result = program(x)
        except OnnxExporterError:
            continue
        torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-4)
