"""Axes that became inputs: Squeeze, Unsqueeze, the reductions; and arg-reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.builder.forms import Adapter, adapter
from onnxops_decomp.formulas.operands import static_ints
from onnxops_decomp.spec.traits import Trait, operators_with

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder


@adapter("Squeeze", below=13)
def squeeze(op: OpBuilder, data: ir.Value, axes: ir.Value | None = None, *, older: OpBuilder) -> ir.Value:
    return older.Squeeze(data, axes=static_ints(op, axes, "Squeeze", "axes", 13))


@adapter("Unsqueeze", below=13)
def unsqueeze(op: OpBuilder, data: ir.Value, axes: ir.Value, *, older: OpBuilder) -> ir.Value:
    return older.Unsqueeze(data, axes=static_ints(op, axes, "Unsqueeze", "axes", 13))


def _unreduced(op: OpBuilder, op_type: str, data: ir.Value) -> ir.Value:
    """Return the reduction over no axes at all: only the element-wise part of the operator is left."""
    if op_type in ("ReduceL1", "ReduceL2"):
        return op.Abs(data)
    if op_type == "ReduceSumSquare":
        return op.Mul(data, data)
    return op.Log(data) if op_type == "ReduceLogSum" else data


def _with_axes_attribute(op_type: str, below: int) -> Adapter:
    def reduce(
        op: OpBuilder,
        data: ir.Value,
        axes: ir.Value | None = None,
        *,
        older: OpBuilder,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> ir.Value:
        static = static_ints(op, axes, op_type, "axes", below)
        if not static and noop_with_empty_axes:
            return _unreduced(op, op_type, data)
        return older.emit(op_type, data, axes=static or None, keepdims=keepdims)

    return reduce


for _name in operators_with(Trait.REDUCES):
    _since = 13 if _name == "ReduceSum" else 18
    adapter(_name, below=_since)(_with_axes_attribute(_name, _since))


@adapter("ReduceMax", below=12)
def reduce_max(op: OpBuilder, data: ir.Value, *, older: OpBuilder, **attributes: object) -> ir.Value:
    if op.dtype(data) != ir.DataType.BOOL:
        return older.ReduceMax(data, **attributes)
    # Over an empty set the maximum is the lowest integer, which a cast would call true.
    return op.Greater(older.ReduceMax(op.cast(data, ir.DataType.INT32), **attributes), 0)


def _last_index(op_type: str) -> Adapter:
    def arg_reduce(
        op: OpBuilder, data: ir.Value, *, older: OpBuilder, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
    ) -> ir.Value:
        if not select_last_index:
            return older.emit(op_type, data, axis=axis, keepdims=keepdims)
        int_min = -(2**63)
        flipped = op.Slice(data, [-1], [int_min], [axis], [-1])
        index = older.emit(op_type, flipped, axis=axis, keepdims=keepdims)
        size = op.size(data, axis if data.shape is None else axis % len(data.shape))
        last = op.size_sub(size, 1)
        return op.Sub(last, index)

    return arg_reduce


for _name in ("ArgMax", "ArgMin"):
    adapter(_name, below=12)(_last_index(_name))
