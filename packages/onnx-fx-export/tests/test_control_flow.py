"""Control flow that torch keeps becomes ONNX control flow, right for data other than the example's."""

from __future__ import annotations

import onnx
import pytest
import torch
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_over

from onnx_fx_export import export


def op_types(program) -> set[str]:
    return {node.op_type for node in program.model.graph}


class While(torch.nn.Module):
    def forward(self, x, n):
        offset = torch.ones(()) * 2

        def going(i, y):
            return i < n.sum()

        def step(i, y):
            return i + 1, y * offset + x

        return while_loop(going, step, (torch.zeros((), dtype=torch.int64), x))


@pytest.mark.parametrize("opset", [11, 13, 20, 23])
def test_while_loop_becomes_loop(opset: int) -> None:
    program = export(While(), (torch.ones(3), torch.tensor([1, 1])), opset_version=opset)
    assert "Loop" in op_types(program)
    onnx.checker.check_model(program.model_proto, full_check=True)
    for n in ([0, 0], [1, 0], [3, 2]):
        args = (torch.randn(3), torch.tensor(n))
        for actual, expected in zip(program(*args), While()(*args), strict=True):
            torch.testing.assert_close(actual, expected)


class Scan(torch.nn.Module):
    def forward(self, x, xs):
        bias = x * 2

        def step(carry, value):
            return carry + value, carry * value + bias

        return scan(step, x, xs, dim=0)


@pytest.mark.parametrize("opset", [11, 20])
def test_scan_becomes_scan(opset: int) -> None:
    program = export(
        Scan(), (torch.ones(3), torch.ones(4, 3)), opset_version=opset, dynamic_shapes={"x": None, "xs": {0: "length"}}
    )
    assert "Scan" in op_types(program)
    onnx.checker.check_model(program.model_proto, full_check=True)
    for length in (4, 7):
        args = (torch.randn(3), torch.randn(length, 3))
        for actual, expected in zip(program(*args), Scan()(*args), strict=True):
            torch.testing.assert_close(actual, expected)


def test_map_becomes_scan() -> None:
    class Map(torch.nn.Module):
        def forward(self, xs, y):
            return map_over(lambda x, y: x * y + 1, xs, y)

    program = export(Map(), (torch.ones(4, 3), torch.ones(3)), dynamic_shapes={"xs": {0: "n"}, "y": None})
    args = (torch.randn(6, 3), torch.randn(3))
    torch.testing.assert_close(program(*args), args[0] * args[1] + 1)


class Nested(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x, flag):
        def positive(x):
            return torch.cond(x.max() > 2, lambda x: x - 2, lambda x: self.linear(x), (x,))

        return torch.cond(flag, positive, lambda x: -x, (x,))


@pytest.mark.parametrize("opset", [11, 20])
def test_conditions_nest(opset: int) -> None:
    model = Nested()
    program = export(model, (torch.ones(3), torch.tensor(True)), opset_version=opset)
    onnx.checker.check_model(program.model_proto, full_check=True)
    for x, flag in ((torch.full((3,), 3.0), True), (torch.zeros(3), True), (torch.zeros(3), False)):
        torch.testing.assert_close(program(x, torch.tensor(flag)), model(x, torch.tensor(flag)))


def test_branches_see_values_of_the_outer_graph() -> None:
    def function(x):
        y = x * 3
        return torch.cond(x.sum() > 0, lambda x, y: x + y, lambda x, y: y.clone(), (x, y))

    program = export(function, (torch.ones(3),))
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(program(x), function(x))
