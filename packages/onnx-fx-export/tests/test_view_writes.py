"""Writes to views of tensors that are read later: taken apart here where each view is known, and by torch elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from onnx_fx_export import export
from onnx_fx_export.lower import mutations

Function = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


class Called(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.function(x)


def a_slice(x):
    y = x * 2
    y[:, 1:].mul_(3)
    return (y,)


def every_second(x):
    y = x + 1
    y[:, ::2] = x[:, 1::2]
    return (y,)


def an_older_view(x):
    y = x + 1
    row, last = y[0], y[..., -1]
    y[:, 1].add_(x.sum())
    last.zero_()
    return y, row, last


def a_view_of_a_view(x):
    y = x.clone()
    part = y.transpose(0, 1)[1:].unsqueeze(0)
    part[:, 0] += part.mean()
    return y, part


def another_shape(x):
    y = x - 1
    flat = y.view(-1)
    flat[1:4] = 7
    y.view(-1, 2, 2)[:, 0] *= 2
    return y, flat


def a_diagonal(x):
    y = x.exp()
    y.diagonal().fill_(-1)
    return (y,)


def unpacked_columns(x):
    y = x.neg()
    first, second, *_ = y.unbind(1)
    first.copy_(second)
    left, right = y.split(2, 1)
    right.add_(left)
    return y, second


def itself(x):
    y = x.cos()
    part = y[:, :2]
    part.add_(part)
    part[part > 0.5] = 0.25
    return y, part


def another_dtype(x):
    y = (x * 10).int()
    y[:, 0] = x[:, 1] * 3
    return y, y[:, 0] + 1


def the_same_dtype(x):
    y = x * 2
    half = y.half()
    same = (y + x).type_as(half.float())
    also = same.to(torch.float32).to(x.device)
    same[1:] += 1
    also[:, 0].mul_(2)
    y[0] = half[1]
    return y, half, same, also


def like_what_is_written(x):
    y = x + 1
    other = x.cos().type_as(y)
    y[1:] += other[:1]
    return y, other


def several_dimensions_in_another_order(x):
    y = x.sin()
    y.movedim(1, 0)[2].sub_(4)
    y.squeeze().mT[0] = 9
    return (y,)


def the_input(x):
    x[:, 0] = 5
    shown = x.t()
    x[:, 1] = shown[0]
    return x + 1, shown


OWN = [
    a_slice,
    every_second,
    an_older_view,
    a_view_of_a_view,
    another_shape,
    a_diagonal,
    unpacked_columns,
    itself,
    another_dtype,
    the_same_dtype,
    like_what_is_written,
    several_dimensions_in_another_order,
    the_input,
]


def maybe_a_copy(x):
    y = x + 1
    shown = y.reshape(-1)
    y[0] = 3
    return shown, y


def of_many_rows(x):
    y = x + 1
    shown = y[:1].expand(3, 4)
    y[0] = 3
    return shown * 2, y


def turned_in_place(x):
    y = x + 1
    shown = y.view(-1)
    y.t_()
    y[0] = 3
    return y, shown


def is_right(function: Function) -> None:
    program = export(Called(function), (torch.randn(4, 4),), dynamic_shapes=({0: torch.export.Dim("n", min=2)},))
    for rows in (2, 4, 6):
        x = torch.randn(rows, 4)
        results, wanted = program(x.clone()), Called(function)(x.clone())
        torch.testing.assert_close(results if isinstance(results, tuple) else (results,), wanted)


@pytest.mark.filterwarnings("ignore:The model changes its input")
@pytest.mark.parametrize("function", OWN)
def test_writes_to_known_views_need_no_second_trace(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutations, "functionalized", None)

    is_right(function)


@pytest.mark.parametrize("function", [maybe_a_copy, of_many_rows, turned_in_place])
def test_others_are_left_to_torch(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    functionalized = mutations.functionalized
    monkeypatch.setattr(mutations, "functionalized", lambda program: asked.append(1) or functionalized(program))

    is_right(function)

    assert asked


def test_a_buffer_is_written_through_its_views() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            last = self.seen[-1]
            self.seen[1:].add_(x.sum(0))
            return last + self.seen[0]

    model = Counting()
    program = export(model, (torch.randn(2, 4),), state="io", dynamic_shapes=({0: "n"},))
    x = torch.randn(5, 4)

    outputs = program.run({"x": x, **program.initial_state})

    torch.testing.assert_close(outputs["output"], model(x))
    torch.testing.assert_close(outputs[program.state["seen"]], model.seen)


# What shows its operand though the schema does not say so, and what gives it as there is nothing to do.
SILENT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "einsum": lambda y: torch.einsum("ij->ji", y),
    "einsum in the same order": lambda y: torch.einsum("ij->ij", y),
    "meshgrid": lambda y: torch.meshgrid(y[0], y[1], indexing="ij")[0],
    "broadcast_tensors": lambda y: torch.broadcast_tensors(y, y)[0],
    "atleast_2d": torch.atleast_2d,
    "sum_to_size": lambda y: y.sum_to_size(y.shape),
    "type_as": lambda y: y.type_as(y),
    "to": lambda y: y.to(torch.float32),
    "dropout": lambda y: F.dropout(y, 0.5, False),
    "dropout of nothing": lambda y: F.dropout(y, 0.0, True),
    "feature_alpha_dropout": lambda y: F.feature_alpha_dropout(y, 0.5, False),
    "casts and dropout": lambda y: F.dropout(y.type_as(y).to(torch.float32), 0.5, False).float(),
    "dropout of a part": lambda y: F.dropout(torch.stack([y, y]).unbind(0)[1], 0.5, False),
    "another dtype": lambda y: y.double().float(),
    "a copy": lambda y: y.to(torch.float32, copy=True),
}


@pytest.mark.filterwarnings("ignore:The model changes its input")
@pytest.mark.parametrize("writes_source", [True, False])
@pytest.mark.parametrize("name", SILENT)
def test_views_that_no_schema_tells_of_are_seen(name: str, writes_source: bool) -> None:
    show = SILENT[name]

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, other = x * 2, x + 1
        shown = show(y)
        (y if writes_source else shown)[..., 0] += 1
        return shown * 1, y + 0, other.sin_()

    def left_to_torch(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        torch.add(x, 1, out=x)
        return function(x)

    is_right(function)
    is_right(left_to_torch)


@pytest.mark.parametrize("writes_source", [True, False])
@pytest.mark.parametrize("name", SILENT)
def test_views_are_seen_in_branches(name: str, writes_source: bool) -> None:
    show = SILENT[name]

    def written(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        shown = show(y)
        (y if writes_source else shown)[..., 0] += 1
        return shown.sum(-1) + y.sum(-1)

    class Branches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, written, lambda x: x.sum(-1), (x,))

    program = export(Branches(), (torch.rand(4, 4),))
    for x in (torch.rand(4, 4), -torch.rand(4, 4)):
        torch.testing.assert_close(program(x), Branches()(x))


class WithNewTensors(torch.nn.Module):
    """Makes tensors of sizes beside a write that torch has to functionalize."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        centre = torch.tensor([x.shape[0] / 2, 3.0]).to(x)
        matrices = torch.eye(3).repeat(x.shape[0], 1, 1)
        matrices[:, :2, 2] = centre
        matrices.reshape(-1, 9)[:, ::2].add_(x[:, :1])
        return matrices, torch.as_tensor([*x.shape])


def test_tensors_made_of_sizes_are_detached_beside_writes_to_views() -> None:
    model, x = WithNewTensors(), torch.randn(5, 6)
    program = export(model, (torch.randn(3, 4),), dynamic_shapes=({0: "rows", 1: "columns"},))
    for actual, expected in zip(program(x), model(x), strict=True):
        torch.testing.assert_close(actual, expected)
