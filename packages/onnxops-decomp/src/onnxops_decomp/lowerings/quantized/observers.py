"""Fake quantization that observes its input, as in quantization-aware training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.lowerings.layout.shapes import swap_axes
from onnxops_decomp.lowerings.quantized.quantization import fake_quantized, unclipped
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

aten = torch.ops.aten

FLOAT, DOUBLE, BOOL = ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BOOL

# Below this a scale is raised, and the range with it (SMALL_SCALE_THRESHOLD of ATen's QuantUtils).
_SMALLEST_SCALE = 6.1e-5


def _symmetric_range(
    op: OpBuilder, low: ir.Value, high: ir.Value, quant_min: int, quant_max: int
) -> tuple[ir.Value, ir.Value]:
    """Widen a range around 0 so that 0 comes to lie in its middle."""
    half = (quant_max - quant_min) // 2
    size = op.Max(op.Abs(op.Div(low, float(-half - 1))), op.Abs(op.Div(high, float(half))))
    around = op.And(op.Less(low, 0.0), op.Greater(high, 0.0))
    return op.Where(around, op.Mul(size, float(-half - 1)), low), op.Where(around, op.Mul(size, float(half)), high)


def _quantization_parameters(
    op: OpBuilder, low: ir.Value, high: ir.Value, quant_min: int, quant_max: int, symmetric: bool
) -> tuple[ir.Value, ir.Value]:
    """Return scales (FLOAT) and zero points (INT32) for FLOAT ranges, as ATen's ChooseQuantizationParams does."""
    steps = float(quant_max - quant_min)
    if symmetric:
        low, high = _symmetric_range(op, low, high, quant_min, quant_max)
    low, high = op.Min(low, 0.0), op.Max(high, 0.0)
    scale = op.Div(op.Sub(op.cast(high, DOUBLE), op.cast(low, DOUBLE)), steps)
    narrow = op.cast(scale, FLOAT)
    # A scale whose reciprocal is infinite counts as none.
    scale = op.Where(op.IsInf(op.Reciprocal(narrow)), op.constant(0.1, DOUBLE), scale)
    raised = op.Less(scale, _SMALLEST_SCALE)
    factor = op.Div(_SMALLEST_SCALE, op.cast(scale, FLOAT))
    one_sided = op.Or(op.Equal(low, 0.0), op.Equal(high, 0.0))
    bound = op.constant(_SMALLEST_SCALE * steps, FLOAT)
    small_low = op.Where(one_sided, op.Where(op.Equal(low, 0.0), low, op.Neg(bound)), op.Mul(low, factor))
    small_high = op.Where(one_sided, op.Where(op.Equal(low, 0.0), bound, high), op.Mul(high, factor))
    scale = op.Where(raised, op.constant(_SMALLEST_SCALE, DOUBLE), scale)
    low, high = op.Where(raised, small_low, low), op.Where(raised, small_high, high)
    below, above = op.Div(op.cast(low, DOUBLE), scale), op.Div(op.cast(high, DOUBLE), scale)
    nearer = op.Less(op.Sub(float(abs(quant_min)), op.Abs(below)), op.Sub(float(abs(quant_max)), op.Abs(above)))
    zero = op.Where(nearer, op.Sub(float(quant_min), below), op.Sub(float(quant_max), above))
    if symmetric:
        around = op.And(op.Less(low, 0.0), op.Greater(high, 0.0))
        zero = op.Where(around, op.constant((quant_min + quant_max) / 2, DOUBLE), zero)
    zero = op.Min(op.Max(op.Round(zero), float(quant_min)), float(quant_max))
    return op.cast(scale, FLOAT), op.cast(zero, ir.DataType.INT32)


def _moved(
    op: OpBuilder, running: ir.Value, current: ir.Value, averaging_const: float, observing: ir.Value
) -> ir.Value:
    """Move a running extremum towards the current one, or start it where nothing has been seen."""
    moved = op.Add(running, op.Mul(op.Sub(current, running), averaging_const))
    return op.Where(observing, op.Where(op.IsInf(running), current, moved), running)


def _extremes(op: OpBuilder, x: ir.Value, ch_axis: int, per_row: bool) -> tuple[ir.Value, ir.Value]:
    x = op.cast(x, FLOAT)
    if not per_row:
        return op.ReduceMin(x, keepdims=0), op.ReduceMax(x, keepdims=0)
    rows = swap_axes(op, x, 0, ch_axis)
    others = list(range(1, op.rank(x)))
    return op.ReduceMin(rows, others, keepdims=0), op.ReduceMax(rows, others, keepdims=0)


@lowering(aten._fused_moving_avg_obs_fq_helper_functional.default)
def fused_moving_avg_obs_fq_helper_functional(
    op: OpBuilder,
    self: ir.Value,
    observer_on: ir.Value,
    fake_quant_on: ir.Value,
    running_min: ir.Value,
    running_max: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> tuple[ir.Value, ...]:
    """Observe, choose scale and zero point from what has been observed, and quantize; each if its switch is on.

    Returns:
        The output, the mask of what was not clipped, and the next running_min, running_max, scale and zero_point.
    """
    observing, quantizing = (op.cast(op.Reshape(switch, [1]), BOOL) for switch in (observer_on, fake_quant_on))
    low, high = _extremes(op, self, ch_axis, per_row_fake_quant)
    sizes = op.sizes(running_min)
    lowest = _moved(op, op.Reshape(running_min, [-1]), low, averaging_const, observing)
    highest = _moved(op, op.Reshape(running_max, [-1]), high, averaging_const, observing)
    scales, zeros = _quantization_parameters(op, lowest, highest, quant_min, quant_max, symmetric_quant)
    scale = op.Where(quantizing, op.cast(scales, op.dtype(scale)), scale)
    zero_point = op.Where(quantizing, op.cast(zeros, op.dtype(zero_point)), zero_point)
    parameters = (scale, zero_point) if per_row_fake_quant else (op.Reshape(p, [1]) for p in (scale, zero_point))
    used = [p if per_row_fake_quant else op.Squeeze(p, [0]) for p in parameters]
    arguments = used[0], used[1], quant_min, quant_max, ch_axis if per_row_fake_quant else 0
    output = op.Where(quantizing, fake_quantized(op, self, *arguments), self)
    mask = op.Or(op.Not(quantizing), unclipped(op, self, *arguments))
    return output, mask, op.reshape(lowest, sizes), op.reshape(highest, sizes), scale, zero_point
