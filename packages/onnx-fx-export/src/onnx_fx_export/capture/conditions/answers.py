"""The operators that mark in a graph what the code of a model asked, and which way was taken."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["answer_mark", "noted_ways", "way_mark"]

_NAMESPACE = "onnx_fx_export_questions"
_WAYS: contextvars.ContextVar[list[tuple[str, bool]] | None] = contextvars.ContextVar("ways", default=None)


def answer_mark() -> Any:
    """Return the operator ``answer(Tensor condition, bool taken, str place)``: what a question was taken for."""
    return _marks().answer.default


def way_mark() -> Any:
    """Return the operator ``way(Tensor condition, str place)``: a condition before the branches that it chooses."""
    return _marks().way.default


@contextlib.contextmanager
def noted_ways() -> Iterator[list[tuple[str, bool]]]:
    """Note which places runs of a graph pass, and the answer there."""
    ways: list[tuple[str, bool]] = []
    token = _WAYS.set(ways)
    try:
        yield ways
    finally:
        _WAYS.reset(token)


def _note(condition: torch.Tensor, place: str) -> None:
    if (ways := _WAYS.get()) is not None:
        ways.append((place, bool(condition)))


@functools.cache
def _marks() -> Any:
    """Define the operators on first use."""
    library = torch.library.Library(_NAMESPACE, "DEF")
    kernels = {
        'answer(Tensor condition, bool taken, str place="") -> ()': lambda *noted: None,
        "way(Tensor condition, str place) -> ()": _note,
    }
    for schema, kernel in kernels.items():
        name = library.define(schema)
        library.impl(name, kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{_NAMESPACE}::{name}", lambda *noted: None, lib=library)
    _LIBRARIES.append(library)
    operators = getattr(torch.ops, _NAMESPACE)
    for operator in (operators.answer.default, operators.way.default):
        torch.fx.node.has_side_effect(operator)
    return operators


_LIBRARIES: list[torch.library.Library] = []
