"""What runtimes offer beyond ONNX, used only in models that are made for one of them.

A target has *forms*: how an operator, written in its newest form by a lowering, is written with the runtime's own. The
builder asks for them before the adapters of older opsets, so that one form serves every opset. What spans several
operators is fused by the target's *passes*, which run at the end.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxops_decomp.runtimes.onnxruntime.fusions import PASSES
from onnxops_decomp.runtimes.onnxruntime.kernel_gaps import is_older

__all__ = ["TARGETS", "keeps_digits_far_from_zero", "target_passes"]

_PASSES = {"onnxruntime": PASSES}
TARGETS = tuple(_PASSES)


def target_passes(target: str) -> tuple[type[ir.passes.InPlacePass], ...]:
    """Return the passes that a target's models end with, in order."""
    return _PASSES[target]


def keeps_digits_far_from_zero() -> bool:
    """Tell whether ONNX Runtime normalizes layers whose mean is large as exactly as others, which it does from 1.27."""
    return not is_older(1, 27)
