"""Recurrences over the tokens of a text that an operator of ONNX Runtime stands for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from onnx_fx_export.generation.operators import delta_rules, selective_scans
from onnx_fx_export.generation.operators.functions import has_operators, modules_with
from onnx_fx_export.generation.operators.linear_attention import SINCE
from onnxops_core.exporting import replaced

__all__ = ["has_recurrences", "recurrences_as_operators"]

# What modules of transformers call them, what stands for each, and whether it computes the same.
_KNOWN: dict[str, tuple[Callable[..., Any], Callable[[Callable[..., Any]], bool]]] = {
    "torch_chunk_gated_delta_rule": (delta_rules.by_operator, delta_rules.agrees),
    "chunk_kimi_delta_attention": (delta_rules.by_operator, delta_rules.agrees_by_rows),
    "mamba_selective_scan": (selective_scans.by_operator, selective_scans.agrees),
}


def _names(model: torch.nn.Module) -> list[str]:
    return [name for name, (_, agree) in _KNOWN.items() if has_operators(name, model, agree, SINCE)]


def has_recurrences(model: torch.nn.Module) -> bool:
    """Tell whether layers of a model compute a recurrence that an operator of ONNX Runtime stands for."""
    return bool(_names(model))


@contextlib.contextmanager
def recurrences_as_operators(model: torch.nn.Module) -> Iterator[None]:
    """Let layers compute recurrences by the operator, where that is what they compute; undo it afterwards."""
    found = [(module, name, _KNOWN[name][0]) for name in _names(model) for module in modules_with(name, model)]
    with replaced(found):
        yield
