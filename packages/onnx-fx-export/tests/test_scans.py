"""Scans over sequences, and regions that run in another mode, right at lengths other than the example's."""

from __future__ import annotations

import onnx
import pytest
import torch
from torch._higher_order_ops import scan
from torch._higher_order_ops.associative_scan import associative_scan, associative_scan_op
from torch._higher_order_ops.map import map as map_over
from torch.utils import _pytree as pytree

from onnx_fx_export import export


def check(model, examples, dynamic_shapes=None, opset=20):
    """Export with the first example and compare on all of them."""
    program = export(model, examples[0], dynamic_shapes=dynamic_shapes, opset_version=opset)
    onnx.checker.check_model(program.model_proto, full_check=True)
    for example in examples:
        with torch.no_grad():
            actual, expected = pytree.tree_leaves(program(*example)), pytree.tree_leaves(model(*example))
        for mine, theirs in zip(actual, expected, strict=True):
            torch.testing.assert_close(mine, theirs)
    return {node.op_type for node in program.model.graph}


class Associative(torch.nn.Module):
    def __init__(self, dim: int = 0, reverse: bool = False) -> None:
        super().__init__()
        self.dim, self.reverse = dim, reverse
        self.weight = torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))

    def forward(self, x):
        bias = x.mean()

        def combine(a, b):
            return a["gate"] * b["gate"], a["value"] * b["gate"] + b["value"] + 0 * bias

        def named(a, b):
            gate, value = combine(a, b)
            return {"gate": gate, "value": value}

        xs = {"gate": torch.sigmoid(x), "value": x}
        return associative_scan(named, xs, dim=self.dim, reverse=self.reverse, combine_mode="generic")


@pytest.mark.parametrize("opset", [11, 20, 23])
@pytest.mark.parametrize(("dim", "reverse"), [(0, False), (1, True)])
def test_associative_scan_over_a_dynamic_length(dim: int, reverse: bool, opset: int) -> None:
    shapes = [(4, 3), (7, 5), (1, 2), (2, 1)]
    found = check(Associative(dim, reverse), [(torch.randn(s),) for s in shapes], {"x": {0: "n", 1: "m"}}, opset=opset)
    assert "Scan" in found


@pytest.mark.parametrize("length", [1, 2, 5])
def test_associative_scan_over_a_static_length_is_unrolled(length: int) -> None:
    found = check(Associative(), [(torch.randn(length, 3),)])
    assert "Scan" not in found


def test_associative_scan_uses_weights() -> None:
    class Weighted(Associative):
        def forward(self, x):
            return associative_scan(lambda a, b: a + b * self.weight, x, dim=0, combine_mode="generic")

    class Summed(Associative):
        def forward(self, x):
            return x[:1] + torch.cat([torch.zeros(1, 3), (x * self.weight)[1:]]).cumsum(0)

    program = export(Weighted(), (torch.randn(4, 3),), dynamic_shapes={"x": {0: "n"}})
    x = torch.randn(6, 3)
    torch.testing.assert_close(program(x), Summed()(x))


def test_the_operator_that_accelerators_use() -> None:
    class Pointwise(torch.nn.Module):
        def forward(self, x):
            return associative_scan_op(lambda a, b: (a * b,), (x,), ())

    program = export(Pointwise(), (torch.rand(4, 3) + 1,), dynamic_shapes={"x": {0: "n"}})
    assert "Scan" in {node.op_type for node in program.model.graph}
    for length in (6, 1):
        x = torch.rand(length, 3) + 1
        torch.testing.assert_close(program(x)[0], x.cumprod(0))


class Recurrence(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(3, 4)

    def forward(self, x, state):
        def step(carried, slices):
            state, count = carried
            state = self.cell(slices["x"], state)
            return (state, count + 1), {"state": state * slices["gate"].unsqueeze(-1)}

        xs = {"x": x, "gate": x.sum(-1)}
        return scan(step, (state, torch.zeros((), dtype=torch.int64)), xs, dim=0)


def test_scan_of_a_cell_with_nested_values() -> None:
    examples = [(torch.randn(n, b, 3), torch.randn(b, 4)) for n, b in ((5, 2), (8, 3), (1, 2))]
    check(Recurrence(), examples, {"x": {0: "n", 1: "batch"}, "state": {0: "batch"}})


def test_scan_in_reverse_and_along_another_dimension() -> None:
    class Reversed(torch.nn.Module):
        def forward(self, x):
            return scan(lambda c, v: (c * 0.5 + v, c - v), x[:, 0] * 0, x, dim=1, reverse=True)

    check(Reversed(), [(torch.randn(3, n),) for n in (4, 6, 1)], {"x": {1: "n"}})


def test_map_over_several_tensors_with_a_condition_inside() -> None:
    class Mapped(torch.nn.Module):
        def forward(self, x, y, z):
            def body(pair, z):
                x, y = pair
                return torch.cond(x.sum() > y.sum(), lambda x, y: x - y, lambda x, y: x + y, (x, y)) * z, x.max()

            return map_over(body, (x, y), z)

    examples = [(torch.randn(n, 3), torch.randn(n, 3), torch.randn(3)) for n in (4, 7, 1)]
    check(Mapped(), examples, {"x": {0: "n"}, "y": {0: "n"}, "z": None})


def test_vmap_is_what_it_computes() -> None:
    class Batched(torch.nn.Module):
        def forward(self, x, y):
            outer = torch.vmap(torch.vmap(torch.mul, in_dims=(None, 0)), in_dims=(0, None))
            return torch.vmap(lambda a, b: torch.dot(a, b) + a.sum(), in_dims=(0, None))(x, y[0]), outer(
                x[:, 0], y[:, 0]
            )

    examples = [(torch.randn(n, 3), torch.randn(n, 3)) for n in (4, 6)]
    check(Batched(), examples, {"x": {0: "n"}, "y": {0: "n"}})


def test_autocast_casts() -> None:
    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 5)

        def forward(self, x):
            with torch.autocast("cpu", torch.float16):
                y = self.linear(x)
            return y, y.float() + 1

    model = Mixed()
    program = export(model, (torch.randn(2, 3),), dynamic_shapes={"x": {0: "n"}})
    x = torch.randn(4, 3)
    for mine, theirs in zip(program(x), model(x), strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, rtol=2e-3, atol=2e-3)
