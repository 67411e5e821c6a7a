"""Recurrent networks over padded and packed sequences."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import torch

from onnxops_decomp.errors import LoweringError
from onnxops_decomp.formulas.operands import arange
from onnxops_decomp.lowerings.nn.recurrent_cells import gru_step, lstm_step, relu_step, tanh_step
from onnxops_decomp.lowerings.nn.stepped_layer import CellStep, stepped_layer
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class _Cell:
    """A kind of recurrent network in ONNX.

    Attributes:
        op_type: ONNX operator.
        gates: For each gate in ONNX's order, its place in torch's.
        attributes: Attributes of the operator.
        step: One step, where the operator does not serve.
    """

    op_type: str
    gates: tuple[int, ...]
    attributes: dict[str, int | str]
    step: CellStep


_LSTM = _Cell("LSTM", (0, 3, 1, 2), {}, lstm_step)
_GRU = _Cell("GRU", (1, 0, 2), {"linear_before_reset": 1}, gru_step)
_RNN = {"tanh": _Cell("RNN", (0,), {}, tanh_step), "relu": _Cell("RNN", (0,), {"activations": "Relu"}, relu_step)}


@dataclasses.dataclass(frozen=True)
class _Network:
    """Arguments of a recurrent operator that hold for all its layers.

    Attributes:
        cell: Kind of network.
        params: Weights and biases, layer by layer and direction by direction.
        has_biases: Whether there are biases among them.
        num_layers: Number of layers.
        dropout: Probability of dropping a value between layers.
        train: Whether dropout is active.
        bidirectional: Whether each layer also reads its input backwards.
        lengths: Lengths of the sequences of a batch, INT32, where they differ.
    """

    cell: _Cell
    params: Sequence[ir.Value]
    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool
    lengths: ir.Value | None = None

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def of_layer(self, layer: int) -> list[Sequence[ir.Value]]:
        """Return the parameters of each direction of a layer."""
        count = len(self.params) // (self.num_layers * self.directions)
        first = layer * self.directions
        return [self.params[(first + d) * count : (first + d + 1) * count] for d in range(self.directions)]


def _hidden_size(op: OpBuilder, weight: ir.Value, gates: int) -> int:
    rows = op.size(weight, 0)
    if not isinstance(rows, int):
        raise LoweringError("A recurrent network needs a static hidden size; make the weights' dimensions static.")
    return rows // gates


def _joined(op: OpBuilder, tensors: Sequence[ir.Value]) -> ir.Value:
    return tensors[0] if len(tensors) == 1 else op.Concat(*tensors, axis=0)


def _rows(cell: _Cell, hidden: int, directions: int, copies: int) -> np.ndarray[Any, Any]:
    """Return which rows of the joined parameters make up those of ONNX: (directions, copies * gates * hidden)."""
    block = np.concatenate([np.arange(gate * hidden, (gate + 1) * hidden) for gate in cell.gates])
    size = len(cell.gates) * hidden
    return np.stack(
        [np.concatenate([block + (d * copies + copy) * size for copy in range(copies)]) for d in range(directions)]
    )


def _parameter(op: OpBuilder, cell: _Cell, tensors: Sequence[ir.Value], hidden: int, directions: int) -> ir.Value:
    """Join parameters of all directions and bring their gates into ONNX's order."""
    copies = len(tensors) // directions
    return op.Gather(_joined(op, tensors), op.constant(_rows(cell, hidden, directions, copies)), axis=0)


def _layer(
    op: OpBuilder, network: _Network, layer: int, x: ir.Value, states: Sequence[ir.Value], *, reverse: bool = False
) -> tuple[ir.Value, list[ir.Value]]:
    """Run one layer over ``x`` (T, B, I) from its initial states; return the output and the final states.

    ``reverse`` lets a layer of one direction read its input backwards.
    """
    cell, directions = network.cell, network.directions
    params = network.of_layer(layer)
    # ONNX has no projections.
    if len(params[0]) in (3, 5) or (op.dtype(x) == ir.DataType.DOUBLE and not op.takes_doubles(cell.op_type)):
        return _stepped(op, network, params, x, states, reverse)
    hidden = _hidden_size(op, params[0][1], len(cell.gates))
    weights = [
        _parameter(op, cell, [direction[position] for direction in params], hidden, directions) for position in (0, 1)
    ]
    bias = None
    if network.has_biases:
        bias = _parameter(op, cell, [b for direction in params for b in direction[2:4]], hidden, directions)
    attributes = dict(cell.attributes)
    if "activations" in attributes:
        attributes["activations"] = [attributes["activations"]] * directions  # type: ignore[assignment]
    y, *finals = op.emit_many(
        cell.op_type,
        1 + len(states),
        x,
        *weights,
        bias,
        network.lengths,
        *states,
        hidden_size=hidden,
        direction="bidirectional" if network.bidirectional else "reverse" if reverse else "forward",
        **attributes,
    )
    if directions == 1:
        return op.Squeeze(y, [1]), finals
    return op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, -1]), finals


def _stepped(
    op: OpBuilder,
    network: _Network,
    params: Sequence[Sequence[ir.Value]],
    x: ir.Value,
    states: Sequence[ir.Value],
    backwards: bool,
) -> tuple[ir.Value, list[ir.Value]]:
    results = []
    for direction, weights in enumerate(params):
        initial = [op.Gather(state, op.constant(direction), axis=0) for state in states]
        step, reverse = network.cell.step, backwards or direction == 1
        results.append(stepped_layer(op, x, initial, weights, step, reverse=reverse, lengths=network.lengths))
    outputs = [output for output, _ in results]
    finals = [_joined(op, [op.Unsqueeze(last[kind], [0]) for _, last in results]) for kind in range(len(states))]
    return outputs[0] if len(outputs) == 1 else op.Concat(*outputs, axis=2), finals


def _initial(op: OpBuilder, states: ir.Value, layer: int, network: _Network) -> ir.Value:
    if network.num_layers == 1:
        return states
    first = layer * network.directions
    return op.Slice(states, [first], [first + network.directions], [0])


def _run(op: OpBuilder, network: _Network, x: ir.Value, hx: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
    """Run all layers over ``x`` (T, B, I); return the output and each final state, joined over the layers."""
    finals: list[list[ir.Value]] = []
    for layer in range(network.num_layers):
        if layer > 0 and network.train and network.dropout > 0:
            x = op.Dropout(x, network.dropout, True)
        x, last = _layer(op, network, layer, x, [_initial(op, states, layer, network) for states in hx])
        finals.append(last)
    return x, *(_joined(op, [layer[kind] for layer in finals]) for kind in range(len(hx)))


def _padded(
    op: OpBuilder, network: _Network, input: ir.Value, hx: Sequence[ir.Value], batch_first: bool
) -> tuple[ir.Value, ...]:
    x = op.Transpose(input, perm=[1, 0, 2]) if batch_first else input
    output, *finals = _run(op, network, x, hx)
    return op.Transpose(output, perm=[1, 0, 2]) if batch_first else output, *finals


@lowering(aten.mkldnn_rnn_layer.default)
def mkldnn_rnn_layer(
    op: OpBuilder,
    input: ir.Value,
    weight0: ir.Value,
    weight1: ir.Value,
    weight2: ir.Value,
    weight3: ir.Value,
    hx_: ir.Value,
    cx_: ir.Value,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> tuple[ir.Value | None, ...]:
    """One direction of one layer, which is what torch makes of an LSTM; the other arguments are of the whole of it."""
    if mode != _MKLDNN_LSTM or batch_sizes:
        raise LoweringError("Only an LSTM over padded sequences has a conversion.")
    params = [weight0, weight1, *([weight2, weight3] if has_biases else [])]
    network = _Network(_LSTM, params, has_biases, 1, 0.0, False, False)
    is_flat = op.rank(hx_) == 2
    states = [op.Unsqueeze(state, [0]) if is_flat else state for state in (hx_, cx_)]
    output, finals = _layer(op, network, 0, input, states, reverse=reverse)
    return output, *(op.Squeeze(final, [0]) if is_flat else final for final in finals), None


_MKLDNN_LSTM = 2


def _lowerings(cell: _Cell) -> tuple[Any, Any]:
    """Return the lowerings of a network over padded and over packed sequences; that of LSTM has two states."""

    def padded(
        op: OpBuilder,
        input: ir.Value,
        hx: ir.Value | Sequence[ir.Value],
        params: Sequence[ir.Value],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[ir.Value, ...]:
        network = _Network(cell, params, has_biases, num_layers, dropout, train, bidirectional)
        return _padded(op, network, input, _states(hx), batch_first)

    def packed(
        op: OpBuilder,
        data: ir.Value,
        batch_sizes: ir.Value,
        hx: ir.Value | Sequence[ir.Value],
        params: Sequence[ir.Value],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> tuple[ir.Value, ...]:
        network = _Network(cell, params, has_biases, num_layers, dropout, train, bidirectional)
        return _packed(op, network, data, batch_sizes, _states(hx))

    return padded, packed


def _states(hx: ir.Value | Sequence[ir.Value]) -> Sequence[ir.Value]:
    return [hx] if isinstance(hx, ir.Value) else hx


for _name, _cell in {"lstm": _LSTM, "gru": _GRU, "rnn_tanh": _RNN["tanh"], "rnn_relu": _RNN["relu"]}.items():
    _of_padded, _of_packed = _lowerings(_cell)
    lowering(f"aten::{_name}.input")(_of_padded)
    lowering(f"aten::{_name}.data")(_of_packed)


def _packed(
    op: OpBuilder, network: _Network, data: ir.Value, batch_sizes: ir.Value, hx: Sequence[ir.Value]
) -> tuple[ir.Value, ...]:
    """Run over packed sequences: pad them, run with their lengths, and pick the valid steps.

    ``data`` holds the steps of all sequences, time by time; at time t the first ``batch_sizes[t]`` sequences go on.
    """
    steps, batch = op.size(batch_sizes, 0), op.size(hx[0], 1)
    ordinal = arange(op, batch)
    alive = op.Less(ordinal, op.Unsqueeze(batch_sizes, [1]))  # (T, B)
    lengths = op.ReduceSum(op.cast(alive, ir.DataType.INT32), [0], keepdims=0)
    before = op.CumSum(batch_sizes, op.constant(0), exclusive=1)
    place = op.Add(op.Unsqueeze(before, [1]), ordinal)
    x = op.Gather(data, op.Where(alive, place, op.constant(0)), axis=0)
    output, *finals = _run(op, dataclasses.replace(network, lengths=lengths), x, hx)
    flat = op.reshape(output, [op.size_mul(steps, batch), op.size(output, 2)])
    valid = op.Compress(arange(op, op.size_mul(steps, batch)), op.Reshape(alive, [-1]))
    return op.Gather(flat, valid, axis=0), *finals
