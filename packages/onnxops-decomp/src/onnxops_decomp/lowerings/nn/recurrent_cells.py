"""One step of a recurrent network, written out: ONNX's recurrent operators run over sequences."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch

from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.lowerings.linalg.linear import linear
from onnxops_decomp.lowerings.registry import lowering

__all__ = ["gru_step", "lstm_step", "relu_step", "tanh_step"]

aten = torch.ops.aten


def _gates(op: OpBuilder, value: ir.Value, states: ir.Value, count: int) -> tuple[ir.Value, ...]:
    """Split a value of ``count`` times the size of the states along its last axis."""
    hidden = op.size(states, -1)
    return op.emit_many("Split", count, value, op.vector([hidden] * count), axis=-1)


def gru_step(op: OpBuilder, gates: ir.Value, hidden: ir.Value, states: Sequence[ir.Value]) -> list[ir.Value]:
    """Return the next hidden state from the gates of the input and of the hidden state, (..., 3 H) each."""
    (state,) = states
    reset, update, new = _gates(op, gates, state, 3)
    hidden_reset, hidden_update, hidden_new = _gates(op, hidden, state, 3)
    reset, update = op.Sigmoid(op.Add(reset, hidden_reset)), op.Sigmoid(op.Add(update, hidden_update))
    new = op.Tanh(op.Add(new, op.Mul(reset, hidden_new)))
    return [op.Add(op.Mul(op.Sub(state, new), update), new)]


def lstm_step(op: OpBuilder, gates: ir.Value, hidden: ir.Value, states: Sequence[ir.Value]) -> list[ir.Value]:
    """Return the next hidden and cell state from the gates of the input and of the hidden state, (..., 4 H) each."""
    cell = states[1]
    ingate, forget, new, outgate = _gates(op, op.Add(gates, hidden), cell, 4)
    cell = op.Add(op.Mul(op.Sigmoid(forget), cell), op.Mul(op.Sigmoid(ingate), op.Tanh(new)))
    return [op.Mul(op.Sigmoid(outgate), op.Tanh(cell)), cell]


def tanh_step(op: OpBuilder, gates: ir.Value, hidden: ir.Value, states: Sequence[ir.Value]) -> list[ir.Value]:
    return [op.Tanh(op.Add(gates, hidden))]


def relu_step(op: OpBuilder, gates: ir.Value, hidden: ir.Value, states: Sequence[ir.Value]) -> list[ir.Value]:
    return [op.Relu(op.Add(gates, hidden))]


@lowering(aten.gru_cell.default)
def gru_cell(
    op: OpBuilder,
    input: ir.Value,
    hx: ir.Value,
    w_ih: ir.Value,
    w_hh: ir.Value,
    b_ih: ir.Value | None = None,
    b_hh: ir.Value | None = None,
) -> ir.Value:
    return gru_step(op, linear(op, input, w_ih, b_ih), linear(op, hx, w_hh, b_hh), [hx])[0]


@lowering(aten.lstm_cell.default)
def lstm_cell(
    op: OpBuilder,
    input: ir.Value,
    hx: Sequence[ir.Value],
    w_ih: ir.Value,
    w_hh: ir.Value,
    b_ih: ir.Value | None = None,
    b_hh: ir.Value | None = None,
) -> tuple[ir.Value, ir.Value]:
    hidden, cell = lstm_step(op, linear(op, input, w_ih, b_ih), linear(op, hx[0], w_hh, b_hh), hx)
    return hidden, cell
