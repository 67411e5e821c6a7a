"""What numbers need of torch that it does not offer publicly; ``tests/test_torch_private.py`` notices changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._sympy.functions import FloatTrueDiv, IntTrueDiv, OpaqueUnaryFn_log, OpaqueUnaryFn_log2, ToFloat

from onnx_fx_export.torch_private import hint_of
from onnxops_core.exporting import original

__all__ = ["logarithm_of", "tensors_of_doubles"]

_LOGARITHMS = {"log": OpaqueUnaryFn_log, "log2": OpaqueUnaryFn_log2}


def logarithm_of(number: torch.SymFloat, name: str) -> torch.SymFloat | None:
    """Return ``log`` or ``log2`` of a positive number as an expression; None where data decides the number.

    torch has a symbol for both (``OpaqueUnaryFn_log``), but no function that its graphs may call. It leaves alone what
    computes it in a tensor where there is a ``ToFloat`` in it (``_has_uninterpretable_sympy_function``).
    """
    node, hint = number.node, hint_of(number)
    operand = node.expr.replace(IntTrueDiv, lambda a, b: FloatTrueDiv(ToFloat(a), ToFloat(b)))
    if hint is None or hint <= 0 or not operand.has(ToFloat):
        return None
    value = getattr(math, name)(hint)
    found: torch.SymFloat = node.shape_env.create_symfloatnode(_LOGARITHMS[name](operand), hint=value)
    return found


def tensors_of_doubles(is_double: Callable[[Any], bool]) -> tuple[Any, str, Any]:
    """Return the replacement of what makes tensors of sizes, which may be doubles (``torch._refs.tensor``)."""

    def tensor(data: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
        own = torch.float64 if dtype is None and is_double(data) else dtype
        return original(torch._refs, "tensor")(data, dtype=own, **options)

    return torch._refs, "tensor", tensor
