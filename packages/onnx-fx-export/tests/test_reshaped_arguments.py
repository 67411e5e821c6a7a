"""Models that change the shape of an argument in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from onnx_fx_export import export

Function = Callable[..., torch.Tensor]


class Called(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor, pair: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.function(x, **pair)


def a_channel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.unsqueeze_(1)
    return x * y.sum(0)


def a_nested_argument(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y.t_()


def rows_and_columns(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.transpose_(0, 1)
    return x + y[0, 0]


def what_is_written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    shown = x[1:]
    x.unsqueeze_(0)
    x[0, -1] = 7
    return shown + y.swapaxes_(0, 1).sum()


@pytest.mark.filterwarnings("ignore:The model changes its input")
@pytest.mark.parametrize("function", [a_channel, a_nested_argument, rows_and_columns, what_is_written])
def test_shapes_of_arguments_change_in_place(function: Function) -> None:
    model = Called(function)
    x, y = torch.randn(4, 3), torch.randn(4, 3)

    program = export(model, (x, {"y": y}), dynamic_shapes=({0: "n"}, {"y": {0: "n"}}), state="io")

    assert x.shape == y.shape == (4, 3)
    for rows in (1, 2, 4, 7):
        x, y = torch.randn(rows, 3), torch.randn(rows, 3)
        wanted = model(x.clone(), {"y": y.clone()})
        torch.testing.assert_close(program(x.clone(), {"y": y.clone()}), wanted)


def test_other_tensors_are_reshaped_without_a_second_capture() -> None:
    calls = []

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return (x * 1).unsqueeze_(0) + y

    export(Called(function), (torch.randn(4, 3), {"y": torch.randn(4, 3)}), trial_runs=False)
    usual = len(calls)
    export(
        Called(lambda x, y: calls.append(1) or x + y), (torch.randn(4, 3), {"y": torch.randn(4, 3)}), trial_runs=False
    )
    assert len(calls) == 2 * usual
