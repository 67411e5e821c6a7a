"""Symbolic functions that are registered with ``torch.onnx``, for code that calls its exporter by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.registration import Registry
from onnx_ts_legacy.symbolics.arguments import parse_args

__all__ = ["symbolics_of_torch"]


def symbolics_of_torch() -> Registry:
    """Return what ``torch.onnx.register_custom_op_symbolic`` has registered until now."""
    registry = Registry()
    for name, opset, function in private.registered_symbolics():
        registry.register(name, opset, _with_own_values(function))
    return registry


def _with_own_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose inputs are read by this package where ``torch.onnx.symbolic_helper.parse_args`` does."""
    descriptors = getattr(function, "_arg_descriptors", None)
    inner = getattr(function, "__wrapped__", None)
    return function if descriptors is None or inner is None else parse_args(*descriptors)(inner)
