"""Pooling to a given output size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from onnxops_decomp.builder.sizes import is_one
from onnxops_decomp.formulas.operands import arange
from onnxops_decomp.formulas.sliding_windows import batched, has_window_operator, max_of_windows, per_axis
from onnxops_decomp.lowerings.nn.pooling import max_pool_lowering
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.spec.inference import same_dim
from onnxops_decomp.spec.traits import Trait, has_trait

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

aten = torch.ops.aten


def _bounds(op: OpBuilder, size: Size, count: Size) -> tuple[ir.Value, ir.Value]:
    """Return where each of ``count`` windows over ``size`` elements begins and ends."""
    steps = op.Mul(arange(op, count), size)
    starts = op.Div(steps, count)
    # The end is rounded up: ceil(a / b) is (a + b - 1) // b.
    ends = op.Div(op.Add(steps, op.size_sub(op.size_add(size, count), 1)), count)
    return starts, ends


def _positions(op: OpBuilder, size: Size, count: Size) -> tuple[ir.Value, ir.Value]:
    """Return positions (windows, kernel) with the last one repeated, and which of them are not repetitions."""
    starts, ends = _bounds(op, size, count)
    widest = op.ReduceMax(op.Sub(ends, starts), [0], keepdims=0)
    static = op.static(widest)
    elements = arange(op, int(static) if static is not None else widest)
    reached = op.Add(op.Unsqueeze(starts, [1]), elements)
    last = op.Sub(op.Unsqueeze(ends, [1]), 1)
    return op.Min(reached, last), op.LessOrEqual(reached, last)


def _same(op: OpBuilder, a: Size, b: Size) -> bool:
    return same_dim(op.dim(a), op.dim(b))


def _averaged(op: OpBuilder, x: ir.Value, axis: int, count: Size) -> ir.Value:
    """Average the windows along one axis."""
    size = op.size(x, axis)
    if _same(op, size, count):
        return x
    if is_one(count):
        return op.ReduceMean(x, [axis], keepdims=1)
    positions, valid = _positions(op, size, count)
    rank = op.rank(x)
    mask = op.Unsqueeze(valid, list(range(2, 2 + rank - axis - 1)))
    gathered = op.Where(mask, op.Gather(x, positions, axis=axis), op.constant(0.0, op.dtype(x)))
    lengths = op.ReduceSum(op.cast(valid, ir.DataType.INT64), [1], keepdims=0)
    divisor = op.Unsqueeze(op.cast(lengths, op.dtype(x)), list(range(1, rank - axis)))
    return op.Div(op.ReduceSum(gathered, [axis + 1], keepdims=0), divisor)


def _adaptive_avg_pool(op: OpBuilder, self: ir.Value, output_size: Sequence[Size], spatial: int) -> ir.Value:
    x, unbatched = batched(op, self, spatial)
    counts = list(output_size) * spatial if len(output_size) == 1 else list(output_size)
    sizes = op.sizes(x)[2:]
    if all(is_one(count) for count in counts):
        axes = list(range(2, 2 + spatial))
        result = op.GlobalAveragePool(x) if _behind_convolution(x) else op.ReduceMean(x, axes)
    elif has_window_operator(op, "AveragePool", op.dtype(x)) and (kernel := _divisors(sizes, counts)) is not None:
        result = op.AveragePool(x, kernel_shape=kernel, strides=kernel) if any(k != 1 for k in kernel) else x
    else:
        result = x
        for axis, count in enumerate(counts):
            result = _averaged(op, result, 2 + axis, count)
    return op.Squeeze(result, [0]) if unbatched else result


def _behind_convolution(x: ir.Value) -> bool:
    """Tell whether a value comes from a convolution, whose layout runtimes keep for pooling but for no reduction."""
    node = x.producer()
    while node is not None and _is_elementwise(node) and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node is not None and node.op_type == "Conv"


def _is_elementwise(node: ir.Node) -> bool:
    return has_trait(node.op_type, Trait.BROADCASTS, node.domain) or has_trait(
        node.op_type, Trait.KEEPS_SHAPE, node.domain
    )


def _divisors(sizes: Sequence[Size], counts: Sequence[Size]) -> list[int] | None:
    """Return the kernel of the equal windows that the output consists of, or None if they are not equal."""
    kernel: list[int] = []
    for size, count in zip(sizes, counts, strict=True):
        if not isinstance(size, int) or not isinstance(count, int) or count == 0 or size == 0 or size % count:
            return None
        kernel.append(size // count)
    return kernel


def _adaptive_avg_pool_lowering(spatial: int) -> Any:
    def adaptive_avg_pool(op: OpBuilder, self: ir.Value, output_size: Sequence[Size]) -> ir.Value:
        return _adaptive_avg_pool(op, self, output_size, spatial)

    return adaptive_avg_pool


def _adaptive_max_pool_lowering(spatial: int) -> Any:
    of_equal_windows = max_pool_lowering(spatial, indices=True)

    def adaptive_max_pool(op: OpBuilder, self: ir.Value, output_size: int | Sequence[int]) -> tuple[ir.Value, ...]:
        x, unbatched = batched(op, self, spatial)
        sizes = op.sizes(x)[2:]
        counts = per_axis(output_size, spatial)
        if (kernel := _divisors(sizes, counts)) is not None:
            highest, places = of_equal_windows(op, self, kernel)
            if all(is_one(count) for count in counts) and not _behind_convolution(x):
                highest = op.ReduceMax(self, list(range(-spatial, 0)))
            return highest, places
        positions = [_positions(op, size, count)[0] for size, count in zip(sizes, counts, strict=True)]
        results = max_of_windows(op, x, positions, sizes, [0] * spatial)
        return tuple(op.Squeeze(result, [0]) for result in results) if unbatched else results

    return adaptive_max_pool


for _dims in (1, 2, 3):
    lowering(f"aten::adaptive_avg_pool{_dims}d")(_adaptive_avg_pool_lowering(_dims))
    lowering(f"aten::adaptive_max_pool{_dims}d")(_adaptive_max_pool_lowering(_dims))
for _dims in (2, 3):
    lowering(f"aten::_adaptive_avg_pool{_dims}d")(_adaptive_avg_pool_lowering(_dims))
