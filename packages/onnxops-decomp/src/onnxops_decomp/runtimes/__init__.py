"""What runtimes offer beyond ONNX, used only in models that are made for one of them.

A target has *forms*: how an operator, written in its newest form by a lowering, is written with the runtime's own. The
builder asks for them before the adapters of older opsets, so that one form serves every opset. What spans several
operators is fused by the target's *passes*, which run at the end.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxops_decomp.runtimes.forms import TargetForm
from onnxops_decomp.runtimes.onnxruntime.fusions import PASSES
from onnxops_decomp.runtimes.onnxruntime.operators import FORMS

__all__ = ["TARGETS", "TargetForm", "find_target_form", "target_passes"]

_FORMS = {"onnxruntime": FORMS}
_PASSES = {"onnxruntime": PASSES}
TARGETS = tuple(_FORMS)


def find_target_form(target: str, op_type: str) -> TargetForm | None:
    """Return how a target writes an operator of the default domain, or None if like everyone."""
    return _FORMS[target].get(op_type)


def target_passes(target: str) -> tuple[type[ir.passes.InPlacePass], ...]:
    """Return the passes that a target's models end with, in order."""
    return _PASSES[target]
