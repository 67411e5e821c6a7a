"""Matrix products with weights of four bits that torch has packed for its CPU kernels."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.errors import LoweringError
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

aten = torch.ops.aten

_INT32 = ir.DataType.INT32


@functools.cache
def _row_order() -> tuple[int, ...]:
    """Return which row each half byte of a full block holds, low half first.

    The layout follows the vector width of the machine, so that it is found by packing a matrix of row numbers. torch
    packs full blocks of so many rows, 64 at most, column by column; what is left over in pairs of neighbours.
    """
    for rows in (64, 32, 16):
        numbers = torch.arange(2 * rows, dtype=torch.int32, device="cpu").unsqueeze(1).expand(2 * rows, 2).contiguous()
        halves = [aten._convert_weight_to_int4pack_for_cpu(part, 1).flatten() for part in (numbers % 16, numbers // 16)]
        first, second = (half[: rows // 2].to(torch.int64) for half in halves)
        low, high = first % 16 + 16 * (second % 16), first // 16 + 16 * (second // 16)
        order = torch.stack([low, high], 1).flatten().tolist()
        if sorted(order) == list(range(rows)):
            return tuple(order)
    raise LoweringError("On this machine, torch packs weights of four bits in an unknown layout.")


def _unpacked(op: OpBuilder, packed: ir.Value, order: tuple[int, ...], columns: int) -> ir.Value:
    """Return bytes (B,) that hold blocks of ``len(order)`` rows as INT32 (rows, columns)."""
    size = len(order)
    number = op.Reshape(op.cast(packed, _INT32), [-1, columns, size // 2, 1])
    sixteen = op.constant(16, _INT32)
    halves = op.Reshape(op.Concat(op.Mod(number, sixteen), op.Div(number, sixteen), axis=3), [-1, columns, size])
    places = op.constant([order.index(row) for row in range(size)])
    rows = op.Transpose(op.Gather(halves, places, axis=2), perm=[0, 2, 1])
    return op.Reshape(rows, [-1, columns])


def _weight(op: OpBuilder, packed: ir.Value) -> ir.Value:
    """Return the numbers 0 to 15 of a packed weight (N, K / 2) as INT32 (N, K)."""
    rows, half = op.sizes(packed)
    if not isinstance(rows, int) or not isinstance(half, int):
        raise LoweringError("The size of a packed weight has to be static.")
    order = _row_order()
    whole = rows // len(order) * len(order)
    flat = op.Reshape(packed, [-1])
    parts = [
        _unpacked(op, op.Slice(flat, [start * half], [end * half]), layout, 2 * half)
        for start, end, layout in ((0, whole, order), (whole, rows, tuple(range(rows - whole))))
        if end > start
    ]
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=0)


@lowering(aten._weight_int4pack_mm_for_cpu.default)
def weight_int4pack_mm_for_cpu(
    op: OpBuilder, self: ir.Value, mat2: ir.Value, qGroupSize: int, qScaleAndZeros: ir.Value
) -> ir.Value:
    """Multiply by ``(number - 8) * scale + zero``, with a scale and a zero for each group of columns of each row."""
    dtype = op.dtype(self)
    number = op.Sub(_weight(op, mat2), op.constant(8, _INT32))
    rows, columns = op.sizes(number)
    parameters = op.cast(op.Transpose(qScaleAndZeros, perm=[1, 0, 2]), ir.DataType.FLOAT)
    scale, zero = (op.Slice(parameters, [index], [index + 1], [2]) for index in (0, 1))
    groups = op.reshape(op.cast(number, ir.DataType.FLOAT), [rows, -1, qGroupSize])
    weight = op.reshape(op.Add(op.Mul(groups, scale), zero), [rows, columns])
    product = op.MatMul(op.cast(self, ir.DataType.FLOAT), op.Transpose(weight, perm=[1, 0]))
    return op.cast(product, dtype)


@lowering(aten._weight_int4pack_mm.default)
def weight_int4pack_mm(op: OpBuilder, *args: object) -> ir.Value:
    raise LoweringError(
        "The weight is packed for the tensor cores of one GPU architecture, a layout that torch does not define. "
        "Quantize and export the model on the CPU, where the layout can be read."
    )
