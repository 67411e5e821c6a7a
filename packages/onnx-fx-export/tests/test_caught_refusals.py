"""Models that catch whatever is raised do not catch what torch refuses while it captures them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from onnx_fx_export import CaptureError, DynamicShapeError, export


class Called(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def by_a_condition(x: Tensor) -> Tensor:
    try:
        if (x < 0).any():
            raise ValueError
        return x * 2
    except Exception:
        return x - 1


def by_a_number(x: Tensor) -> Tensor:
    try:
        large = x.max().item() > 0.5
    except Exception:
        large = False
    return x * 2 if large else x


def by_an_integer(x: Tensor) -> Tensor:
    try:
        count = int(x.max() * 3)
    except Exception:
        count = 7
    return x * count


def by_a_list(x: Tensor) -> Tensor:
    try:
        first = x[:, 0].tolist()[0]
    except Exception:
        first = 7.0
    return x * first


def in_the_end(x: Tensor) -> Tensor:
    result = x - 1
    try:
        if x.sum() > 0:
            result = x * 2
    finally:
        return result


FUNCTIONS = [by_a_condition, by_a_number, by_an_integer, by_a_list, in_the_end]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("strategy", [None, "non-strict"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_code_would_catch_is_right_or_refused(function: Callable[[Tensor], Tensor], strategy: str | None) -> None:
    model = Called(function)
    try:
        program = export(model, (torch.rand(5, 3),), dynamic_shapes=({0: "rows"},), strategy=strategy)
    except (CaptureError, DynamicShapeError):
        return
    for x in (torch.rand(5, 3) / 10, torch.rand(5, 3) + 1, -torch.rand(5, 3)):
        torch.testing.assert_close(program(x), model(x))


def test_a_condition_that_code_around_it_may_catch_keeps_both_answers() -> None:
    program = export(Called(by_a_condition), (torch.rand(5, 3),), dynamic_shapes=({0: "rows"},))
    assert program.capture_strategy == "both-ways"


def test_exceptions_of_eager_code_are_caught_as_they_are_there() -> None:
    def function(x: Tensor) -> Tensor:
        try:
            return x.reshape(-1, 7)
        except RuntimeError:
            return x * 2

    program = export(Called(function), (torch.rand(5, 3),))
    x = torch.rand(5, 3)
    torch.testing.assert_close(program(x), function(x))
