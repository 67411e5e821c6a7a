"""The operator that marks in a graph what the code of a model asked, and the answer that it was captured with."""

from __future__ import annotations

import functools
from typing import Any

import torch

__all__ = ["answer_mark"]

_NAMESPACE = "onnx_fx_export_questions"


@functools.cache
def answer_mark() -> Any:
    """Define on first use the operator ``answer(Tensor condition, bool taken)``, and return it."""
    library = torch.library.Library(_NAMESPACE, "DEF")
    name = library.define("answer(Tensor condition, bool taken) -> ()")
    library.impl(name, lambda condition, taken: None, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{_NAMESPACE}::{name}", lambda condition, taken: None, lib=library)
    _LIBRARIES.append(library)
    operator = getattr(torch.ops, _NAMESPACE).answer.default
    torch.fx.node.has_side_effect(operator)
    return operator


_LIBRARIES: list[torch.library.Library] = []
