"""Engines that run ONNX models, found by entry point beside ONNX Runtime and ONNX's reference evaluator.

A package offers one in the group ``onnx_verify_engines``: a function that takes a ``ModelProto`` and returns what runs
it, which takes the inputs by name and returns the outputs in order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import onnx

from onnx_verify.errors import InputError, MissingDependencyError

__all__ = ["Engine", "engine", "engine_names"]

GROUP = "onnx_verify_engines"
Engine = Callable[[onnx.ModelProto], Callable[[Mapping[str, Any]], Sequence[Any]]]

_KNOWN = {
    "openvino": ("onnx_verify.running.openvino:load", "onnx-verify[openvino]"),
    "torch": ("onnxops_decomp.importing.engine:load", "onnxops-decomp"),
}
"""Engines that need no entry point, and what installs them."""


@functools.cache
def _found() -> dict[str, EntryPoint]:
    known = {name: EntryPoint(name, value, GROUP) for name, (value, _) in _KNOWN.items()}
    return known | {each.name: each for each in entry_points(group=GROUP)}


def engine_names() -> list[str]:
    """Return the names of all engines that are known, installed or not."""
    return sorted(_found())


@functools.cache
def engine(name: str) -> Engine:
    """Return an engine.

    Raises:
        InputError: if none has this name.
        MissingDependencyError: if it is not installed.
    """
    if name not in _found():
        raise InputError(f"unknown runtime {name!r}; one of {', '.join(engine_names())}")
    try:
        loaded: Engine = _found()[name].load()
    except ImportError as error:
        needs = _KNOWN.get(name, ("", ""))[1]
        advice = f"; pip install {needs}" if needs else ""
        raise MissingDependencyError(f"the runtime {name!r} cannot be loaded: {error}{advice}") from error
    return loaded
