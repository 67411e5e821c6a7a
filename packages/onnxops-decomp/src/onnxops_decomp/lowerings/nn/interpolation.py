"""Interpolation to other sizes, and the rearrangements between channels and space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import torch

from onnxops_decomp.builder.runtime import Deviation
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.formulas.resampling import axis_ratio, position_dtype, resample, resampled_size
from onnxops_decomp.lowerings.registry import Function, lowering
from onnxops_decomp.spec.inference import same_dim

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

aten = torch.ops.aten

# How many elements are tried where the size is not known.
_MANY = 4096


class _Method:
    """How a family of upsampling operators maps to ONNX Resize."""

    def __init__(self, mode: str, *, nearest_mode: str = "floor", antialias: bool = False, a: float = -0.75) -> None:
        self.mode, self.nearest_mode, self.antialias, self.a = mode, nearest_mode, antialias, a

    def coordinates(self, align_corners: bool) -> str:
        if self.mode == "nearest":
            return "asymmetric" if self.nearest_mode == "floor" else "half_pixel"
        return "align_corners" if align_corners else "half_pixel"


def _interpolated(
    op: OpBuilder,
    input: ir.Value,
    output_size: Sequence[Size] | None,
    scales: Sequence[float | None] | None,
    align_corners: bool,
    method: _Method,
) -> ir.Value:
    """Resize the spatial dimensions of a batch, as torch defines it by output sizes and perhaps scales."""
    dtype = op.dtype(input)
    if not dtype.is_floating_point() and method.mode != "nearest":
        if method.mode == "cubic" or method.antialias:
            raise LoweringError(
                "torch interpolates integers by cubic or antialiasing filters in fixed-point steps that ONNX cannot "
                "express; convert the input to float and round the result."
            )
        # torch rounds to the nearest integer, where runtimes cut digits off.
        wide = op.cast(input, ir.DataType.FLOAT)
        resized = op.Round(_interpolated(op, wide, output_size, scales, align_corners, method))
        return op.cast(op.Min(op.Max(resized, 0.0), 255.0), dtype)
    sizes = op.sizes(input)[2:]
    factors = list(scales) if scales is not None and all(scale is not None and scale > 0 for scale in scales) else None
    if output_size is None:
        assert scales is not None
        counts = [resampled_size(op, size, scale) for size, scale in zip(sizes, scales, strict=True) if scale]
    else:
        counts = list(output_size)
    if factors is None and all(same_dim(op.dim(a), op.dim(b)) for a, b in zip(sizes, counts, strict=True)):
        return input
    if not _resize_agrees(sizes, counts, factors, align_corners, method):
        return _by_axis(op, input, counts, factors, align_corners, method)
    kept = op.sizes(input)[:2] if op.deviates(Deviation.RESIZED_AXES) else []
    attributes = {
        "mode": method.mode,
        "coordinate_transformation_mode": method.coordinates(align_corners),
        "nearest_mode": method.nearest_mode if method.mode == "nearest" else None,
        "cubic_coeff_a": method.a if method.mode == "cubic" else None,
        "antialias": int(method.antialias),
        "exclude_outside": int(method.antialias),
        "axes": None if kept else list(range(2, 2 + len(sizes))),
    }
    if factors is not None and not align_corners:
        scales = [*([1.0] * len(kept)), *factors]
        return op.Resize(input, None, op.constant(scales, ir.DataType.FLOAT), **attributes)
    return op.Resize(input, None, None, op.vector([*kept, *counts]), **attributes)


def _by_axis(
    op: OpBuilder,
    input: ir.Value,
    counts: Sequence[Size],
    factors: Sequence[float | None] | None,
    align_corners: bool,
    method: _Method,
) -> ir.Value:
    result, dtype = input, position_dtype(input, method.mode)
    for axis, count in enumerate(counts):
        factor = None if factors is None or align_corners else factors[axis]
        size = op.size(input, 2 + axis)
        if factor is None and same_dim(op.dim(size), op.dim(count)):
            continue
        ratio = 1.0 / factor if factor else axis_ratio(op, size, count, align_corners=align_corners, dtype=dtype)
        result = resample(
            op,
            result,
            2 + axis,
            count,
            ratio,
            mode=method.mode,
            coordinates=method.coordinates(align_corners),
            nearest_mode=method.nearest_mode,
            cubic_coeff_a=method.a,
            antialias=method.antialias,
        )
    return result


def _resize_agrees(
    sizes: Sequence[Size],
    counts: Sequence[Size],
    factors: Sequence[float | None] | None,
    align_corners: bool,
    method: _Method,
) -> bool:
    """Tell whether ONNX Resize gives what torch does.

    It divides by the ratio of the sizes where torch multiplies by its inverse, so that nearest neighbours can differ
    by one where the exact position is an integer. It also rounds sizes that follow from scales in single precision,
    and its antialiasing between aligned corners has another meaning.
    """
    if method.antialias and align_corners:
        return False
    for axis, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        factor = None if factors is None else factors[axis]
        if factor is not None and not align_corners and not _same_count(size, count, factor):
            return False
        if method.mode != "nearest":
            continue
        if isinstance(size, int) and isinstance(count, int):
            if not _same_neighbours(size, count, factor, method):
                return False
        elif factor is None or not _same_neighbours(_MANY, int(_MANY * factor), factor, method):
            return False
    return True


def _same_count(size: Size, count: Size, factor: float) -> bool:
    """Tell whether the product of a size and a factor rounds alike in single and in double precision."""
    single = np.float32(factor)
    if isinstance(size, int):
        return int(np.float32(size) * single) == int(size * float(single)) == count
    # Few enough digits for an exact product with any size that occurs.
    return float(single) == factor and (factor * 64).is_integer() and factor < 64


def _same_neighbours(size: int, count: int, factor: float | None, method: _Method) -> bool:
    shift = np.float32(0.0 if method.nearest_mode == "floor" else 0.5)
    index = np.arange(count, dtype=np.float32) + shift
    ratio = np.float32(size) / np.float32(count) if factor is None else np.float32(1.0 / factor)
    scale = np.float32(count) / np.float32(size) if factor is None else np.float32(factor)
    multiplied, divided = np.floor(index * ratio), np.floor((index / scale - shift) + shift)
    return bool((multiplied == divided).all() and (divided == np.floor(index / scale)).all())


def _lowerings(method: _Method, spatial: int, *, aligns: bool) -> tuple[Function, Function]:
    """Return the lowerings of an operator and of its ``vec`` overload."""

    def sized(op: OpBuilder, self: ir.Value, output_size: Sequence[Size], *rest: bool | float | None) -> ir.Value:
        align_corners = bool(rest[0]) if aligns else False
        scales = list(rest[1:] if aligns else rest)
        return _interpolated(op, self, output_size, scales, align_corners, method)

    def vec(
        op: OpBuilder, input: ir.Value, output_size: Sequence[Size] | None, *rest: bool | Sequence[float] | None
    ) -> ir.Value:
        align_corners = bool(rest[0]) if aligns else False
        scales = rest[-1]
        return _interpolated(op, input, output_size, scales, align_corners, method)  # type: ignore[arg-type]

    return sized, vec


_FAMILIES: dict[str, tuple[_Method, int, bool]] = {
    **{f"upsample_nearest{d}d": (_Method("nearest"), d, False) for d in (1, 2, 3)},
    **{
        f"_upsample_nearest_exact{d}d": (_Method("nearest", nearest_mode="round_prefer_ceil"), d, False)
        for d in (1, 2, 3)
    },
    "upsample_linear1d": (_Method("linear"), 1, True),
    "upsample_bilinear2d": (_Method("linear"), 2, True),
    "upsample_trilinear3d": (_Method("linear"), 3, True),
    "upsample_bicubic2d": (_Method("cubic"), 2, True),
    "_upsample_bilinear2d_aa": (_Method("linear", antialias=True), 2, True),
    "_upsample_bicubic2d_aa": (_Method("cubic", antialias=True, a=-0.5), 2, True),
}

for _name, (_method, _spatial, _aligns) in _FAMILIES.items():
    _sized, _vec = _lowerings(_method, _spatial, aligns=_aligns)
    lowering(f"aten::{_name}")(_sized)
    lowering(f"aten::{_name}.vec")(_vec)


@lowering(aten.pixel_shuffle.default)
def pixel_shuffle(op: OpBuilder, self: ir.Value, upscale_factor: int) -> ir.Value:
    *lead, channels, height, width = op.sizes(self)
    size = [
        op.size_floordiv(channels, upscale_factor**2),
        op.size_mul(height, upscale_factor),
        op.size_mul(width, upscale_factor),
    ]
    return _rearranged(op, self, lead, size, lambda x: op.DepthToSpace(x, blocksize=upscale_factor, mode="CRD"))


@lowering(aten.pixel_unshuffle.default)
def pixel_unshuffle(op: OpBuilder, self: ir.Value, downscale_factor: int) -> ir.Value:
    *lead, channels, height, width = op.sizes(self)
    size = [
        op.size_mul(channels, downscale_factor**2),
        op.size_floordiv(height, downscale_factor),
        op.size_floordiv(width, downscale_factor),
    ]
    return _rearranged(op, self, lead, size, lambda x: op.SpaceToDepth(x, blocksize=downscale_factor, mode="CRD"))


def _rearranged(
    op: OpBuilder, x: ir.Value, lead: Sequence[Size], size: Sequence[Size], function: Callable[[ir.Value], ir.Value]
) -> ir.Value:
    """Apply a function of (N, C, H, W) that gives ``size`` to a tensor with any number of batch dimensions."""
    if any(isinstance(dim, int) and dim == 0 for dim in (*lead, *size)):
        return op.reshape(x, [*lead, *size])
    if len(lead) == 1:
        return function(x)
    if not lead:
        return op.Squeeze(function(op.Unsqueeze(x, [0])), [0])
    flat = op.reshape(x, [op.size_mul(*lead), *op.sizes(x)[len(lead) :]])
    return op.reshape(function(flat), [*lead, *size])
