"""Operators without a lowering are taken apart alone, and what their pieces write in place is not lost."""

from __future__ import annotations

import pytest
import torch
from decomp_harness import check
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from onnxops_decomp import UnsupportedOperatorError
from onnxops_decomp.graph.decompose import Decomposer

LIBRARY = torch.library.Library("onnxops_decomp_tests", "DEF")


def composite(name: str, function) -> torch._ops.OpOverload:
    """Define an operator of one tensor by other operators."""
    LIBRARY.define(f"{name}(Tensor x) -> Tensor")
    LIBRARY.impl(name, function, "CompositeImplicitAutograd")
    return getattr(torch.ops.onnxops_decomp_tests, name).default


def wrapped_around(x):
    y = x.new_zeros(x.shape[0] + 2, x.shape[1])
    y[1:-1] = x
    y[0] = x[-1]
    y[-1] = x[0]
    return y * 2


def written_through_a_view(x):
    y = x + 1
    flat = y.view(-1)
    flat.mul_(3)
    y[:, 0].add_(10)
    return y + flat.view_as(y)


def rebound(x):
    y = x + 1
    y.mul_(2)
    return y.add_(x)


FUNCTIONS = [wrapped_around, written_through_a_view, rebound]
OVERLOADS = {function.__name__: composite(function.__name__, function) for function in FUNCTIONS}


@pytest.mark.parametrize("name", list(OVERLOADS))
def test_what_a_decomposition_writes_in_place_counts(name: str) -> None:
    overload = OVERLOADS[name]
    check(lambda x: overload(x), torch.randn(3, 4))
    check(lambda x: overload(x), torch.randn(3, 4), others=[(torch.randn(5, 7),)])


def test_equal_operands_stay_apart() -> None:
    LIBRARY.define("difference(Tensor x, Tensor y) -> Tensor")
    LIBRARY.impl("difference", lambda x, y: x * 2 - y, "CompositeImplicitAutograd")
    overload = torch.ops.onnxops_decomp_tests.difference.default
    check(lambda x, y: overload(x, x) + overload(x, y), torch.randn(3), torch.randn(3))


def test_a_decomposition_that_fixes_a_dynamic_size_is_refused() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.randn(7, 2, 5), symbolic_context=StatelessSymbolicContext([DimDynamic.DYNAMIC] * 3))
    with mode:
        state, weights = torch.empty(1, 2, 6), [torch.empty(18, 5), torch.empty(18, 6)]
    arguments = (x, state, weights, False, 1, 0.0, False, False, False)
    with pytest.raises(UnsupportedOperatorError, match="declared dynamic"):
        Decomposer().decompose(torch.ops.aten.gru.input, arguments, {})
