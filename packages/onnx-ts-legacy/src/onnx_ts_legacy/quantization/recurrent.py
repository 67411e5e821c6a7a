"""Recurrent networks and cells with dynamically quantized weights, step by step.

torch quantizes the input of a layer once, and the hidden state anew in every step, each by the range of its values.
Source: ``aten/src/ATen/native/RNN.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from onnx_ts_legacy.calls.recurrent import gru_step, lstm_step
from onnx_ts_legacy.quantization.modules import dynamic_linear, half_linear
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import number_value
from onnx_ts_legacy.state.values import ListRef, ObjectRef, Tensor
from onnx_ts_legacy.state.variables import size_of, value_of
from onnxops_decomp import UnsupportedOperatorError
from onnxops_decomp.exporting import to_ir

__all__ = ["RECURRENT", "convert_recurrent"]

aten = torch.ops.aten
# Called with the two linear maps of a step and the states; returns the new states, the output first.
Step = Callable[["ConversionContext", Tensor, Tensor, Sequence[Tensor]], list[Tensor]]
Linear = Callable[["ConversionContext", Tensor], Tensor]


def convert_recurrent(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    """Convert a call of a quantized network or cell.

    Raises:
        UnsupportedOperatorError: For packed sequences, training and weights that are not quantized dynamically.
    """
    kind = node.kind()
    return _cell(context, _CELLS[kind], args) if kind in _CELLS else _network(context, kind, args)


# ---- steps


def _lstm(context: ConversionContext, ours: Tensor, theirs: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
    return list(lstm_step(context, ours, theirs, states[1]))


def _gru(context: ConversionContext, ours: Tensor, theirs: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
    return [gru_step(context, ours, theirs, states[0])]


def _plain(function: torch._ops.OpOverload) -> Step:
    def step(context: ConversionContext, ours: Tensor, theirs: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
        return [context.call(function, [context.call(aten.add.Tensor, [ours, theirs], {})], {})]

    return step


_NETWORKS: dict[str, Step] = {"aten::quantized_lstm": _lstm, "aten::quantized_gru": _gru}
_CELLS: dict[str, Step] = {
    "quantized::quantized_lstm_cell_dynamic": _lstm,
    "quantized::quantized_gru_cell_dynamic": _gru,
    "quantized::quantized_rnn_tanh_cell_dynamic": _plain(aten.tanh.default),
    "quantized::quantized_rnn_relu_cell_dynamic": _plain(aten.relu.default),
}
RECURRENT = _NETWORKS.keys() | _CELLS.keys()


# ---- cells and networks


def _cell(context: ConversionContext, step: Step, args: Sequence[Any]) -> Any:
    input, hx, w_ih, w_hh = args[:4]
    states = hx.items if isinstance(hx, ListRef) else [hx]
    ours = dynamic_linear(context, input, w_ih, reduced=True)
    theirs = dynamic_linear(context, states[0], w_hh, reduced=True)
    results = step(context, ours, theirs, states)
    return tuple(results) if len(results) > 1 else results[0]


def _network(context: ConversionContext, kind: str, args: Sequence[Any]) -> Any:
    call = context.call
    if not isinstance(args[2], ListRef) or isinstance(args[2].items[0], Tensor):
        raise UnsupportedOperatorError("it takes a packed sequence; give it a padded one", operator=kind)
    input, hx, params, _, layers, dropout, training, both, batch_first = args[:9]
    if training and dropout:
        raise UnsupportedOperatorError("it drops values in training mode; call model.eval() first", operator=kind)
    initial = hx.items if isinstance(hx, ListRef) else [hx]
    output = call(aten.transpose.int, [input, 0, 1], {}) if batch_first else input
    directions = 2 if both else 1
    last: list[list[Tensor]] = [[] for _ in initial]
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            states = [call(aten.select.int, [state, 0, index], {}) for state in initial]
            linears = _linears(context, params.items[index], kind)
            sequence, *final = _layer(context, _NETWORKS[kind], linears, output, states, backwards=direction == 1)
            outputs.append(sequence)
            for kept, state in zip(last, final, strict=True):
                kept.append(state)
        output = call(aten.cat.default, [outputs, -1], {}) if both else outputs[0]
    output = call(aten.transpose.int, [output, 0, 1], {}) if batch_first else output
    return output, *(call(aten.stack.default, [states], {}) for states in last)


def _linears(context: ConversionContext, params: Any, kind: str) -> tuple[Linear, Linear]:
    """Return the linear maps of the input and of the state."""
    source = params.source if isinstance(params, ObjectRef) else params
    form, _, _, numbers, packed = source.__getstate__()[0]
    if form == "quantized_fp16":
        input_map, state_map = (_with_halves(weight) for weight in packed)
    elif form == "quantized_dynamic":
        input_map, state_map = (_with_integers(weight, bool(numbers[0])) for weight in packed)
    else:
        raise UnsupportedOperatorError(f"its weights are of the kind {form}", operator=kind)
    return input_map, state_map


def _with_integers(weight: Any, reduced: bool) -> Linear:
    return lambda context, x: dynamic_linear(context, x, weight, reduced=reduced)


def _with_halves(weight: Any) -> Linear:
    return lambda context, x: half_linear(context, x, weight)


def _layer(
    context: ConversionContext,
    step: Step,
    linears: tuple[Linear, Linear],
    input: Tensor,
    states: Sequence[Tensor],
    *,
    backwards: bool,
) -> list[Tensor]:
    """Run one direction of a layer; return its output and its last states."""
    mapped = linears[0](context, input)
    if backwards:
        mapped = context.call(aten.flip.default, [mapped, [0]], {})
    op = context.op
    body = op.subgraph()
    iteration = body.input("iteration", ir.DataType.INT64, ())
    again = body.input("condition", ir.DataType.BOOL, ())
    carried = [_like(context, body.input("state", to_ir(state.fake.dtype), None), state) for state in states]
    with context.heap.branch(), context.writing_to(body):
        place = context.metadata.runtime_int(iteration)
        ours = context.call(aten.select.int, [mapped, 0, place], {})
        new = step(context, ours, linears[1](context, carried[0]), carried)
        values = [value_of(context, state) for state in new]
    graph = body.graph([again, *values, values[0]], name=op.context.names.new("body"))
    count = number_value(context, size_of(context, input, 0), ir.DataType.INT64)
    inputs = [count, None, *(value_of(context, state) for state in states)]
    results = op.emit_custom("", "Loop", inputs, {"body": graph}, [values[0].dtype] * (len(states) + 1))
    final = [_like(context, value, state) for value, state in zip(results[:-1], states, strict=True)]
    form = context.metadata.empty(states[0].fake.dtype, [input.fake.shape[0], *states[0].fake.shape])
    results[-1].shape = ir.Shape(context.metadata.symbols.dims(form))
    sequence = context.fresh(results[-1], form)
    if backwards:
        sequence = context.call(aten.flip.default, [sequence, [0]], {})
    return [sequence, *final]


def _like(context: ConversionContext, value: ir.Value, tensor: Tensor) -> Tensor:
    """Return the variable for a value of the shape of ``tensor``."""
    value.shape = ir.Shape(context.metadata.symbols.dims(tensor.fake))
    return context.fresh(value, tensor.fake)
