"""Versions of the domains of custom operators."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

__all__ = ["set_custom_opsets"]


def set_custom_opsets(model: ir.Model, custom_opsets: Mapping[str, int]) -> None:
    """Declare versions of the domains of custom operators, as far as the model uses them."""
    for domain, version in custom_opsets.items():
        for imports in (model.opset_imports, *(function.opset_imports for function in model.functions.values())):
            if domain in imports:
                imports[domain] = version
