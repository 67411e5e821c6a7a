"""Diagonals and triangles of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import to_ir
from onnxops_decomp.lowerings.layout.shapes import axis_in
from onnxops_decomp.lowerings.layout.slicing import take_slice
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

__all__ = ["diagonal"]

aten = torch.ops.aten

_INT64 = ir.DataType.INT64
_INTEGERS = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.BOOL)


@lowering(aten.tril.default)
def tril(op: OpBuilder, self: ir.Value, diagonal: Size = 0) -> ir.Value:
    return op.Trilu(self, _offset(diagonal), upper=0)


@lowering(aten.triu.default)
def triu(op: OpBuilder, self: ir.Value, diagonal: Size = 0) -> ir.Value:
    return op.Trilu(self, _offset(diagonal), upper=1)


def _offset(diagonal: Size) -> Size | None:
    return None if isinstance(diagonal, int) and diagonal == 0 else diagonal


def _indices(op: OpBuilder, row: Size, col: Size, offset: int, dtype: object, upper: int) -> ir.Value:
    # The default of the schema arrives as the number of torch's ScalarType.
    wanted = to_ir(dtype) if isinstance(dtype, torch.dtype) else _INT64
    if isinstance(row, int) and isinstance(col, int):
        function = np.triu_indices if upper else np.tril_indices
        return op.constant(np.stack(function(row, offset, col)), wanted)
    ones = op.expand(op.constant(1.0), [row, col])
    return op.cast(op.NonZero(op.Trilu(ones, _offset(offset), upper=upper)), wanted)


@lowering(aten.tril_indices.default)
def tril_indices(
    op: OpBuilder, row: Size, col: Size, offset: int = 0, *, dtype: torch.dtype | None = torch.int64
) -> ir.Value:
    return _indices(op, row, col, offset, dtype, 0)


@lowering(aten.triu_indices.default)
def triu_indices(
    op: OpBuilder, row: Size, col: Size, offset: int = 0, *, dtype: torch.dtype | None = torch.int64
) -> ir.Value:
    return _indices(op, row, col, offset, dtype, 1)


def _last_two(rank: int, dim1: int, dim2: int) -> list[int]:
    """Permutation that puts ``dim1`` and ``dim2`` last."""
    first, second = axis_in(rank, dim1), axis_in(rank, dim2)
    return [*(axis for axis in range(rank) if axis not in (first, second)), first, second]


@lowering(aten.diagonal.default, aten.diagonal_copy.default, aten.linalg_diagonal.default)
def diagonal(op: OpBuilder, self: ir.Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> ir.Value:
    """Row i of the last two axes is read at column i + offset; rows or columns before the diagonal are cut off."""
    rank = op.rank(self)
    matrix = op.Transpose(self, perm=_last_two(rank, dim1, dim2))
    matrix = take_slice(op, matrix, rank - 2, max(-offset, 0), None)
    matrix = take_slice(op, matrix, rank - 1, max(offset, 0), None)
    sizes = op.sizes(matrix)
    length = op.size_min(sizes[-2], sizes[-1])
    matrix = take_slice(op, matrix, rank - 2, 0, length)
    positions = op.Range(0, length, 1)
    if rank == 2:
        return op.GatherND(matrix, op.Concat(*[op.Unsqueeze(positions, [1])] * 2, axis=1))
    index = op.expand(op.Unsqueeze(positions, [1]), [*sizes[:-2], length, 1])
    return op.Squeeze(op.GatherElements(matrix, index, axis=rank - 1), [rank - 1])


@lowering(aten.trace.default)
def trace(op: OpBuilder, self: ir.Value) -> ir.Value:
    value = op.cast(self, _INT64) if self.dtype in _INTEGERS else self
    return op.ReduceSum(diagonal(op, value), [0], keepdims=0)


@lowering(aten.diag_embed.default)
def diag_embed(op: OpBuilder, self: ir.Value, offset: int = 0, dim1: int = -2, dim2: int = -1) -> ir.Value:
    rank = op.rank(self)
    size = op.size_add(op.size(self, -1), abs(offset))
    value = op.Pad(self, [0] * (rank - 1) + [max(offset, 0)] + [0] * (rank - 1) + [max(-offset, 0)])
    rows, columns = op.Unsqueeze(op.Range(0, size, 1), [1]), op.Unsqueeze(op.Range(0, size, 1), [0])
    mask = op.Equal(op.Add(rows, offset), columns)
    # Column j holds element j - offset, which the padding has moved there.
    square = op.Where(mask, op.Unsqueeze(value, [rank - 1]), op.constant(0, op.dtype(self)))
    inverse = np.argsort(_last_two(rank + 1, dim1, dim2))
    return op.Transpose(square, perm=[int(axis) for axis in inverse])


@lowering(aten.diag.default)
def diag(op: OpBuilder, self: ir.Value, offset: int = 0) -> ir.Value:
    return diag_embed(op, self, offset) if op.rank(self) == 1 else diagonal(op, self, offset)


@lowering(aten.diagflat.default)
def diagflat(op: OpBuilder, self: ir.Value, offset: int = 0) -> ir.Value:
    return diag_embed(op, op.Reshape(self, [-1]), offset)


@lowering(aten.diagonal_scatter.default)
def diagonal_scatter(
    op: OpBuilder, self: ir.Value, src: ir.Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> ir.Value:
    rank = op.rank(self)
    order = _last_two(rank, dim1, dim2)
    moved = op.Transpose(self, perm=order)
    rows, columns = (op.Range(0, op.size(moved, axis), 1) for axis in (-2, -1))
    mask = op.Equal(op.Add(op.Unsqueeze(rows, [1]), offset), op.Unsqueeze(columns, [0]))
    # Row r of the diagonal holds element r - max(-offset, 0); rows beyond it read padding that the mask leaves out.
    before = max(-offset, 0)
    after = op.size_sub(op.size(moved, -2), op.size_add(op.size(src, -1), before))
    lead = rank - 2
    spread = op.Pad(op.cast(src, op.dtype(self)), op.vector([*[0] * lead, before, *[0] * lead, after]))
    result = op.Where(mask, op.Unsqueeze(spread, [rank - 1]), moved)
    return op.Transpose(result, perm=[int(axis) for axis in np.argsort(order)])
