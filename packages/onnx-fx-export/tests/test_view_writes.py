"""Writes to views of tensors that are read later: taken apart here where each view is known, and by torch elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

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
