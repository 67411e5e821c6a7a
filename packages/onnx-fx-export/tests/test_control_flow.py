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
    shapes = {"x": {0: "width"}, "n": {0: "parts"}}
    program = export(While(), (torch.ones(3), torch.tensor([1, 1])), opset_version=opset, dynamic_shapes=shapes)
    assert "Loop" in op_types(program)
    onnx.checker.check_model(program.model_proto, full_check=True)
    for width, n in ((3, [0, 0]), (5, [1, 0, 1]), (1, [3]), (4, [3, 2])):
        args = (torch.randn(width), torch.tensor(n))
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
    shapes = {"x": {0: "width"}, "xs": {0: "length", 1: "width"}}
    program = export(Scan(), (torch.ones(3), torch.ones(4, 3)), opset_version=opset, dynamic_shapes=shapes)
    assert "Scan" in op_types(program)
    onnx.checker.check_model(program.model_proto, full_check=True)
    for length, width in ((4, 3), (7, 2), (1, 5)):
        args = (torch.randn(width), torch.randn(length, width))
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
    shapes = {"x": {0: "rows"}, "flag": None}
    program = export(model, (torch.ones(2, 3), torch.tensor(True)), opset_version=opset, dynamic_shapes=shapes)
    onnx.checker.check_model(program.model_proto, full_check=True)
    for x, flag in ((torch.full((5, 3), 3.0), True), (torch.zeros(4, 3), True), (torch.ones(1, 3), False)):
        torch.testing.assert_close(program(x, torch.tensor(flag)), model(x, torch.tensor(flag)))


def test_branches_see_values_of_the_outer_graph() -> None:
    def function(x):
        y = x * 3
        return torch.cond(x.sum() > 0, lambda x, y: x + y, lambda x, y: y.clone(), (x, y))

    program = export(function, (torch.ones(3),), dynamic_shapes={"x": {0: "n"}})
    for x in (torch.ones(5), -torch.ones(2), torch.ones(1)):
        torch.testing.assert_close(program(x), function(x))


def test_branches_give_several_results_and_sizes() -> None:
    class Several(torch.nn.Module):
        def forward(self, x, y):
            def larger(x, y):
                return torch.outer(x[:, 0], y[:, 1]), {"count": x.sum(0), "scaled": y * x.shape[0]}

            def smaller(x, y):
                return torch.outer(x[:, 1], y[:, 0]), {"count": x.amax(0), "scaled": y - x.shape[0]}

            return torch.cond(x.sum() > y.sum(), larger, smaller, (x, y))

    shapes = {"x": {0: "n"}, "y": {0: "m"}}
    program = export(Several(), (torch.ones(2, 3), torch.zeros(4, 3)), dynamic_shapes=shapes)
    for x, y in ((torch.ones(5, 3), torch.zeros(3, 3)), (-torch.ones(1, 3), torch.ones(6, 3))):
        actual, expected = program(x, y), Several()(x, y)
        torch.testing.assert_close(actual[0], expected[0])
        torch.testing.assert_close(actual[1], expected[1])


def test_branches_without_operands_and_on_numbers() -> None:
    class OnSize(torch.nn.Module):
        def forward(self, x, limit):
            return torch.cond(x.shape[0] > limit, lambda x: x * 2, lambda x: x + 7, (x,))

    program = export(OnSize(), (torch.ones(4), torch.tensor(3)), dynamic_shapes={"x": {0: "n"}, "limit": None})
    for n, limit in ((4, 3), (6, 8), (1, 0)):
        args = (torch.randn(n), torch.tensor(limit))
        torch.testing.assert_close(program(*args), OnSize()(*args))


def test_nodes_in_branches_and_loops_can_be_traced_back() -> None:
    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Nested()

        def forward(self, x, flag):
            return self.inner(x * 2, flag)

    program = export(Outer(), (torch.ones(3), torch.tensor(True)))
    nodes = {node.metadata_props["onnxops.fx_node"]: node for node in program.model.graph.all_nodes()}
    assert {"mul", "cond", "cond/neg", "cond/cond"} <= nodes.keys()
    modules = {node.metadata_props.get("onnxops.module") for name, node in nodes.items() if name != "mul"}
    assert modules == {"inner"}
    sources = {name: node.metadata_props.get("onnxops.source", "") for name, node in nodes.items()}
    assert all(source.startswith(f"{__file__}:") for source in sources.values())
