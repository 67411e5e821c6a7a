"""The type of a target's forms."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

__all__ = ["TargetForm"]

# Called as ``form(op, *inputs, **attributes)`` with the operands of the newest form and a builder that takes such
# calls. It returns the one output, or None where the runtime's operator is not exactly the same.
TargetForm = Callable[..., ir.Value | None]
