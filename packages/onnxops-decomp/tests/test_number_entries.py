"""Entries that give numbers rather than tensors, with numbers and sizes known only at run time."""

from __future__ import annotations

from typing import Any

import decomp_harness as harness
import pytest
import torch
from entry_samples import overload_of
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

__all__ = ["NUMBERS"]

aten = torch.ops.aten

X = torch.arange(12.0).reshape(3, 4)
# Operands, and the numbers that come of them. A number among the operands is read from a tensor at run time.
CASES: dict[str, tuple[tuple[Any, ...], Any]] = {
    "Bool.Tensor": ((torch.tensor(2.5),), True),
    "Bool.float": ((0.0,), False),
    "Bool.int": ((3,), True),
    "Float.Tensor": ((torch.tensor(3),), 3.0),
    "Float.Scalar": ((2.5,), 2.5),
    "Float.bool": ((True,), 1.0),
    "Float.int": ((7,), 7.0),
    "FloatImplicit": ((torch.tensor(2.5),), 2.5),
    "Int.Tensor": ((torch.tensor(-2.5),), -2),
    "Int.Scalar": ((2.5,), 2),
    "Int.bool": ((True,), 1),
    "Int.float": ((-3.75,), -3),
    "IntImplicit": ((torch.tensor(4),), 4),
    "ScalarImplicit": ((torch.tensor(4),), 4),
    "_local_scalar_dense": ((torch.tensor(2.5),), 2.5),
    "item": ((torch.tensor([[True]]),), True),
    "equal": ((X, X.clone()), True),
    "allclose": ((X, X + 1), False),
    "size": ((X,), [3, 4]),
    "size.int": ((X, "dim=1"), 4),
    "sym_size": ((X,), [3, 4]),
    "sym_size.int": ((X, "dim=1"), 4),
    "numel": ((X,), 12),
    "sym_numel": ((X,), 12),
    "len.Tensor": ((X,), 3),
}
# These write nothing: a rank is always known, and a bound of a number is checked by the exporter.
NOTHING = {"dim": (X,), "sym_constrain_range": (3,), "sym_constrain_range_for_size": (3,)}
NUMBERS = frozenset(f"aten::{name}" for name in (*CASES, *NOTHING))


def tensor_of(number: Any) -> torch.Tensor:
    """Return a tensor as it is, and a Python number as the tensor that the model has for it."""
    return torch.as_tensor(number, dtype=torch.float64 if isinstance(number, float) else None)


def graph_of(name: str, operands: tuple[Any, ...]) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """Return a graph of one call, all sizes symbolic, and what to feed it."""
    graph, mode = torch.fx.Graph(), FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False)
    tensors = [
        torch.as_tensor(o, dtype=torch.float64 if isinstance(o, float) else None)
        for o in operands
        if not isinstance(o, str)
    ]
    arguments: list[Any] = []
    for operand, tensor in zip(operands, tensors, strict=False):
        node = graph.placeholder(f"x{len(arguments)}")
        node.meta["val"] = mode.from_tensor(tensor)
        read = isinstance(operand, torch.Tensor)
        arguments.append(node if read else graph.call_function(aten._local_scalar_dense.default, (node,)))
    arguments += [1] * (len(operands) - len(tensors))
    graph.output(graph.call_function(overload_of(f"aten::{name}"), tuple(arguments)))
    return torch.fx.GraphModule(torch.nn.Module(), graph), tensors


@pytest.mark.parametrize("opset", [9, 13, 18, 20, 23, 26, 28])
@pytest.mark.parametrize("name", CASES)
def test_number(name: str, opset: int) -> None:
    operands, expected = CASES[name]
    graph_module, tensors = graph_of(name, operands)
    lowered = harness.lower_graph(graph_module, opset=opset)
    numbers = expected if isinstance(expected, list) else [expected]
    harness.compare(harness.run(lowered.proto, tensors), [tensor_of(number) for number in numbers])


@pytest.mark.parametrize("opset", [9, 20])
@pytest.mark.parametrize("name", NOTHING)
def test_nothing_is_written(name: str, opset: int) -> None:
    graph_module, _ = graph_of(name, NOTHING[name])
    assert not harness.lower_graph(graph_module, opset=opset).proto.graph.output
    harness.compare([], [])
