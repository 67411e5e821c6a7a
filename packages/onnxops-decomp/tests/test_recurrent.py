"""Recurrent networks equal eager PyTorch."""

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import pytest
import torch
from decomp_harness import check, compare, expected_of, run
from opset_sweep import swept

from onnxops_decomp import OpBuilder, builtin_table
from onnxops_decomp.calls import apply_lowering, find_lowering
from onnxops_decomp.dtypes import to_ir
from onnxops_decomp.model import build_model

KINDS = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
INPUT, HIDDEN, BATCH, STEPS = 5, 3, 4, 6


def _parameters(
    kind: str, layers: int, directions: int, *, biases: bool = True, projection: int = 0
) -> list[torch.Tensor]:
    rows, out = KINDS[kind] * HIDDEN, projection or HIDDEN
    params: list[torch.Tensor] = []
    for layer in range(layers):
        width = INPUT if layer == 0 else out * directions
        for _ in range(directions):
            params += [torch.randn(rows, width), torch.randn(rows, out)]
            params += [torch.randn(rows), torch.randn(rows)] if biases else []
            params += [torch.randn(projection, HIDDEN)] if projection else []
    return params


def _states(kind: str, layers: int, directions: int, projection: int = 0) -> list[torch.Tensor]:
    first = torch.randn(layers * directions, BATCH, projection or HIDDEN)
    return [first, torch.randn(layers * directions, BATCH, HIDDEN)] if kind == "lstm" else [first]


def _call(kind: str, overload: str, count: int, *options: Any) -> Any:
    """Return a function of input (and batch sizes), states and parameters."""
    function = getattr(getattr(torch.ops.aten, kind), overload)
    data = 2 if overload == "data" else 1

    def call(*tensors: torch.Tensor) -> Any:
        states: Any = list(tensors[data : data + count])
        return function(
            *tensors[:data], states if kind == "lstm" else states[0], list(tensors[data + count :]), *options
        )

    return call


@pytest.mark.parametrize("opset", swept(7, 14, 18, 22))
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_layers_and_directions(kind: str, layers: int, bidirectional: bool, opset: int) -> None:
    directions = 1 + bidirectional
    states = _states(kind, layers, directions)
    call = _call(kind, "input", len(states), True, layers, 0.0, False, bidirectional, False)
    check(call, torch.randn(STEPS, BATCH, INPUT), *states, *_parameters(kind, layers, directions), opset=opset)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_first_without_biases(kind: str) -> None:
    states = _states(kind, 1, 1)
    call = _call(kind, "input", len(states), False, 1, 0.0, False, False, True)
    check(call, torch.randn(BATCH, STEPS, INPUT), *states, *_parameters(kind, 1, 1, biases=False))


def test_a_layer_of_one_direction_takes_few_nodes() -> None:
    states = _states("lstm", 1, 1)
    call = _call("lstm", "input", 2, True, 1, 0.0, False, False, False)
    lowered = check(call, torch.randn(STEPS, BATCH, INPUT), *states, *_parameters("lstm", 1, 1))
    assert sorted(lowered.op_types()) == ["Concat", "Gather", "Gather", "Gather", "LSTM", "Squeeze"]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_projections(layers: int, bidirectional: bool) -> None:
    directions = 1 + bidirectional
    states = _states("lstm", layers, directions, 2)
    call = _call("lstm", "input", 2, True, layers, 0.0, False, bidirectional, False)
    check(
        call,
        torch.randn(STEPS, BATCH, INPUT),
        *states,
        *_parameters("lstm", layers, directions, projection=2),
        opset=18,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_cells(kind: str) -> None:
    cell: Any = getattr(torch, f"{kind}_cell")
    x, states = torch.randn(BATCH, INPUT), [state[0] for state in _states(kind, 1, 1)]
    check(
        lambda *t: cell(t[0], list(t[1:3]) if kind == "lstm" else t[1], *t[1 + len(states) :]),
        x,
        *states,
        *_parameters(kind, 1, 1),
    )


def _lowered_call(kind: str, tensors: Sequence[torch.Tensor], count: int, options: Sequence[Any], opset: int) -> Any:
    """Lower one call of a ``data`` overload; torch cannot record it on fake tensors, for it reads the batch sizes."""
    overload = getattr(torch.ops.aten, kind).data
    op = OpBuilder(opset)
    values = [op.input(f"x{i}", to_ir(t.dtype), tuple(t.shape)) for i, t in enumerate(tensors)]
    states: Any = values[2 : 2 + count] if kind == "lstm" else values[2]
    args = [*values[:2], states, values[2 + count :], *options]
    entry = find_lowering(builtin_table(), overload, args, {})
    assert entry is not None
    return ir.to_proto(build_model(op, list(apply_lowering(op, entry, overload, args, {})), name="packed"))


@pytest.mark.parametrize("opset", swept(11, 14, 18))
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences(kind: str, layers: int, bidirectional: bool, opset: int) -> None:
    directions = 1 + bidirectional
    states, sizes = _states(kind, layers, directions), torch.tensor([4, 4, 3, 1, 1])
    tensors = [torch.randn(13, INPUT), sizes, *states, *_parameters(kind, layers, directions)]
    options = [True, layers, 0.0, False, bidirectional]
    proto = _lowered_call(kind, tensors, len(states), options, opset)
    compare(run(proto, tensors), expected_of(_call(kind, "data", len(states), *options), tensors))
