"""Recurrent networks equal eager PyTorch."""

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import pytest
import torch
from decomp_harness import check, compare, expected_of, run
from opset_sweep import swept

from onnxops_decomp import OpBuilder, builtin_table
from onnxops_decomp.dtypes import to_ir
from onnxops_decomp.files.model import build_model
from onnxops_decomp.graph.calls import apply_lowering, find_lowering

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


def _lowered_call(
    overload: torch._ops.OpOverload,
    tensors: Sequence[torch.Tensor],
    states: slice,
    options: Sequence[Any],
    opset: int,
    dims: Sequence[Sequence[int | ir.SymbolicDim]] | None = None,
) -> Any:
    """Lower one call by its own, of tensors in order of which some are the states."""
    op = OpBuilder(opset)
    shapes = dims or [tuple(tensor.shape) for tensor in tensors]
    values = [
        op.input(f"x{i}", to_ir(t.dtype), tuple(shape))
        for i, (t, shape) in enumerate(zip(tensors, shapes, strict=True))
    ]
    state: Any = values[states] if "lstm" in overload.name() else values[states][0]
    args = [*values[: states.start], state, values[states.stop :], *options]
    entry = find_lowering(builtin_table(), overload, args, {})
    assert entry is not None
    return ir.to_proto(build_model(op, list(apply_lowering(op, entry, overload, args, {})), name="recurrent"))


@pytest.mark.parametrize("opset", [11, 20])
@pytest.mark.parametrize("kind", KINDS)
def test_batch_and_length_at_other_sizes(kind: str, opset: int) -> None:
    states, weights = _states(kind, 1, 2), _parameters(kind, 1, 2)
    options = [True, 1, 0.0, False, True, False]
    tensors = [torch.randn(STEPS, BATCH, INPUT), *states, *weights]
    steps, batch = ir.SymbolicDim("steps"), ir.SymbolicDim("batch")
    dims = [(steps, batch, INPUT), *[(2, batch, HIDDEN)] * len(states), *(tuple(weight.shape) for weight in weights)]
    overload, count = getattr(torch.ops.aten, kind).input, len(states)
    proto = _lowered_call(overload, tensors, slice(1, 1 + count), options, opset, dims)
    for length, size in ((STEPS, BATCH), (9, 7), (1, 1)):
        inputs = [torch.randn(length, size, INPUT), *(torch.randn(2, size, HIDDEN) for _ in states), *weights]
        compare(run(proto, inputs), expected_of(_call(kind, "input", count, *options), inputs))


@pytest.mark.parametrize("opset", swept(11, 14, 18))
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences(kind: str, layers: int, bidirectional: bool, opset: int) -> None:
    directions = 1 + bidirectional
    states, sizes = _states(kind, layers, directions), torch.tensor([4, 4, 3, 1, 1])
    tensors = [torch.randn(13, INPUT), sizes, *states, *_parameters(kind, layers, directions)]
    options = [True, layers, 0.0, False, bidirectional]
    overload = getattr(torch.ops.aten, kind).data  # It reads the batch sizes, and so cannot be recorded.
    proto = _lowered_call(overload, tensors, slice(2, 2 + len(states)), options, opset)
    compare(run(proto, tensors), expected_of(_call(kind, "data", len(states), *options), tensors))


def _double(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]


@pytest.mark.parametrize("opset", swept(8, 9, 11, 14, 18, 22, 26))
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_doubles_keep_their_precision(kind: str, bidirectional: bool, opset: int) -> None:
    directions = 1 + bidirectional
    states = _states(kind, 2, directions)
    call = _call(kind, "input", len(states), True, 2, 0.0, False, bidirectional, False)
    tensors = [torch.randn(STEPS, BATCH, INPUT), *states, *_parameters(kind, 2, directions)]
    check(call, *_double(tensors), opset=opset, tolerance=(1e-12, 1e-12))


@pytest.mark.parametrize("kind", KINDS)
def test_packed_doubles(kind: str) -> None:
    states, sizes = _states(kind, 2, 2), torch.tensor([4, 4, 3, 1, 1])
    tensors = _double([torch.randn(13, INPUT), sizes, *states, *_parameters(kind, 2, 2)])
    options = [True, 2, 0.0, False, True]
    overload = getattr(torch.ops.aten, kind).data
    proto = _lowered_call(overload, tensors, slice(2, 2 + len(states)), options, 18)
    expected = expected_of(_call(kind, "data", len(states), *options), tensors)
    compare(run(proto, tensors), expected, tolerance=(1e-12, 1e-12))


@pytest.mark.parametrize("opset", swept(11, 14, 18))
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_packed_projections(layers: int, bidirectional: bool, opset: int) -> None:
    directions = 1 + bidirectional
    states, sizes = _states("lstm", layers, directions, 2), torch.tensor([4, 4, 3, 1, 1])
    tensors = [torch.randn(13, INPUT), sizes, *states, *_parameters("lstm", layers, directions, projection=2)]
    options = [True, layers, 0.0, False, bidirectional]
    proto = _lowered_call(torch.ops.aten.lstm.data, tensors, slice(2, 4), options, opset)
    compare(run(proto, tensors), expected_of(_call("lstm", "data", 2, *options), tensors))


@pytest.mark.parametrize("kind", KINDS)
def test_doubles_and_projections_at_other_sizes(kind: str) -> None:
    projection = 2 if kind == "lstm" else 0
    states, weights = _states(kind, 1, 2, projection), _parameters(kind, 1, 2, projection=projection)
    options = [True, 1, 0.0, False, True, False]
    tensors = _double([torch.randn(STEPS, BATCH, INPUT), *states, *weights])
    steps, batch = ir.SymbolicDim("steps"), ir.SymbolicDim("batch")
    shapes = [(2, batch, state.shape[2]) for state in states]
    dims = [(steps, batch, INPUT), *shapes, *(tuple(weight.shape) for weight in weights)]
    overload, count = getattr(torch.ops.aten, kind).input, len(states)
    proto = _lowered_call(overload, tensors, slice(1, 1 + count), options, 18, dims)
    for length, size in ((STEPS, BATCH), (9, 7), (1, 1), (3, 0)):
        initial = [torch.randn(2, size, state.shape[2]) for state in states]
        inputs = _double([torch.randn(length, size, INPUT), *initial, *weights])
        expected = expected_of(_call(kind, "input", count, *options), inputs)
        compare(run(proto, inputs), expected, tolerance=(1e-12, 1e-12))
