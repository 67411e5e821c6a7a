"""Answers about sizes that torch draws from others, and not from a guard, are conditions of a program."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
import torch
import torch.nn.functional as F

from onnx_fx_export import InvalidArgumentError, ONNXProgram, export


class PadsAndAsks(torch.nn.Module):
    def forward(self, x):
        rest = -x.shape[1] % 3
        x = F.pad(x, (0, 0, 0, rest))[:, : x.shape[1]]
        if rest:
            x = x[:, :1] * 2
        return x + 1


class AsksForAllElements(torch.nn.Module):
    def forward(self, x):
        if x.shape[1] > 3:
            x = x * 2
        return x.relu() if x.shape[0] * x.shape[1] > 6 else x


class AsksForBoth(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[:2] == (2, 5) else x


class CutsWhatIsLongEnough(torch.nn.Module):
    def forward(self, x):
        if x.shape[1] >= 2 * x.shape[0]:
            return x[:, :4].sum(1, keepdim=True) + x[:, :4].shape[1]
        return x


class TurnsWhatHasSeveral(torch.nn.Module):
    def forward(self, x):
        return x.flip(1) if sum(x.shape[:2]) > 3 else x


MODELS = [PadsAndAsks(), AsksForAllElements(), AsksForBoth(), CutsWhatIsLongEnough(), TurnsWhatHasSeveral()]


def right_sizes(
    program: ONNXProgram, model: torch.nn.Module, rows: Iterable[int], steps: Iterable[int]
) -> list[tuple[int, int]]:
    """Return the sizes that a program takes, at each of which it gives what the model gives."""
    found = []
    for size in itertools.product(rows, steps):
        x = torch.randn(*size, 4)
        try:
            result = program(x)
        except InvalidArgumentError:
            continue
        torch.testing.assert_close(result, model(x))
        found.append(size)
    return found


@pytest.mark.parametrize("steps", [3, 4])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_an_answer_that_torch_draws_from_others_is_a_condition(model: torch.nn.Module, steps: int) -> None:
    """That of how tensors lie in memory, or of sizes of 2 and more: it leaves no guard of its own."""
    # What has two rows, torch would take for the only number of them.
    example = torch.randn(3 if isinstance(model, AsksForBoth) else 2, steps, 4)
    program = export(model, (example,), dynamic_shapes=({0: "rows", 1: "steps"},))
    assert len(right_sizes(program, model, range(1, 4), range(1, 10))) >= 8


class AsksForSeveral(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[1] in (4, 5) else x - 1


class AsksForNeither(torch.nn.Module):
    def forward(self, x):
        return x * 2 if not (x.shape[1] == 4 or x.shape[1] > 8) else x - 1


@pytest.mark.parametrize("strategy", [None, "strict"])
@pytest.mark.parametrize("steps", [6, 7, 9])
@pytest.mark.parametrize("model", [AsksForSeveral(), AsksForNeither()], ids=lambda model: type(model).__name__)
def test_an_answer_about_several_sizes_is_a_condition(model: torch.nn.Module, steps: int, strategy: str | None) -> None:
    """Dynamo notes it as what does not hold."""
    program = export(model, (torch.randn(3, steps, 4),), dynamic_shapes=({0: "rows", 1: "steps"},), strategy=strategy)
    found = right_sizes(program, model, range(1, 4), range(1, 12))
    assert [rows for rows, size in found if size == steps] == [1, 2, 3]


class CutsOne(torch.nn.Module):
    def forward(self, x):
        x = x[:, :6] if x.shape[0] == 1 else x
        return x * 2


class ScalesOneThatIsLong(torch.nn.Module):
    def forward(self, x):
        return x * 3 if x.shape[0] == 1 and x.shape[1] > 7 else x * 2


@pytest.mark.parametrize("steps", [4, 6])
@pytest.mark.parametrize("model", [CutsOne(), ScalesOneThatIsLong()], ids=lambda m: type(m).__name__)
def test_an_agreement_at_size_1_is_one_for_other_sizes_of_other_dimensions(model: torch.nn.Module, steps: int) -> None:
    """What the code does at size 1 alone may make no difference beside the sizes of the example."""
    program = export(model, (torch.randn(3, steps, 4),), dynamic_shapes=({0: "rows", 1: "steps"},))
    assert len(right_sizes(program, model, range(1, 4), range(1, 14))) >= 26


class ScalesOneOfAnotherParity(torch.nn.Module):
    def forward(self, x):
        rows, steps = x.shape[:2]
        x = x.flip(1) if rows % 2 == steps % 2 and steps % 3 == 0 else x
        return x * 3 if rows == 1 else x * 2


def test_a_size_of_1_that_is_never_tried_is_refused() -> None:
    """Beside the steps of the example, one row breaks another condition."""
    model = ScalesOneOfAnotherParity()
    program = export(model, (torch.randn(6, 6, 4),), dynamic_shapes=({0: "rows", 1: "steps"},))
    assert len(right_sizes(program, model, range(1, 7), range(1, 13))) >= 10
