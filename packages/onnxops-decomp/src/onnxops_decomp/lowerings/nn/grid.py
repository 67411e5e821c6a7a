"""Sampling on a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.builder.runtime import Deviation
from onnxops_decomp.formulas.grid import affine_grid
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

aten = torch.ops.aten

_MODES = ("linear", "nearest", "cubic")
_PADDINGS = ("zeros", "border", "reflection")


@lowering(aten.grid_sampler.default, aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(
    op: OpBuilder,
    input: ir.Value,
    grid: ir.Value,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> ir.Value:
    return op.GridSample(
        input,
        grid,
        align_corners=int(align_corners),
        mode=_MODES[interpolation_mode],
        padding_mode=_PADDINGS[padding_mode],
    )


@lowering(aten.affine_grid_generator.default)
def affine_grid_generator(op: OpBuilder, theta: ir.Value, size: Sequence[Size], align_corners: bool) -> ir.Value:
    plane = list(size)[2:]
    if align_corners and any(not isinstance(count, int) or count == 1 for count in plane):
        # Runtimes divide by the number of steps between corners, which is 0 for a single pixel.
        return affine_grid(op, theta, plane, 1)
    dtype = op.dtype(theta)
    if dtype == ir.DataType.FLOAT16 and op.deviates(Deviation.HALF_AFFINE_GRID):
        theta = op.cast(theta, ir.DataType.FLOAT)
    return op.cast(op.AffineGrid(theta, op.vector(size), align_corners=int(align_corners)), dtype)
