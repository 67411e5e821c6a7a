"""Helpers of custom symbolics that write Resize and Pad; they are found in :mod:`onnx_ts_legacy.symbolic_helper`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from onnx_ts_legacy.errors import OnnxExporterWarning
from onnx_ts_legacy.graph_context import GraphContext
from onnx_ts_legacy.symbolic_values import SymbolicValue
from onnx_ts_legacy.values import ListRef

__all__ = ["interpolation_warning", "scales_of_factors", "scales_of_sizes"]

# Batch and channels are not resized.
_LEADING = 2


def _numbers(value: Any) -> list[Any] | None:
    """Return the numbers of a list, or None if they are not known or there is no list."""
    variable = value.variable if isinstance(value, SymbolicValue) else value
    if isinstance(value, SymbolicValue) and value.static is not None:
        return value.static.reshape(-1).tolist()  # type: ignore[no-any-return]
    items = variable.items if isinstance(variable, ListRef) else variable
    known = isinstance(items, list | tuple) and all(isinstance(item, int | float) for item in items)
    return list(items) if known else None


def _constant(g: GraphContext, numbers: Sequence[float]) -> Any:
    return g.op("Constant", value_t=torch.tensor(numbers, dtype=torch.float32))


def scales_of_sizes(g: GraphContext, input: Any, output_size: Any, dim: int) -> Any:
    """Return the scales of a Resize to a spatial size, as FLOAT of length ``dim``; batch and channels have 1."""
    sizes, given = _numbers(output_size), input.type().sizes()
    spatial = None if given is None else given[_LEADING:]
    if sizes is not None and spatial is not None and None not in spatial:
        scales = [float(new) / float(old) for new, old in zip(sizes, spatial, strict=True)]
        return _constant(g, [1.0] * (dim - len(scales)) + scales)
    old = g.op("Cast", g.op("Shape", input), to_i=1)
    indices = g.op("Constant", value_t=torch.arange(_LEADING, dim))
    new = g.op("Cast", output_size if sizes is None else _constant(g, sizes), to_i=1)
    return g.op("Concat", _constant(g, [1.0] * _LEADING), g.op("Div", new, g.op("Gather", old, indices)), axis_i=0)


def scales_of_factors(g: GraphContext, scales: Sequence[Any]) -> Any:
    """Return the scales of a Resize, or None if the call gives no factors."""
    factors = _numbers(scales[0]) if scales else None
    return None if not factors or factors[0] == -1 else _constant(g, [1.0] * _LEADING + [float(x) for x in factors])


def interpolation_warning(interpolate_mode: str) -> None:
    """Warn that Upsample and Resize below opset 11 place their samples otherwise than torch does."""
    warnings.warn(
        f"ONNX's {interpolate_mode} resizing below opset 11 has no coordinate modes, so that samples may lie at other "
        "places than torch's; export with opset_version 11 or above for the same result.",
        OnnxExporterWarning,
        stacklevel=2,
    )
