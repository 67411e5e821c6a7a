"""Sliding blocks of images: unfold (im2col) and its transpose, fold (col2im)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import torch

from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

aten = torch.ops.aten


def _positions(op: OpBuilder, size: Size, kernel: int, dilation: int, stride: int) -> ir.Value:
    """Return for each element of the kernel its positions along a padded axis, INT64 (kernel, blocks)."""
    starts = op.Range(0, op.size_sub(size, dilation * (kernel - 1)), stride)
    return op.Add(op.Unsqueeze(starts, [0]), op.constant(np.arange(kernel)[:, None] * dilation))


@lowering(aten.im2col.default)
def im2col(
    op: OpBuilder,
    self: ir.Value,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> ir.Value:
    single = op.rank(self) == 3
    image = op.Unsqueeze(self, [0]) if single else self
    blocks = op.Pad(image, [0, 0, *padding, 0, 0, *padding])
    for axis, window in ((2, 0), (4, 1)):
        size = op.size_add(op.size(image, window + 2), 2 * padding[window])
        indices = _positions(op, size, kernel_size[window], dilation[window], stride[window])
        blocks = op.Gather(blocks, indices, axis=axis)
    blocks = op.Transpose(blocks, perm=[0, 1, 2, 4, 3, 5])
    batch, *block, height, width = op.sizes(blocks)
    columns = op.reshape(blocks, [batch, op.size_mul(*block), op.size_mul(height, width)])
    return op.Squeeze(columns, [0]) if single else columns


@lowering(aten.col2im.default)
def col2im(
    op: OpBuilder,
    self: ir.Value,
    output_size: Sequence[Size],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> ir.Value:
    single = op.rank(self) == 2
    image = op.Col2Im(
        op.Unsqueeze(self, [0]) if single else self,
        op.vector(output_size),
        list(kernel_size),
        dilations=dilation,
        pads=[*padding, *padding],
        strides=stride,
    )
    return op.Squeeze(image, [0]) if single else image
