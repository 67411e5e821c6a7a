"""LSTM layers whose output is projected, which ONNX's LSTM does not know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.inference import dims_of

if TYPE_CHECKING:
    from onnxops_decomp.builder import OpBuilder

__all__ = ["projected_lstm"]


def projected_lstm(
    op: OpBuilder,
    x: ir.Value,
    hidden: ir.Value,
    cell: ir.Value,
    params: Sequence[ir.Value],
    *,
    reverse: bool,
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Run one direction of one layer in a loop over time.

    Args:
        op: Builder.
        x: (T, B, I).
        hidden: Initial hidden state (B, P).
        cell: Initial cell state (B, H).
        params: Weights (4H, I) and (4H, P), perhaps two biases (4H), and the projection (P, H).
        reverse: Whether time runs backwards.

    Returns:
        The outputs (T, B, P) and the final states.
    """
    # What depends on the input alone is computed for all steps at once.
    gates = op.MatMul(x, op.Transpose(params[0], perm=[1, 0]))
    if len(params) == 5:
        gates = op.Add(gates, op.Add(params[2], params[3]))
    recurrent, projection = (op.Transpose(weight, perm=[1, 0]) for weight in (params[1], params[-1]))
    steps = op.size(x, 0)
    body = op.subgraph()
    step = body.input("step", ir.DataType.INT64, ())
    running = body.input("running", ir.DataType.BOOL, ())
    before = body.input("hidden", hidden.dtype, dims_of(hidden))
    memory = body.input("cell", cell.dtype, dims_of(cell))
    index = body.Sub(body.size_sub(steps, 1), step) if reverse else step
    total = body.Add(body.Gather(gates, index, axis=0), body.MatMul(before, recurrent))
    entry, keep, candidate, out = body.emit_many("Split", 4, total, axis=-1, num_outputs=4)
    memory_after = body.Add(body.Mul(body.Sigmoid(keep), memory), body.Mul(body.Sigmoid(entry), body.Tanh(candidate)))
    after = body.MatMul(body.Mul(body.Sigmoid(out), body.Tanh(memory_after)), projection)
    graph = body.graph([running, after, memory_after, after], name="projected_lstm")
    count = op.constant(steps) if isinstance(steps, int) else steps
    last, last_memory, outputs = op.emit_many("Loop", 3, count, op.constant(True), hidden, cell, body=graph)
    last.shape, last_memory.shape = hidden.shape, cell.shape
    outputs.shape = ir.Shape([*(dims_of(x) or ())[:2], *(dims_of(hidden) or ())[1:]])
    if reverse:
        outputs = op.Slice(outputs, [-1], [-(2**63)], [0], [-1])
    return outputs, last, last_memory
