"""Pooling over sliding windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import torch

from onnxops_decomp.errors import LoweringError
from onnxops_decomp.formulas.sliding_windows import (
    batched,
    gathered_windows,
    has_window_operator,
    max_of_windows,
    per_axis,
    pooled_size,
    window_positions,
)
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.spec.inference import dims_of

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

aten = torch.ops.aten

IntOrInts = int | Sequence[int]


class _Windows:
    """Arguments of a pooling operator, one number per spatial axis."""

    def __init__(
        self,
        spatial: int,
        kernel_size: IntOrInts,
        stride: IntOrInts,
        padding: IntOrInts,
        dilation: IntOrInts,
        ceil_mode: bool,
    ) -> None:
        self.spatial = spatial
        self.kernel = per_axis(kernel_size, spatial)
        self.stride = per_axis(stride, spatial) if stride != [] and stride != () else self.kernel
        self.padding = per_axis(padding, spatial)
        self.dilation = per_axis(dilation, spatial)
        self.ceil_mode = ceil_mode

    def attributes(self, op: OpBuilder, x: ir.Value) -> dict[str, Any]:
        """Return the attributes of ONNX MaxPool and AveragePool over the batch ``x``, defaults left out."""
        whole = [self._whole_count(op, x, axis) for axis in range(self.spatial)]
        # ONNX's shape inference also counts a window that begins in the padding on the right. Where there is one,
        # rounding down gives what torch counts.
        needed = [self.count(op, x, axis) != count for axis, count in enumerate(whole)]
        return {
            "kernel_shape": self.kernel,
            "strides": self.stride if any(s != 1 for s in self.stride) else None,
            "pads": self.padding * 2 if any(self.padding) else None,
            "dilations": self.dilation if any(d != 1 for d in self.dilation) else None,
            "ceil_mode": int(self.ceil_mode and any(needed)),
        }

    def _whole_count(self, op: OpBuilder, x: ir.Value, axis: int) -> Size | None:
        """Return the number of windows that do not reach beyond the padding; None where the runtime decides."""
        size = op.size(x, 2 + axis)
        if not isinstance(size, int):
            return None
        numbers = self.kernel[axis], self.stride[axis], self.padding[axis], self.dilation[axis]
        return pooled_size(op, size, *numbers, False)

    def named(self, op: OpBuilder, x: ir.Value, result: ir.Value) -> ir.Value:
        """Note the sizes of the pooled batch ``x``, which ONNX's shape inference gets wrong in ceil mode."""
        if self.ceil_mode:
            counts = [op.dim(self.count(op, x, axis)) for axis in range(self.spatial)]
            result.shape = ir.Shape([*(dims_of(x) or ())[:2], *counts])
        return result

    def count(self, op: OpBuilder, x: ir.Value, axis: int) -> Size:
        """Return the number of windows along spatial axis ``axis`` of the batch ``x``."""
        return pooled_size(
            op,
            op.size(x, 2 + axis),
            self.kernel[axis],
            self.stride[axis],
            self.padding[axis],
            self.dilation[axis],
            self.ceil_mode,
        )

    def padded(self, op: OpBuilder, x: ir.Value, fill: float) -> ir.Value:
        """Return the batch ``x`` with all elements that a window can reach."""
        ends = [p + (s - 1 if self.ceil_mode else 0) for p, s in zip(self.padding, self.stride, strict=True)]
        return op.Pad(x, [0, 0, *self.padding, 0, 0, *ends], op.constant(fill, op.dtype(x)))


def _max_pool(op: OpBuilder, self: ir.Value, windows: _Windows, *, indices: bool) -> tuple[ir.Value, ...]:
    x, unbatched = batched(op, self, windows.spatial)
    # Other integers are pooled as doubles.
    narrow = op.dtype(x) in (ir.DataType.FLOAT, ir.DataType.FLOAT16)
    if op.dtype(x) == ir.DataType.INT64 or not (narrow or op.takes_doubles("MaxPool")):
        results = _composed_max_pool(op, x, windows)
    elif indices:
        result, flat = (
            windows.named(op, x, value) for value in op.emit_many("MaxPool", 2, x, **windows.attributes(op, x))
        )
        # ONNX counts through the whole tensor, torch inside one channel.
        results = (result, op.Mod(flat, op.size_mul(*op.sizes(x)[2:])))
    else:
        results = (windows.named(op, x, op.MaxPool(x, **windows.attributes(op, x))),)
    return tuple(op.Squeeze(result, [0]) for result in results) if unbatched else results


def _composed_max_pool(op: OpBuilder, x: ir.Value, windows: _Windows) -> tuple[ir.Value, ...]:
    """Pool what no MaxPool takes: INT64, which no float holds exactly, and in old opsets all but narrow floats."""
    dtype = op.dtype(x)
    padded = windows.padded(op, x, -np.inf if dtype.is_floating_point() else np.iinfo(dtype.numpy()).min)
    positions = [
        window_positions(op, windows.count(op, x, axis), windows.kernel[axis], windows.stride[axis], d)
        for axis, d in enumerate(windows.dilation)
    ]
    return max_of_windows(op, padded, positions, op.sizes(x)[2:], windows.padding)


def max_pool_lowering(spatial: int, *, indices: bool) -> Any:
    def max_pool(
        op: OpBuilder,
        self: ir.Value,
        kernel_size: IntOrInts,
        stride: IntOrInts = (),
        padding: IntOrInts = 0,
        dilation: IntOrInts = 1,
        ceil_mode: bool = False,
    ) -> ir.Value | tuple[ir.Value, ...]:
        windows = _Windows(spatial, kernel_size, stride, padding, dilation, ceil_mode)
        results = _max_pool(op, self, windows, indices=indices)
        return results[:2] if indices else results[0]

    return max_pool


def _avg_pool(
    op: OpBuilder, self: ir.Value, windows: _Windows, count_include_pad: bool, divisor_override: int | None
) -> ir.Value:
    if divisor_override == 0:
        raise LoweringError("avg_pool with divisor_override=0 is an error in torch, too.")
    x, unbatched = batched(op, self, windows.spatial)
    if not has_window_operator(op, "AveragePool", op.dtype(x)):
        result = _avg_pool_of_sums(op, x, windows, count_include_pad, divisor_override)
    elif divisor_override is None:
        average = op.AveragePool(x, **windows.attributes(op, x), count_include_pad=int(count_include_pad))
        result = windows.named(op, x, average)
    else:
        # The sum over a window is its average times its size, so that all windows have to be whole.
        padded = windows.padded(op, x, 0.0) if windows.ceil_mode or any(windows.padding) else x
        whole = _Windows(windows.spatial, windows.kernel, windows.stride, 0, 1, False)
        # Nothing is padded here, but runtimes fold the Pad above into this node, where its zeros have to count.
        average = op.AveragePool(padded, **whole.attributes(op, padded), count_include_pad=1)
        if windows.ceil_mode:
            average = _leading(op, average, [windows.count(op, x, axis) for axis in range(windows.spatial)])
        result = op.Mul(average, math.prod(windows.kernel) / divisor_override)
    return op.Squeeze(result, [0]) if unbatched else result


def _leading(op: OpBuilder, x: ir.Value, counts: Sequence[Size]) -> ir.Value:
    """Return the first elements of each spatial axis."""
    axes = list(range(2, 2 + len(counts)))
    return op.Slice(x, op.constant([0] * len(counts)), op.vector(counts), op.constant(axes))


def _window_sums(op: OpBuilder, x: ir.Value, windows: _Windows) -> ir.Value:
    result = windows.padded(op, x, 0)
    for axis in range(windows.spatial):
        count = windows.count(op, x, axis)
        gathered = gathered_windows(op, result, 2 + axis, count, windows.kernel[axis], windows.stride[axis], 1)
        result = op.ReduceSum(gathered, [3 + axis], keepdims=0)
    return result


def _avg_pool_of_sums(
    op: OpBuilder, x: ir.Value, windows: _Windows, count_include_pad: bool, divisor_override: int | None
) -> ir.Value:
    """Divide sums by sizes; the quotient of integers is rounded towards zero, as in torch."""
    sums = _window_sums(op, x, windows)
    if divisor_override is not None:
        return op.Div(sums, divisor_override)
    ones = op.expand(op.Reshape(op.constant(1, op.dtype(x)), [1] * op.rank(x)), [1, 1, *op.sizes(x)[2:]])
    if count_include_pad:
        inner = _Windows(windows.spatial, windows.kernel, windows.stride, 0, 1, False)
        ones = op.Pad(ones, [0, 0, *windows.padding] * 2, op.constant(1, op.dtype(x)))
        ends = [s - 1 if windows.ceil_mode else 0 for s in windows.stride]
        ones = op.Pad(ones, [0, 0, *[0] * windows.spatial, 0, 0, *ends], op.constant(0, op.dtype(x)))
        return op.Div(sums, _leading(op, _window_sums(op, ones, inner), op.sizes(sums)[2:]))
    return op.Div(sums, _window_sums(op, ones, windows))


def _avg_pool_lowering(spatial: int) -> Any:
    def avg_pool(
        op: OpBuilder,
        self: ir.Value,
        kernel_size: IntOrInts,
        stride: IntOrInts = (),
        padding: IntOrInts = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> ir.Value:
        windows = _Windows(spatial, kernel_size, stride, padding, 1, ceil_mode)
        return _avg_pool(op, self, windows, count_include_pad, divisor_override)

    return avg_pool


for _dims in (1, 2, 3):
    lowering(f"aten::max_pool{_dims}d")(max_pool_lowering(_dims, indices=False))
    lowering(f"aten::max_pool{_dims}d_with_indices")(max_pool_lowering(_dims, indices=True))
    lowering(f"aten::avg_pool{_dims}d")(_avg_pool_lowering(_dims))


@lowering(aten.max_unpool2d.default)
def max_unpool2d(op: OpBuilder, self: ir.Value, indices: ir.Value, output_size: Sequence[Size]) -> ir.Value:
    spatial = len(output_size)
    lead = op.sizes(self)[: op.rank(self) - spatial]
    flat = [*lead, -1]
    zeros = op.expand(op.Reshape(op.constant(0, op.dtype(self)), [1]), [*lead, op.size_mul(*output_size)])
    scattered = op.ScatterElements(zeros, op.reshape(indices, flat), op.reshape(self, flat), axis=len(lead))
    return op.reshape(scattered, [*lead, *output_size])


@lowering(aten.max_unpool3d.default)
def max_unpool3d(
    op: OpBuilder,
    self: ir.Value,
    indices: ir.Value,
    output_size: Sequence[Size],
    stride: Sequence[int],
    padding: Sequence[int],
) -> ir.Value:
    return max_unpool2d(op, self, indices, output_size)
