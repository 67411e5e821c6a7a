"""Pad: its axes, its wrap mode, and the time when everything was an attribute of a float operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxops_decomp.builder.forms import adapter
from onnxops_decomp.errors import UnsupportedOpsetError
from onnxops_decomp.formulas.operands import arange, rank_of, static_ints

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size


@adapter("Pad", below=19)
def pad_without_wrap(
    op: OpBuilder,
    data: ir.Value,
    pads: ir.Value,
    constant_value: ir.Value | None = None,
    axes: ir.Value | None = None,
    *,
    older: OpBuilder,
    mode: str = "constant",
) -> ir.Value:
    if mode != "wrap":
        return older.Pad(data, pads, constant_value, axes, mode=mode)
    over = static_ints(op, axes, "Pad", "axes", 19)
    if over is None:
        over = list(range(rank_of(op, data, "Pad", 19)))
    amounts = _amounts(op, pads, len(over))
    for position, axis in enumerate(over):
        data = _by_index(op, data, axis, amounts[position], amounts[position + len(over)], "wrap")
    return data


@adapter("Pad", below=18)
def pad_of_all_axes(
    op: OpBuilder,
    data: ir.Value,
    pads: ir.Value,
    constant_value: ir.Value | None = None,
    axes: ir.Value | None = None,
    *,
    older: OpBuilder,
    mode: str = "constant",
) -> ir.Value:
    over = static_ints(op, axes, "Pad", "axes", 18)
    if over is not None:
        rank = rank_of(op, data, "Pad", 18)
        place = {axis % rank: position for position, axis in enumerate(over)}
        amounts = _amounts(op, pads, len(over))
        pads = op.vector(
            [amounts[place[axis] + side] if axis in place else 0 for side in (0, len(over)) for axis in range(rank)]
        )
    return older.Pad(data, pads, constant_value, mode=mode)


@adapter("Pad", below=11)
def pad_with_attributes(
    op: OpBuilder,
    data: ir.Value,
    pads: ir.Value,
    constant_value: ir.Value | None = None,
    *,
    older: OpBuilder,
    mode: str = "constant",
) -> ir.Value:
    amounts = static_ints(op, pads, "Pad", "pads", 11) or []
    dtype = op.dtype(data)
    fill = np.zeros((), dtype.numpy()) if constant_value is None else op.static(constant_value)
    if dtype.is_floating_point() and fill is not None and _is_float32(fill):
        return older.Pad(data, pads=amounts, value=float(fill.item()), mode=mode)
    return _pad_axis_by_axis(op, data, amounts, constant_value, mode)


def _is_float32(number: np.ndarray) -> bool:
    """Tell whether an attribute, which is a 32-bit float, holds the number."""
    wide = np.float64(number.item())
    return bool(np.isnan(wide) or np.float64(np.float32(wide)) == wide)


def _pad_axis_by_axis(
    op: OpBuilder, data: ir.Value, pads: list[int], constant_value: ir.Value | None, mode: str
) -> ir.Value:
    """Pad what the old operator does not take, by concatenating constants or gathering along each axis."""
    rank = len(pads) // 2
    fill = op.constant(0, op.dtype(data)) if constant_value is None else constant_value
    for axis in range(rank):
        before, after = pads[axis], pads[axis + rank]
        if not before and not after:
            continue
        if mode != "constant":
            data = _by_index(op, data, axis, before, after, mode)
            continue
        if before < 0 or after < 0:
            data = op.Slice(data, [max(-before, 0)], [min(after, 0) or 2**63 - 1], [axis])
        blocks = []
        for amount in (before, after):
            shape = op.sizes(data)
            shape[axis] = max(amount, 0)
            blocks.append(op.expand(fill, shape) if amount > 0 else None)
        data = op.Concat(*(b for b in (blocks[0], data, blocks[1]) if b is not None), axis=axis)
    return data


def _amounts(op: OpBuilder, pads: ir.Value, axes: int) -> list[Size]:
    """Return the elements of ``pads``: ints where they are static."""
    static = op.static(pads)
    if static is not None:
        return [int(amount) for amount in static]
    return [op.as_size(op.Slice(pads, [i], [i + 1], [0])) for i in range(2 * axes)]


def _by_index(op: OpBuilder, data: ir.Value, axis: int, before: Size, after: Size, mode: str) -> ir.Value:
    """Pad one axis by gathering the elements that the mode repeats."""
    if before == 0 and after == 0:
        return data
    # Negative amounts are taken away first; what is left is continued.
    first = op.size_max(op.size_sub(0, before), 0)
    last = op.size_max(op.size_sub(0, after), 0)
    size = op.size_sub(op.size_sub(op.size(data, axis), first), last)
    added, more = op.size_max(before, 0), op.size_max(after, 0)
    positions = op.Sub(arange(op, op.size_add(op.size_add(size, added), more)), added)
    if mode == "wrap":
        index = op.Mod(positions, size)
    elif mode == "edge":
        index = op.Min(op.Max(positions, 0), op.size_sub(size, 1))
    elif mode == "reflect":
        # A triangle wave of period 2 * (size - 1): |((p + size - 1) mod period) - (size - 1)| walks back from the end.
        last = op.size_sub(size, 1)
        period = op.size_max(op.size_mul(last, 2), 1)
        index = op.Sub(last, op.Abs(op.Sub(op.Mod(positions, period), last)))
    else:
        raise UnsupportedOpsetError("Pad", op.opset, lowest=19, reason=f"mode {mode!r}")
    return op.Gather(data, op.Add(index, first), axis=axis)
