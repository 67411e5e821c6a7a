"""Sliding windows: pooling with dilations or ceiling sizes, and Col2Im."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.builder.forms import adapter
from onnxops_decomp.errors import UnsupportedOpsetError
from onnxops_decomp.formulas.operands import dim_sizes, static_ints

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

Ints = Sequence[int]


class _Windows:
    """The windows of one pooling call along each spatial axis.

    Raises:
        UnsupportedOpsetError: If the padding is an automatic one.
    """

    def __init__(self, op: OpBuilder, op_type: str, lowest: int, x: ir.Value, attributes: dict[str, object]) -> None:
        self.op = op
        self.kernel: Ints = attributes["kernel_shape"]  # type: ignore[assignment]
        rank = len(self.kernel)
        self.strides: Ints = attributes.get("strides") or [1] * rank  # type: ignore[assignment]
        self.dilations: Ints = attributes.get("dilations") or [1] * rank  # type: ignore[assignment]
        self.pads: Ints = attributes.get("pads") or [0] * (2 * rank)  # type: ignore[assignment]
        if attributes.get("auto_pad", "NOTSET") != "NOTSET":
            raise UnsupportedOpsetError(op_type, op.opset, lowest=lowest, reason="automatic padding")
        self.axes = list(range(2, 2 + rank))
        self.sizes = dim_sizes(op, x, op_type, lowest)[2:]
        self.reach = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]
        self.ceil_mode = bool(attributes.get("ceil_mode"))
        self.numbers = [self._number(axis) for axis in range(rank)]
        self.extra = [self._surplus(axis) for axis in range(rank)]

    def _whole(self, axis: int) -> Size:
        """Return the size of an axis with its padding."""
        return self.op.size_add(self.sizes[axis], self.pads[axis] + self.pads[axis + len(self.kernel)])

    def _number(self, axis: int) -> Size:
        """Return how many windows an axis has."""
        op, stride = self.op, self.strides[axis]
        span = op.size_sub(self._whole(axis), self.reach[axis])
        if not self.ceil_mode:
            return op.size_add(op.size_floordiv(span, stride), 1)
        number = op.size_add(op.size_floordiv(op.size_add(span, stride - 1), stride), 1)
        # A window that starts in the padding behind the input does not count.
        starting = op.size_add(op.size_floordiv(op.size_add(self.sizes[axis], self.pads[axis] - 1), stride), 1)
        return op.size_min(number, starting)

    def _surplus(self, axis: int) -> int:
        """Return by how much the last window of the ceiling mode sticks out behind the padding, at most."""
        number, whole = self.numbers[axis], self._whole(axis)
        if isinstance(number, int) and isinstance(whole, int):
            return max((number - 1) * self.strides[axis] + self.reach[axis] - whole, 0)
        return self.strides[axis] - 1 if self.ceil_mode else 0

    @property
    def end_pads(self) -> list[int]:
        """Padding at both ends, what sticks out included."""
        rank = len(self.kernel)
        return [*self.pads[:rank], *(p + e for p, e in zip(self.pads[rank:], self.extra, strict=True))]

    def padded(self, x: ir.Value, fill: float) -> ir.Value:
        """Pad the spatial axes with ``fill``."""
        if not any(self.end_pads):
            return x
        return self.op.Pad(x, self.end_pads, self.op.constant(fill, self.op.dtype(x)), self.axes)

    def elements(self, padded: ir.Value) -> list[ir.Value]:
        """Return, for each place of the kernel, the element that each window has there."""
        op = self.op
        spans = [
            op.size_add(op.size_mul(op.size_sub(number, 1), stride), 1)
            for number, stride in zip(self.numbers, self.strides, strict=True)
        ]
        parts: list[ir.Value] = []
        for place in itertools.product(*map(range, self.kernel)):
            first = [o * d for o, d in zip(place, self.dilations, strict=True)]
            last = [op.size_add(span, start) for span, start in zip(spans, first, strict=True)]
            parts.append(op.Slice(padded, first, op.vector(last), self.axes, list(self.strides)))
        return parts

    def total(self, x: ir.Value) -> ir.Value:
        """Return the sum over each window."""
        first, *others = self.elements(self.padded(x, 0))
        for other in others:
            first = self.op.Add(first, other)
        return first

    def counts(self, dtype: ir.DataType, *, include_pads: bool) -> ir.Value:
        """Return how many elements each window has, with those of the padding or without."""
        op, rank = self.op, len(self.kernel)
        ones = op.expand(op.constant(1, dtype), [1, 1, *self.sizes])
        if include_pads and any(self.pads):
            ones = op.Pad(ones, list(self.pads), op.constant(1, dtype), self.axes)
            padded = op.Pad(ones, [0] * rank + self.extra, None, self.axes)
        else:
            padded = self.padded(ones, 0)
        first, *others = self.elements(padded)
        for other in others:
            first = op.Add(first, other)
        return first


def _given(**attributes: object) -> dict[str, object]:
    return {name: value for name, value in attributes.items() if value is not None}


def _plain(dilations: Ints | None) -> bool:
    return dilations is None or all(d == 1 for d in dilations)


def _average(
    op: OpBuilder, x: ir.Value, lowest: int, count_include_pad: int, attributes: dict[str, object]
) -> ir.Value:
    windows = _Windows(op, "AveragePool", lowest, x, attributes)
    count = windows.counts(op.dtype(x), include_pads=bool(count_include_pad))
    return op.Div(windows.total(x), count)


@adapter("AveragePool", below=19)
def average_pool_with_dilations(
    op: OpBuilder,
    x: ir.Value,
    *,
    older: OpBuilder,
    dilations: Ints | None = None,
    count_include_pad: int = 0,
    **attributes: object,
) -> ir.Value:
    if _plain(dilations):
        return older.AveragePool(x, count_include_pad=count_include_pad, **attributes)
    return _average(op, x, 19, count_include_pad, {**attributes, "dilations": dilations})


@adapter("AveragePool", below=10)
def average_pool_with_ceil_mode(
    op: OpBuilder,
    x: ir.Value,
    *,
    older: OpBuilder,
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    **attributes: object,
) -> ir.Value:
    if not ceil_mode:
        return older.AveragePool(x, count_include_pad=count_include_pad, **attributes)
    return _average(op, x, 10, count_include_pad, {**attributes, "ceil_mode": 1})


@adapter("MaxPool", below=10)
def max_pool(
    op: OpBuilder,
    x: ir.Value,
    *,
    older: OpBuilder,
    dilations: Ints | None = None,
    ceil_mode: int = 0,
    _outputs: int = 1,
    **attributes: object,
) -> ir.Value | tuple[ir.Value, ...]:
    if _plain(dilations) and not ceil_mode:
        return older.emit_many("MaxPool", _outputs, x, **attributes)
    if _outputs > 1:
        raise UnsupportedOpsetError("MaxPool", op.opset, lowest=10, reason="indices with dilations or ceil_mode")
    windows = _Windows(op, "MaxPool", 10, x, _given(**attributes, dilations=dilations, ceil_mode=ceil_mode))
    return op.Max(*windows.elements(windows.padded(x, -math.inf)))


@adapter("LpPool", below=18)
def lp_pool(
    op: OpBuilder,
    x: ir.Value,
    *,
    older: OpBuilder,
    p: int = 2,
    dilations: Ints | None = None,
    ceil_mode: int = 0,
    **attributes: object,
) -> ir.Value:
    if _plain(dilations) and not ceil_mode:
        return older.LpPool(x, p=p, **attributes)
    windows = _Windows(op, "LpPool", 18, x, _given(**attributes, dilations=dilations, ceil_mode=ceil_mode))
    power = op.constant(p, op.dtype(x))
    return op.Pow(windows.total(op.Pow(op.Abs(x), power)), op.Reciprocal(power))


# ---- Col2Im


@adapter("Col2Im", below=18)
def col2im(
    op: OpBuilder,
    input: ir.Value,
    image_shape: ir.Value,
    block_shape: ir.Value,
    *,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> ir.Value:
    block = static_ints(op, block_shape, "Col2Im", "a block shape", 18) or []
    rank = len(block)
    dilations, strides, pads = dilations or [1] * rank, strides or [1] * rank, pads or [0] * (2 * rank)
    image = [op.as_size(op.Slice(image_shape, [i], [i + 1], [0])) for i in range(rank)]
    whole = [op.size_add(size, pads[i] + pads[i + rank]) for i, size in enumerate(image)]
    counts = [
        op.size_add(op.size_floordiv(op.size_sub(size, (b - 1) * d + 1), s), 1)
        for size, b, d, s in zip(whole, block, dilations, strides, strict=True)
    ]
    batch, columns = op.size(input, 0), op.size(input, 1)
    channels = op.size_floordiv(columns, math.prod(block))
    blocks = op.reshape(input, [batch, channels, math.prod(block), *counts])
    total: ir.Value | None = None
    for number, place in enumerate(itertools.product(*map(range, block))):
        part = op.Squeeze(op.Slice(blocks, [number], [number + 1], [2]), [2])
        part = _spread(op, part, [batch, channels, *counts], strides)
        before: list[Size] = [o * d for o, d in zip(place, dilations, strict=True)]
        after = [
            op.size_sub(op.size_sub(size, start), op.size_mul(count, stride))
            for size, start, count, stride in zip(whole, before, counts, strides, strict=True)
        ]
        part = op.Pad(part, op.vector([*before, *after]), None, list(range(2, 2 + rank)))
        total = part if total is None else op.Add(total, part)
    assert total is not None
    ends = [op.size_sub(size, pads[i + rank]) for i, size in enumerate(whole)]
    return op.Slice(total, list(pads[:rank]), op.vector(ends), list(range(2, 2 + rank)))


def _spread(op: OpBuilder, x: ir.Value, sizes: list[Size], strides: Ints) -> ir.Value:
    """Put ``stride - 1`` zeros behind every element along each spatial axis."""
    if all(stride == 1 for stride in strides):
        return x
    rank = len(strides)
    # A new axis behind each spatial one takes the zeros, then both become one.
    wide = op.Unsqueeze(x, [3 + 2 * i for i in range(rank)])
    filled = op.Pad(wide, [*[0] * rank, *(s - 1 for s in strides)], None, [3 + 2 * i for i in range(rank)])
    spatial = [op.size_mul(size, stride) for size, stride in zip(sizes[2:], strides, strict=True)]
    return op.reshape(filled, [*sizes[:2], *spatial])
