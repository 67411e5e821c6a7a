"""Recurrent cells by other operators: the shapes that torch finds for them would fix their dynamic sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnx_ts_legacy.state.context import ConversionContext

__all__ = ["CELLS", "gru_step", "lstm_step"]

aten = torch.ops.aten


def _gates(context: ConversionContext, args: Sequence[Any]) -> tuple[Any, Any]:
    """Return the two linear maps of a cell, of its input and its state."""
    input, state, w_ih, w_hh, *biases = args
    b_ih, b_hh = [*biases, None, None][:2]
    linear = aten.linear.default
    return context.call(linear, [input, w_ih, b_ih], {}), context.call(linear, [state, w_hh, b_hh], {})


def _lstm_cell(context: ConversionContext, args: Sequence[Any]) -> Any:
    """Formulas of ``torch.nn.LSTMCell``; the gates stand in the order input, forget, cell, output."""
    h, c = args[1] if isinstance(args[1], list | tuple) else args[1].items
    return lstm_step(context, *_gates(context, [args[0], h, *args[2:]]), c)


def lstm_step(context: ConversionContext, ours: Any, theirs: Any, c: Any) -> tuple[Any, Any]:
    """Return the new states, given the linear maps of the input and the state, and the old cell state."""
    call = context.call
    gates = call(aten.chunk.default, [call(aten.add.Tensor, [ours, theirs], {}), 4, 1], {}).items
    i, f, o = (call(aten.sigmoid.default, [gates[index]], {}) for index in (0, 1, 3))
    g = call(aten.tanh.default, [gates[2]], {})
    kept, new = call(aten.mul.Tensor, [f, c], {}), call(aten.mul.Tensor, [i, g], {})
    cell = call(aten.add.Tensor, [kept, new], {})
    return call(aten.mul.Tensor, [o, call(aten.tanh.default, [cell], {})], {}), cell


def _gru_cell(context: ConversionContext, args: Sequence[Any]) -> Any:
    """Formulas of ``torch.nn.GRUCell``; the gates stand in the order reset, update, new."""
    return gru_step(context, *_gates(context, args), args[1])


def gru_step(context: ConversionContext, ours: Any, theirs: Any, state: Any) -> Any:
    """Return the new state, given the linear maps of the input and the state, and the old state."""
    call = context.call
    ours, theirs = (call(aten.chunk.default, [gates, 3, 1], {}).items for gates in (ours, theirs))
    r, z = (
        call(aten.sigmoid.default, [call(aten.add.Tensor, [ours[index], theirs[index]], {})], {}) for index in (0, 1)
    )
    inner = call(aten.add.Tensor, [ours[2], call(aten.mul.Tensor, [r, theirs[2]], {})], {})
    n = call(aten.tanh.default, [inner], {})
    # (1 - z) * n + z * h
    difference = call(aten.sub.Tensor, [state, n], {})
    return call(aten.add.Tensor, [n, call(aten.mul.Tensor, [z, difference], {})], {})


def _plain_cell(function: torch._ops.OpOverload) -> Callable[..., Any]:
    def cell(context: ConversionContext, args: Sequence[Any]) -> Any:
        ours, theirs = _gates(context, args)
        return context.call(function, [context.call(aten.add.Tensor, [ours, theirs], {})], {})

    return cell


CELLS: dict[Any, Callable[[ConversionContext, Sequence[Any]], Any]] = {
    aten.lstm_cell.default: _lstm_cell,
    aten.gru_cell.default: _gru_cell,
    aten.rnn_tanh_cell.default: _plain_cell(aten.tanh.default),
    aten.rnn_relu_cell.default: _plain_cell(aten.relu.default),
}
