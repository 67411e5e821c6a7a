"""Sorting, selection by rank, search in sorted sequences, histograms and distinct elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder import OpBuilder
    from onnxops_decomp.sizes import Size

aten = torch.ops.aten

BOOL, INT64, UINT8 = ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.UINT8


def sorted_along(op: OpBuilder, value: ir.Value, dim: int, descending: bool) -> tuple[ir.Value, ir.Value]:
    """Sort along a dimension and return values and indices; equal elements keep their order.

    TopK with all elements is a stable sort: of equal elements the lower index comes first.
    """
    return top(op, value, None, dim, descending)


def top(
    op: OpBuilder, value: ir.Value, count: Size | None, dim: int, largest: bool, sorted: bool = True
) -> tuple[ir.Value, ir.Value]:
    """Return the ``count`` largest or smallest elements along a dimension (all for None) and their indices."""
    if op.rank(value) == 0:
        return op.Identity(value), op.constant(0)
    keys = op.cast(value, UINT8) if value.dtype == BOOL else value
    wanted = op.vector([op.size(value, dim) if count is None else count])
    values, indices = op.emit_many("TopK", 2, keys, wanted, axis=dim, largest=int(largest), sorted=int(sorted))
    return op.cast(values, op.dtype(value)), indices


@lowering(aten.topk.default)
def topk(
    op: OpBuilder, self: ir.Value, k: Size, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[ir.Value, ir.Value]:
    return top(op, self, k, dim, largest, sorted)


@lowering(aten.sort.default)
def sort(op: OpBuilder, self: ir.Value, dim: int = -1, descending: bool = False) -> tuple[ir.Value, ir.Value]:
    return sorted_along(op, self, dim, descending)


@lowering(aten.sort.stable)
def sort_stable(
    op: OpBuilder, self: ir.Value, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[ir.Value, ir.Value]:
    return sorted_along(op, self, dim, descending)


@lowering(aten.argsort.default)
def argsort(op: OpBuilder, self: ir.Value, dim: int = -1, descending: bool = False) -> ir.Value:
    return sorted_along(op, self, dim, descending)[1]


@lowering(aten.argsort.stable)
def argsort_stable(op: OpBuilder, self: ir.Value, stable: bool, dim: int = -1, descending: bool = False) -> ir.Value:
    return sorted_along(op, self, dim, descending)[1]
