"""Sizes that divide, assertions, and other uses of sizes: the file is right at sizes other than the example's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.export import Dim

from onnx_fx_export import export
from onnx_fx_export.arguments import FunctionModule


def repeats(x, y):
    return torch.ones_like(x.repeat(y.shape[0] // x.shape[0], 1))


def remainder(x, y):
    return torch.cat([x.new_zeros(y.shape[0] % x.shape[0] + 1, 3), x])


def rounded_up(x, y):
    return x.repeat(-(-y.shape[0] // x.shape[0]), 1).copy_(x[:1])


def half_of_the_quotient(x, y):
    return torch.nn.functional.linear(y[: y.shape[0] // x.shape[0] // 2 + 1], x)


def power_of_two(x, y):
    return y.new_ones(2 ** (y.shape[0] // x.shape[0]), 1).expand(-1, 3) + 1


def written_part(x, y):
    return torch.slice_scatter(y, x[:1].expand(y.shape[0] // x.shape[0], -1), 0, 0, y.shape[0] // x.shape[0])


def contraction(x, y):
    return torch.einsum("ni,mi->nm", x.repeat(y.shape[0] // x.shape[0], 1), y)


DIVIDED = (repeats, remainder, rounded_up, half_of_the_quotient, power_of_two, written_part, contraction)


@pytest.mark.parametrize("function", DIVIDED)
def test_a_size_may_divide(function) -> None:
    dims = ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC})
    program = export(FunctionModule(function), (torch.randn(2, 3), torch.randn(6, 3)), dynamic_shapes=dims)
    for x, y in ((2, 6), (3, 7), (4, 17), (1, 5)):
        arguments = torch.randn(x, 3), torch.randn(y, 3)
        torch.testing.assert_close(program(*arguments), function(*arguments))


def checks_all(x):
    torch._check_tensor_all(x > -100, lambda: "too small")
    return x + 1


def asserts(x):
    torch._assert_async((x > -100).all())
    torch._assert_async((x > -100).all(), "too small")
    torch.ops.aten._assert_tensor_metadata(x, dtype=torch.float32)
    return x + 1


def asserts_what_has_no_lowering(x):
    torch._assert_async(torch.linalg.eigvals(x[:3, :3]).real.max() < 1e6)
    return x + 1


def states_bounds(x):
    torch._check(x.shape[0] < 1000)
    torch.ops.aten.sym_constrain_range_for_size(x.shape[0], min=0, max=1000)
    return x + 1


@pytest.mark.parametrize("function", [checks_all, asserts, asserts_what_has_no_lowering, states_bounds])
def test_assertions_vanish_with_what_is_computed_for_them_alone(function) -> None:
    program = export(FunctionModule(function), (torch.randn(4, 3),), dynamic_shapes=({0: "rows"},))
    assert [node.op_type for node in program.model.graph] == ["Add"]
    assert not any("u0" in condition for condition in program.constraints.conditions)
    x = torch.randn(7, 3)
    torch.testing.assert_close(program(x), x + 1)


def test_assertions_vanish_inside_of_functions_too() -> None:
    class Checked(torch.nn.Module):
        def forward(self, x):
            torch._assert_async(torch.linalg.eigvals(x[:3, :3]).real.max() < 1e6)
            return x * 2

    program = export(
        torch.nn.Sequential(Checked(), torch.nn.ReLU()),
        (torch.randn(4, 3),),
        dynamic_shapes=({0: "rows"},),
        export_modules_as_functions={Checked},
    )
    (function,) = program.model.functions.values()
    assert [node.op_type for node in function] == ["Constant", "Mul"]
    x = torch.randn(7, 3)
    torch.testing.assert_close(program(x), (x * 2).relu())


def test_a_size_that_is_checked_and_used_is_kept() -> None:
    def function(x, n):
        length = n.item()
        torch._check(length >= 0)
        torch._check(length <= x.shape[0])
        return x[:length]

    program = export(FunctionModule(function), (torch.randn(4, 3), torch.tensor(2)), dynamic_shapes=({0: "rows"}, None))
    x = torch.randn(8, 3)
    torch.testing.assert_close(program(x, torch.tensor(5)), x[:5])


def test_assertions_as_results() -> None:
    def function(x):
        return torch._is_all_true(x > 0), torch._is_any_true(x > 0)

    program = export(FunctionModule(function), (torch.randn(4, 3),), dynamic_shapes=({0: "rows"},))
    for x in (torch.ones(5, 3), -torch.ones(5, 3), torch.eye(3)):
        np.testing.assert_array_equal(program(x), function(x))
