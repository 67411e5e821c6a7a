"""A program refuses sizes that it was not captured for, instead of returning wrong values."""

from __future__ import annotations

import collections
import json
import re
import warnings
from typing import Any, NamedTuple

import pytest
import torch
from torch.export import Dim

from onnx_fx_export import InvalidArgumentError, export
from onnx_fx_export.inputs.arguments import FunctionModule
from onnx_fx_export.sizes import constraints
from onnx_fx_export.sizes.constraints import CONSTRAINTS_KEY


class Branch(torch.nn.Module):
    def forward(self, x):
        return x + 1 if x.shape[0] > 5 else x - 1


def test_the_untaken_branch_is_refused() -> None:
    program = export(Branch(), (torch.ones(8),), dynamic_shapes={"x": {0: "length"}})
    torch.testing.assert_close(program(torch.ones(6)), torch.full((6,), 2.0))
    with pytest.raises(InvalidArgumentError, match=r"length (> 5|>= 6)"):
        program(torch.ones(5))


def test_conditions_are_recorded_in_the_model() -> None:
    program = export(Branch(), (torch.ones(8),), dynamic_shapes={"x": {0: "length"}})
    recorded = json.loads({entry.key: entry.value for entry in program.model_proto.metadata_props}[CONSTRAINTS_KEY])
    assert "length >= 6" in recorded


def test_divisibility_is_checked() -> None:
    def function(x):
        return x.view(-1, 4) * 2

    program = export(function, (torch.ones(8, 3),), dynamic_shapes={"x": {0: Dim.DYNAMIC}})
    torch.testing.assert_close(program(torch.ones(12, 3)), torch.full((9, 4), 2.0))
    with pytest.raises(InvalidArgumentError):
        program(torch.ones(7, 3))


def test_equal_dimensions_are_checked() -> None:
    def function(x, y):
        return x + y

    program = export(function, (torch.ones(3), torch.ones(3)), dynamic_shapes={"x": {0: "a"}, "y": {0: "a"}})
    torch.testing.assert_close(program(torch.ones(5), torch.ones(5)), torch.full((5,), 2.0))
    with pytest.raises(InvalidArgumentError, match="size 1"):
        program(torch.ones(5), torch.ones(1))


def test_declared_bounds_are_checked() -> None:
    program = export(torch.nn.ReLU(), (torch.ones(3),), dynamic_shapes={"input": {0: Dim("n", min=2, max=4)}})
    program(torch.ones(4))
    with pytest.raises(InvalidArgumentError, match="n <= 4"):
        program(torch.ones(5))


def test_static_sizes_and_ranks_are_checked() -> None:
    program = export(torch.nn.ReLU(), (torch.ones(3, 2),))
    with pytest.raises(InvalidArgumentError, match="axis 0"):
        program(torch.ones(4, 2))
    with pytest.raises(InvalidArgumentError, match="rank 1"):
        program(torch.ones(3))


D = Dim("d", min=2, max=32)
DERIVED = {
    "2*d": (lambda x, y: torch.cat([x, x]) + y, (3, 6), (D, 2 * D), ["d", "2*d"], (9, 18), (9, 17)),
    "d + 1": (lambda x, y: x + y[1:], (3, 4), (D, D + 1), ["d", "d + 1"], (5, 6), (5, 7)),
    "d - 1": (lambda x, y: x[:-1] + y, (4, 3), (D, D - 1), ["d", "d - 1"], (8, 7), (8, 8)),
    "3*d + 2": (
        lambda x, y: y[:-2].reshape(3, -1).sum(0) + x, (4, 14), (D, 3 * D + 2), ["d", "3*d + 2"], (5, 17), (5, 16)),
    "2*d alone": (lambda x, y: x.reshape(2, -1).sum() + y, (6, 1), (2 * D, None), ["2*d", "1"], (10, 1), (7, 1)),
    "2*d and 2*d + 1": (
        lambda x, y: x.reshape(2, -1).sum(0) + y[1:].reshape(2, -1).sum(0), (6, 7), (2 * D, 2 * D + 1),
        ["2*d", "2*d + 1"], (8, 9), (8, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", DERIVED)
def test_derived_dimensions_keep_their_expression(name: str) -> None:
    function, example, dims, texts, right, wrong = DERIVED[name]
    shapes = tuple(None if dim is None else {0: dim} for dim in dims)
    program = export(function, tuple(map(torch.randn, example)), dynamic_shapes=shapes)
    assert [str(value.shape[0]) for value in program.model.graph.inputs] == texts
    args = tuple(map(torch.randn, right))
    torch.testing.assert_close(program(*args), function(*args))
    for refused in (wrong, tuple(40 * size for size in right)):
        with pytest.raises(InvalidArgumentError):
            program(*map(torch.randn, refused))
        with pytest.raises(InvalidArgumentError):
            program.verify(*map(torch.randn, refused))


def test_bounds_of_dimensions_are_recorded_and_conditions_that_say_nothing_are_not() -> None:
    function, example, *_ = DERIVED["2*d"]
    program = export(function, tuple(map(torch.randn, example)), dynamic_shapes=({0: D}, {0: 2 * D}))
    assert program.constraints.conditions == ("d >= 2", "d <= 32")
    with pytest.raises(InvalidArgumentError, match="d >= 2"):
        program(torch.randn(1), torch.randn(2))


SHARED = {
    "a + b <= 12": (lambda x, y: torch.cat([x, y]) if x.shape[0] + y.shape[0] <= 12 else x, (11, 1), (12, 1)),
    "2 * a + b < 13": (lambda x, y: x if 2 * x.shape[0] + y.shape[0] >= 13 else torch.cat([x, y]), (1, 10), (2, 9)),
}


@pytest.mark.parametrize("bound", SHARED)
def test_a_dimension_takes_what_others_leave_of_a_bound(bound: str) -> None:
    function, right, wrong = SHARED[bound]
    program = export(function, (torch.randn(2), torch.randn(3)), dynamic_shapes=({0: "a"}, {0: "b"}))

    assert program.constraints.conditions == (bound,)
    args = tuple(map(torch.randn, right))
    torch.testing.assert_close(program(*args), function(*args))
    with pytest.raises(InvalidArgumentError, match=re.escape(bound)):
        program(*map(torch.randn, wrong))


class Both(NamedTuple):
    first: Any
    second: Any


def longer_than_five(x):
    return x * 2 if x.shape[0] > 5 else x - 1


def cache_of(n: int):
    from transformers import DynamicCache

    cache = DynamicCache()
    cache.update(torch.randn(n, 2, 3, 4), torch.randn(n, 2, 3, 4), 0)
    return cache


def output_of(n: int):
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=torch.randn(n))


N = {0: "n"}
CONTAINERS = {
    "tensor": (longer_than_five, lambda n: (torch.randn(n),), {"x": N}),
    "tuple": (lambda t: longer_than_five(t[1]), lambda n: ((1, torch.randn(n)),), {"t": (None, N)}),
    "list": (lambda t: longer_than_five(t[0]), lambda n: ([torch.randn(n)],), {"t": [N]}),
    "dict": (lambda t: longer_than_five(t["a b"][0]), lambda n: ({"a b": [torch.randn(n)]},), {"t": {"a b": [N]}}),
    "ordered dict": (
        lambda t: longer_than_five(t["k"]), lambda n: (collections.OrderedDict(k=torch.randn(n)),), {"t": {"k": N}}),
    "named tuple": (
        lambda t: longer_than_five(t.second), lambda n: (Both(None, torch.randn(n)),), {"t": Both(None, N)}),
    "further arguments": (
        lambda x, *more: longer_than_five(more[1]) + x, lambda n: (torch.randn(1), None, torch.randn(n)),
        {"x": None, "more": (None, N)}),
    "cache": (lambda c: longer_than_five(c.layers[0].values), lambda n: (cache_of(n),), {"c": [N, N]}),
    "model output": (lambda o: longer_than_five(o.last_hidden_state), lambda n: (output_of(n),), {"o": [N]}),
    "renamed input": (longer_than_five, lambda n: (torch.randn(n),), {"features": N}),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTAINERS)
def test_conditions_on_sizes_inside_of_containers_are_found(name: str) -> None:
    function, args, shapes = CONTAINERS[name]
    program = export(
        function, args(8), dynamic_shapes=shapes, input_names=["features"] if name == "renamed input" else None
    )
    torch.testing.assert_close(program(*args(6)).shape, function(*args(6)).shape)
    with pytest.raises(InvalidArgumentError, match="n >"):
        program(*args(5))


def test_conditions_on_further_keyword_arguments_are_found() -> None:
    def function(**more):
        return longer_than_five(more["a"])

    program = export(function, kwargs={"b": torch.ones(2), "a": torch.randn(8)}, dynamic_shapes={"a": N, "b": None})
    with pytest.raises(InvalidArgumentError, match="n >"):
        program(b=torch.ones(2), a=torch.randn(5))


class Further(torch.nn.Module):
    def forward(self, x, *more):
        return x + more[0].reshape(-1, 2).sum(1) + more[1]["k"].reshape(3, -1).sum(0)


@pytest.mark.parametrize("captured", [False, True])
def test_conditions_on_further_arguments_hold_for_captured_programs_too(captured: bool) -> None:
    args = (torch.ones(4), torch.randn(8), {"k": torch.randn(12)})
    shapes = {"x": {0: Dim.DYNAMIC}, "more": ({0: Dim.DYNAMIC}, {"k": {0: Dim.DYNAMIC}})}
    model: Any = Further()
    if captured:
        program = export(torch.export.export(model, args, dynamic_shapes=shapes))
    else:
        program = export(model, args, dynamic_shapes=shapes)
    other = (torch.ones(2), torch.randn(4), {"k": torch.randn(6)})
    torch.testing.assert_close(program(*other), model(*other))
    for wrong in ((2, 5, 6), (2, 4, 7), (2, 6, 6)):
        x, first, second = map(torch.randn, wrong)
        with pytest.raises(InvalidArgumentError):
            program(x, first, {"k": second})


def test_a_guard_on_further_arguments_is_checked_in_captured_programs() -> None:
    def function(x, *more):
        return x + (more[1] * 2 if more[1].shape[0] * more[0].shape[0] > 10 else more[1]).sum() + more[0].sum()

    args, dims = (torch.ones(2), torch.randn(4), torch.randn(5)), {0: Dim.DYNAMIC}
    module = FunctionModule(function)
    captured = torch.export.export(module, args, dynamic_shapes={"x": None, "more": (dims, dims)})
    program = export(captured)
    assert [value.name for value in program.model.graph.inputs] == ["x", "more_0", "more_1"]
    other = (torch.ones(2), torch.randn(3), torch.randn(6))
    torch.testing.assert_close(program(*other), function(*other))
    with pytest.raises(InvalidArgumentError, match="captured for"):
        program(torch.ones(2), torch.randn(3), torch.randn(3))


def test_a_condition_that_cannot_be_read_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch writes tomorrow is not dropped without a word."""
    unread = "something_new(L['input'].size()[0]) > 2"
    monkeypatch.setattr(constraints, "guard_texts", lambda program: [unread, "L['input'].size()[0] != 7"])
    with pytest.warns(UserWarning, match=r"cannot check:\n  something_new"):
        program = export(torch.nn.ReLU(), (torch.ones(3, 2),), dynamic_shapes=[{0: "batch"}])
    assert program.constraints.conditions == ("batch != 7",)


def test_what_a_decomposition_assumes_of_named_dimensions_is_checked() -> None:
    def longest(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.pad_sequence.default([x, y])

    program = export(longest, (torch.ones(3, 2), torch.ones(5, 2)), dynamic_shapes=[{0: "n"}, {0: "m"}])

    short, long = torch.ones(4, 2), torch.ones(9, 2)
    torch.testing.assert_close(program(short, long), longest(short, long))
    if torch.__version__ >= "2.15":
        torch.testing.assert_close(program(long, short), longest(long, short))
    else:  # torch goes by the longest tensor of the example
        with pytest.raises(InvalidArgumentError, match="captured for m > n"):
            program(long, short)


def test_an_example_that_is_a_view_leaves_no_condition_on_what_it_is_a_view_of() -> None:
    example = torch.randn(2, 16)[:, 3:5]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = export(lambda x: x.cumsum(1) * x.shape[1], (example,), dynamic_shapes=({0: "b", 1: "s"},))

    assert program.constraints.conditions == ()
    x = torch.randn(3, 7)
    torch.testing.assert_close(program(x), x.cumsum(1) * 7)


def repeated(x, n):
    return x.repeat(n, 1) if n < 4 else x.repeat(n, 1) * 2


def in_a_dictionary(x, d):
    return repeated(x, d["n"])


@pytest.mark.parametrize(
    "function, argument, name", [(repeated, lambda n: n, "n"), (in_a_dictionary, lambda n: {"n": n}, "d_n")]
)
def test_conditions_on_numbers_are_called_by_them_and_checked(function, argument, name) -> None:
    dims = ({0: "n"} if name != "n" else None, argument(Dim.DYNAMIC))
    x = torch.randn(2, 3)
    with pytest.warns(UserWarning, match=f"{name} <= 3"):
        program = export(FunctionModule(function), (x, argument(2)), dynamic_shapes=dims)

    assert f"{name} <= 3" in program.constraints.conditions
    for n in (1, 3):
        torch.testing.assert_close(program(x, argument(n)), function(x, argument(n)))
    with pytest.raises(InvalidArgumentError, match=f"{name} = 5"):
        program(x, argument(5))


def test_a_number_that_is_called_like_a_dimension_is_not_taken_for_it() -> None:
    model = FunctionModule(lambda x, n: x * n + x.shape[0])
    program = export(model, (torch.randn(2, 3), 5), dynamic_shapes=({0: "n"}, Dim.DYNAMIC))
    for rows, n in ((4, 3), (1, 7)):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(program(x, n), model(x, n))
