"""Recurrent operators whose shapes torch only finds by unrolling them, which would fix their dynamic sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from onnx_ts_legacy.conversion import Interpreter

__all__ = ["CELLS", "SHAPES", "gru_step", "lstm_step"]

aten = torch.ops.aten


# ---- shapes of whole networks


def _padded(
    input: Any, hx: Any, params: Any, biases: bool, layers: int, dropout: float, train: bool, both: bool, *_: Any
) -> Any:
    """The output follows the input, the states keep their shapes; with a projection the first state has its width."""
    states = tuple(hx) if isinstance(hx, list | tuple) else (hx,)
    width = states[0].shape[-1] * (2 if both else 1)
    return (torch.empty((*input.shape[:-1], width), dtype=input.dtype), *(torch.empty_like(s) for s in states))


def _packed(
    data: Any, sizes: Any, hx: Any, params: Any, biases: bool, layers: int, dropout: float, train: bool, both: bool
) -> Any:
    return _padded(data, hx, params, biases, layers, dropout, train, both)


SHAPES: dict[Any, Callable[..., Any]] = {}
for _name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    SHAPES[getattr(aten, _name).input] = _padded
    SHAPES[getattr(aten, _name).data] = _packed


# ---- cells, by other operators


def _gates(interpreter: Interpreter, args: Sequence[Any]) -> tuple[Any, Any]:
    """Return the two linear maps of a cell, of its input and its state."""
    input, state, w_ih, w_hh, *biases = args
    b_ih, b_hh = [*biases, None, None][:2]
    linear = aten.linear.default
    return interpreter.call(linear, [input, w_ih, b_ih], {}), interpreter.call(linear, [state, w_hh, b_hh], {})


def _lstm_cell(interpreter: Interpreter, args: Sequence[Any]) -> Any:
    """Formulas of ``torch.nn.LSTMCell``; the gates stand in the order input, forget, cell, output."""
    h, c = args[1] if isinstance(args[1], list | tuple) else args[1].items
    return lstm_step(interpreter, *_gates(interpreter, [args[0], h, *args[2:]]), c)


def lstm_step(interpreter: Interpreter, ours: Any, theirs: Any, c: Any) -> tuple[Any, Any]:
    """Return the new states, given the linear maps of the input and the state, and the old cell state."""
    call = interpreter.call
    gates = call(aten.chunk.default, [call(aten.add.Tensor, [ours, theirs], {}), 4, 1], {}).items
    i, f, o = (call(aten.sigmoid.default, [gates[index]], {}) for index in (0, 1, 3))
    g = call(aten.tanh.default, [gates[2]], {})
    kept, new = call(aten.mul.Tensor, [f, c], {}), call(aten.mul.Tensor, [i, g], {})
    cell = call(aten.add.Tensor, [kept, new], {})
    return call(aten.mul.Tensor, [o, call(aten.tanh.default, [cell], {})], {}), cell


def _gru_cell(interpreter: Interpreter, args: Sequence[Any]) -> Any:
    """Formulas of ``torch.nn.GRUCell``; the gates stand in the order reset, update, new."""
    return gru_step(interpreter, *_gates(interpreter, args), args[1])


def gru_step(interpreter: Interpreter, ours: Any, theirs: Any, state: Any) -> Any:
    """Return the new state, given the linear maps of the input and the state, and the old state."""
    call = interpreter.call
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
    def cell(interpreter: Interpreter, args: Sequence[Any]) -> Any:
        ours, theirs = _gates(interpreter, args)
        return interpreter.call(function, [interpreter.call(aten.add.Tensor, [ours, theirs], {})], {})

    return cell


CELLS: dict[Any, Callable[[Interpreter, Sequence[Any]], Any]] = {
    aten.lstm_cell.default: _lstm_cell,
    aten.gru_cell.default: _gru_cell,
    aten.rnn_tanh_cell.default: _plain_cell(aten.tanh.default),
    aten.rnn_relu_cell.default: _plain_cell(aten.relu.default),
}
