"""Helpers of custom symbolics that write Resize and Pad; they are found in :mod:`onnx_ts_legacy.symbolic_helper`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnx_ts_legacy.errors import OnnxExporterWarning
from onnx_ts_legacy.state.values import ListRef
from onnx_ts_legacy.symbolics.arguments import _get_tensor_rank, _is_none, _parse_arg, _unimplemented
from onnx_ts_legacy.symbolics.aten_functions import aten_function
from onnx_ts_legacy.symbolics.graph_context import GraphContext
from onnx_ts_legacy.symbolics.quantization import quantized_args
from onnx_ts_legacy.symbolics.values import SymbolicValue
from onnxops_core.exporting import warn_user

__all__ = ["interpolation_warning", "scales_of_factors", "scales_of_sizes"]

# Batch and channels are not resized.
_LEADING = 2


def _numbers(value: Any) -> list[Any] | None:
    """Return the numbers of a list, or None if they are not known or there is no list."""
    variable = value.variable if isinstance(value, SymbolicValue) else value
    if isinstance(value, SymbolicValue) and value.static is not None:
        return value.static.reshape(-1).tolist()  # type: ignore[no-any-return]
    items = variable.items if isinstance(variable, ListRef) else variable
    items = [items] if isinstance(items, int | float) else items
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
    warn_user(
        f"ONNX's {interpolate_mode} resizing below opset 11 has no coordinate modes, so samples may lie at other "
        "places than torch's; export with opset_version 11 or above for the same result.",
        OnnxExporterWarning,
    )


def _get_interpolate_attributes(g: GraphContext, mode: str, args: Sequence[Any]) -> tuple[Any, Any]:
    """Return the scales and ``align_corners`` among the last arguments of an ``upsample`` call; each may be None."""
    align_corners, scales = (None, args) if mode == "nearest" else (args[0], args[1:])
    return scales_of_factors(g, scales), align_corners


def _interpolate_get_scales(g: GraphContext, scale_factor: Any, dim: int) -> Any:
    """Return the scales of a Resize for a scale factor: a list of numbers, or one for all spatial dimensions."""
    spatial, known = dim - _LEADING, _numbers(scale_factor)
    if known is not None:
        return _constant(g, [1.0] * _LEADING + (known * spatial if len(known) == 1 else known))
    rank = _get_tensor_rank(scale_factor)
    if rank == 0:
        scale_factor = g.op("Reshape", scale_factor, g.op("Constant", value_t=torch.tensor([1])))
    parts = [scale_factor] * spatial if rank == 0 else [scale_factor]
    return g.op("Concat", _constant(g, [1.0] * _LEADING), *(g.op("Cast", part, to_i=1) for part in parts), axis_i=0)


def _interpolate_get_scales_and_mode(
    g: GraphContext, input: Any, size: Any, scale_factor: Any, mode: Any, align_corners: Any
) -> tuple[Any, str]:
    """Return the scales and the mode of a Resize for the arguments of ``interpolate``."""
    name = _parse_arg(mode, "s", "mode")
    name = next((kind for kind in ("linear", "cubic") if kind in name), name)
    interpolation_warning(name)
    if not _is_none(align_corners) and _parse_arg(align_corners, "b", "align_corners"):
        _unimplemented("interpolate", "align_corners has no scales below opset 11")
    rank = _get_tensor_rank(input)
    if rank is None:
        _unimplemented("interpolate", "the rank of its input is not known")
    if not _is_none(scale_factor):
        return _interpolate_get_scales(g, scale_factor, rank), name
    if _is_none(size):
        _unimplemented("interpolate", "it has neither a size nor a scale factor")
    known = _numbers(size)
    if known is not None and len(known) == 1:
        size = known * (rank - _LEADING)
    return scales_of_sizes(g, input, size, rank), name


def _interpolate_helper(name: str, dim: int, interpolate_mode: str) -> Callable[..., Any]:
    """Return the symbolic of an ``upsample`` operator, such as ``upsample_nearest2d``."""

    @quantized_args(True)
    def symbolic(g: GraphContext, input: Any, output_size: Any, *args: Any) -> Any:
        return aten_function(name)(g, input, output_size, *args)

    return symbolic


_UPSAMPLING = {"linear": "linear1d", "bilinear": "bilinear2d", "bicubic": "bicubic2d", "trilinear": "trilinear3d"}


def __interpolate_helper(
    g: GraphContext,
    input: Any,
    size: Any,
    scale_factor: Any,
    mode: Any,
    align_corners: Any,
    recompute_scale_factor: Any,
) -> Any:
    """Resize as ``torch.nn.functional.interpolate`` does with the same arguments."""
    name, rank = _parse_arg(mode, "s", "mode"), _get_tensor_rank(input)
    if rank is None:
        _unimplemented("interpolate", "the rank of its input is not known")
    if not _is_none(recompute_scale_factor) and _parse_arg(recompute_scale_factor, "b", "recompute_scale_factor"):
        _unimplemented("interpolate", "recompute_scale_factor; give the size instead")
    sizes = size if _is_none(size) else _repeated(size, rank - _LEADING)
    factors = scale_factor if _is_none(scale_factor) else _repeated(scale_factor, rank - _LEADING)
    if name in ("nearest", "nearest-exact"):
        return aten_function(f"upsample_{name.replace('-', '_')}{rank - _LEADING}d")(g, input, sizes, factors)
    if name not in _UPSAMPLING:
        _unimplemented("interpolate", f"mode {name!r}")
    corners = False if _is_none(align_corners) else bool(_parse_arg(align_corners, "b", "align_corners"))
    return aten_function(f"upsample_{_UPSAMPLING[name]}")(g, input, sizes, corners, factors)


def _repeated(value: Any, count: int) -> Any:
    """Return a number as a list of ``count``; lists stay as they are."""
    known = _numbers(value)
    return value if known is None else known * count if len(known) == 1 else known
