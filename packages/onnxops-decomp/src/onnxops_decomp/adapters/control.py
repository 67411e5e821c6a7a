"""Loops and branches: what their older forms ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.builder.forms import adapter
from onnxops_decomp.errors import UnsupportedOpsetError

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder


def _require_tensor(op: OpBuilder, op_type: str, value: ir.Value | None) -> None:
    if value is not None and value.type is not None and not isinstance(value.type, ir.TensorType):
        raise UnsupportedOpsetError(op_type, op.opset, lowest=13, reason="a sequence that passes through it")


@adapter("If", below=13)
def if_of_tensors(
    op: OpBuilder,
    condition: ir.Value,
    *,
    older: OpBuilder,
    then_branch: ir.Graph,
    else_branch: ir.Graph,
    _outputs: int = 1,
) -> tuple[ir.Value, ...]:
    for value in (*then_branch.outputs, *else_branch.outputs):
        _require_tensor(op, "If", value)
    return older.emit_many("If", _outputs, condition, then_branch=then_branch, else_branch=else_branch)


@adapter("Loop", below=13)
def loop_with_carried_value(
    op: OpBuilder,
    trip_count: ir.Value | None,
    condition: ir.Value | None = None,
    *carried: ir.Value | None,
    older: OpBuilder,
    body: ir.Graph,
    _outputs: int = 1,
) -> tuple[ir.Value, ...]:
    for value in (*carried, *body.outputs):
        _require_tensor(op, "Loop", value)
    if carried:
        return older.emit_many("Loop", _outputs, trip_count, condition, *carried, body=body)
    # The older operator carries at least one value. The condition, which the body hands on, serves as one.
    true = op.constant(True)
    names = op.context.names
    before = ir.Value(name=names.new("val"), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape(()))
    keep = ir.Node("", "Identity", [before], name=names.new("Identity"))
    keep.outputs[0].name = names.new("val")
    keep.outputs[0].type, keep.outputs[0].shape = before.type, before.shape
    body.append(keep)
    body.inputs.append(before)
    body.outputs.insert(1, keep.outputs[0])
    return older.emit_many("Loop", _outputs + 1, trip_count, condition, true, body=body)[1:]
