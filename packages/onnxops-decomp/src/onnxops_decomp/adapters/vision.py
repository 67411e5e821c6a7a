"""Operators of detection models in the opsets before they came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.adapters.sampling import Tap, gathered_taps
from onnxops_decomp.builder.forms import adapter
from onnxops_decomp.builder.sizes import Size
from onnxops_decomp.errors import UnsupportedOpsetError
from onnxops_decomp.formulas.operands import arange

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder


# Where the samples lie by default.
@adapter("RoiAlign", below=16, keeps_meaning=False)
def roi_align_at_pixel_corners(
    op: OpBuilder,
    X: ir.Value,
    rois: ir.Value,
    batch_indices: ir.Value,
    *,
    older: OpBuilder,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> ir.Value:
    if coordinate_transformation_mode != "output_half_pixel":
        raise UnsupportedOpsetError(
            "RoiAlign", op.opset, lowest=16, reason="regions aligned to pixel centers; aligned=False works below"
        )
    return older.RoiAlign(
        X,
        rois,
        batch_indices,
        mode=mode,
        output_height=output_height,
        output_width=output_width,
        sampling_ratio=sampling_ratio,
        spatial_scale=spatial_scale,
    )


def _convolved_size(op: OpBuilder, size: Size, kernel: int, stride: int, pads: int, dilation: int) -> Size:
    return op.size_add(op.size_floordiv(op.size_add(size, pads - dilation * (kernel - 1) - 1), stride), 1)


def _kernel_positions(
    op: OpBuilder,
    counts: Sequence[Size],
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    dtype: ir.DataType,
) -> list[ir.Value]:
    """Return the undeformed row and column of each kernel element at each output, of shape (kh * kw, oh, ow)."""
    positions = []
    for axis in (0, 1):
        starts = op.Sub(op.Mul(arange(op, counts[axis]), strides[axis]), pads[axis])
        steps = [
            (row if axis == 0 else column) * dilations[axis] for row in range(kernel[0]) for column in range(kernel[1])
        ]
        shaped = op.Unsqueeze(starts, [1]) if axis == 0 else op.Unsqueeze(starts, [0])
        positions.append(op.cast(op.Add(op.constant([[[step]] for step in steps]), shaped), dtype))
    return positions


@adapter("DeformConv", below=19)
def deform_conv(
    op: OpBuilder,
    X: ir.Value,
    W: ir.Value,
    offset: ir.Value,
    B: ir.Value | None = None,
    mask: ir.Value | None = None,
    *,
    dilations: Sequence[int] = (1, 1),
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] = (0, 0, 0, 0),
    strides: Sequence[int] = (1, 1),
) -> ir.Value:
    dtype = op.dtype(X)
    kernel = list(kernel_shape or []) or [size for size in op.sizes(W)[2:] if isinstance(size, int)]
    if op.rank(X) != 4 or len(kernel) != 2:
        raise UnsupportedOpsetError("DeformConv", op.opset, lowest=19, reason="only images with a static kernel")
    batch, channels = op.size(X, 0), op.size(X, 1)
    counts = [
        _convolved_size(op, op.size(X, 2 + a), kernel[a], strides[a], pads[a] + pads[2 + a], dilations[a])
        for a in (0, 1)
    ]
    taps, merged = kernel[0] * kernel[1], op.size_mul(batch, offset_group)
    images = op.reshape(X, [merged, op.size_floordiv(channels, offset_group), *op.sizes(X)[2:]])
    shifts = op.reshape(offset, [merged, taps, 2, *counts])
    base = _kernel_positions(op, counts, kernel, strides, pads, dilations, dtype)
    samples = op.size_mul(taps, *counts)
    axes: list[list[Tap]] = []
    for a in (0, 1):
        moved = op.Add(op.Gather(shifts, op.constant(a), axis=2), base[a])
        place = op.reshape(moved, [merged, samples])
        floor = op.Floor(place)
        fraction = op.Sub(place, floor)
        axes.append([(floor, op.Sub(1.0, fraction)), (op.Add(floor, 1.0), fraction)])
    sampled = gathered_taps(op, images, axes)
    if mask is not None:
        sampled = op.Mul(sampled, op.reshape(mask, [merged, 1, samples]))
    inner = op.size_mul(op.size_floordiv(channels, group), taps)
    columns = op.reshape(sampled, [batch, group, inner, op.size_mul(*counts)])
    out = op.size_floordiv(op.size(W, 0), group)
    result = op.reshape(op.MatMul(op.reshape(W, [group, out, inner]), columns), [batch, op.size(W, 0), *counts])
    return result if B is None else op.Add(result, op.Unsqueeze(B, [1, 2]))
