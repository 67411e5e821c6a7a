"""Convolutions and transposed convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.errors import LoweringError
from onnxops_decomp.formulas.sliding_windows import (
    batched,
    gathered_windows,
    has_window_operator,
    per_axis,
    pooled_size,
)
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

aten = torch.ops.aten


def _unless(values: list[int], default: int) -> list[int] | None:
    """Return an attribute, or None where every entry is the default."""
    return None if all(value == default for value in values) else values


def _kernel_sizes(op: OpBuilder, weight: ir.Value) -> list[int]:
    sizes = op.sizes(weight)[2:]
    if not all(isinstance(size, int) for size in sizes):
        raise LoweringError("The kernel of a convolution needs static sizes; make the weight's dimensions static.")
    return [size for size in sizes if isinstance(size, int)]


def _convolved(
    op: OpBuilder,
    input: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    strides: list[int],
    pads: list[int],
    dilations: list[int],
    groups: Size,
) -> ir.Value:
    """Convolve a batch; ``pads`` are begins, then ends."""
    # The attribute of ONNX Conv is a number, and channels of a dynamic count may be groups.
    if not has_window_operator(op, "Conv", op.dtype(input)) or not isinstance(groups, int):
        return _convolution_by_product(op, input, weight, bias, strides, pads, dilations, groups)
    return op.Conv(
        input,
        weight,
        bias,
        strides=_unless(strides, 1),
        pads=_unless(pads, 0),
        dilations=_unless(dilations, 1),
        group=groups,
    )


def _convolution_by_product(
    op: OpBuilder,
    input: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    strides: list[int],
    pads: list[int],
    dilations: list[int],
    groups: Size,
) -> ir.Value:
    """Convolve as a product of windows and kernels."""
    kernel, spatial = _kernel_sizes(op, weight), len(strides)
    x = op.Pad(input, [0, 0, *pads[:spatial], 0, 0, *pads[spatial:]])
    counts = [
        pooled_size(op, op.size(x, 2 + axis), kernel[axis], strides[axis], 0, dilations[axis], False)
        for axis in range(spatial)
    ]
    for axis in range(spatial):
        # Axes before this one have grown a window axis each.
        x = gathered_windows(op, x, 2 + 2 * axis, counts[axis], kernel[axis], strides[axis], dilations[axis])
    batch, channels, out = op.size(input, 0), op.size(weight, 1), op.size_floordiv(op.size(weight, 0), groups)
    order = [0, 1, *range(3, 3 + 2 * spatial, 2), *range(2, 2 + 2 * spatial, 2)]
    columns = op.size_mul(channels, *kernel)
    windows = op.reshape(op.Transpose(x, perm=order), [batch, groups, columns, op.size_mul(*counts)])
    product = op.MatMul(op.reshape(weight, [groups, out, columns]), windows)
    result = op.reshape(product, [batch, op.size(weight, 0), *counts])
    return result if bias is None else op.Add(result, op.Unsqueeze(bias, list(range(1, spatial + 1))))


@lowering(
    *(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default),
    *(aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding),
)
def conv(
    op: OpBuilder,
    input: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] | str = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> ir.Value:
    spatial = op.rank(weight) - 2
    x, unbatched = batched(op, input, spatial)
    dilations = per_axis(dilation, spatial)
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilations, _kernel_sizes(op, weight), strict=True)]
        pads = [total // 2 for total in totals] + [total - total // 2 for total in totals]
    else:
        pads = per_axis((0,) if isinstance(padding, str) else padding, spatial) * 2
    result = _convolved(op, x, weight, bias, per_axis(stride, spatial), pads, dilations, groups)
    return op.Squeeze(result, [0]) if unbatched else result


@lowering(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
def conv_transpose(
    op: OpBuilder,
    input: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
    dilation: Sequence[int] = (1,),
) -> ir.Value:
    spatial = op.rank(weight) - 2
    x, unbatched = batched(op, input, spatial)
    strides, pads, extra, dilations = (per_axis(v, spatial) for v in (stride, padding, output_padding, dilation))
    if has_window_operator(op, "ConvTranspose", op.dtype(input)):
        result = op.ConvTranspose(
            x,
            weight,
            bias,
            strides=_unless(strides, 1),
            pads=_unless(pads * 2, 0),
            output_padding=_unless(extra, 0),
            dilations=_unless(dilations, 1),
            group=groups,
        )
    else:
        result = _conv_transpose_by_product(op, x, weight, bias, strides, pads, extra, dilations, groups)
    return op.Squeeze(result, [0]) if unbatched else result


def _conv_transpose_by_product(
    op: OpBuilder,
    x: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    strides: list[int],
    padding: list[int],
    output_padding: list[int],
    dilations: list[int],
    groups: int,
) -> ir.Value:
    """Convolve the input, zeros inserted between its elements, with the kernel turned around."""
    kernel, spatial = _kernel_sizes(op, weight), len(strides)
    for axis, stride in enumerate(strides):
        *lead, size = op.sizes(x)[: 3 + axis]
        rest = op.sizes(x)[3 + axis :]
        spread = op.Pad(op.Unsqueeze(x, [3 + axis]), [0, stride - 1], op.constant(0, op.dtype(x)), [3 + axis])
        x = op.reshape(spread, [*lead, op.size_mul(size, stride), *rest])
    begins = [d * (k - 1) - p for d, k, p in zip(dilations, kernel, padding, strict=True)]
    # The zeros behind the last element count towards the padding there.
    ends = [b + o - (s - 1) for b, o, s in zip(begins, output_padding, strides, strict=True)]
    x = op.Pad(x, [0, 0, *begins, 0, 0, *ends])
    inner, outer = op.size_floordiv(op.size(weight, 0), groups), op.size(weight, 1)
    turned = op.reshape(weight, [groups, inner, outer, *kernel])
    turned = op.Transpose(turned, perm=[0, 2, 1, *range(3, 3 + spatial)])
    turned = op.reshape(turned, [op.size_mul(outer, groups), inner, *kernel])
    for axis, size in enumerate(kernel):
        turned = op.Gather(turned, op.constant(list(range(size - 1, -1, -1))), axis=2 + axis)
    return _convolution_by_product(op, x, turned, bias, [1] * spatial, [0] * (2 * spatial), dilations, groups)


@lowering(aten.convolution.default)
def convolution(
    op: OpBuilder,
    input: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> ir.Value:
    result: ir.Value
    if transposed:
        result = conv_transpose(op, input, weight, bias, stride, padding, output_padding, groups, dilation)
    else:
        result = conv(op, input, weight, bias, stride, padding, dilation, groups)
    return result


@lowering(aten._convolution.default, aten._convolution.deprecated)
def convolution_with_flags(
    op: OpBuilder,
    input: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    benchmark: bool,
    deterministic: bool,
    cudnn_enabled: bool,
    allow_tf32: bool = True,
) -> ir.Value:
    result: ir.Value = convolution(
        op, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    )
    return result
