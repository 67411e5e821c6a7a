"""Sizes that stay open where Python makes numbers of them, and questions about how many rows data leaves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from lengths_of_layers import steps_of_two
from torch import nn
from torch.export import Dim

from onnx_fx_export import CaptureError, DynamicShapeError, InvalidArgumentError, export
from onnx_fx_export.capture.strategies import STRATEGIES

ROWS = ({0: "rows"},)


class Model(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x[:, 0] > 0]


def reshaped(x: torch.Tensor) -> torch.Tensor:
    kept = positive(x)
    count = kept.shape[0]
    if count > 0:
        kept = kept.reshape(count, -1)
    kept = kept * 2
    if count > 0:
        kept = kept.reshape(count, 3, -1)
    return kept.flatten(1)


def empty_apart(x: torch.Tensor) -> torch.Tensor:
    kept = positive(x)
    if kept.shape[0] == 0:
        return x.new_zeros(3)
    return kept.sum(0)


def two_questions(x: torch.Tensor) -> torch.Tensor:
    kept, others = positive(x), torch.where(x[:, 1] < 0)[0]
    total = x.new_zeros(3)
    if kept.numel() > 0:
        total = total + kept.sum(0)
    if len(others) != 0:
        total = total - x[others].sum(0)
    return total


def of_the_first_few(x: torch.Tensor) -> torch.Tensor:
    kept = positive(x)[:4]
    return kept * 2 if kept.shape[0] > 0 else kept + 1


@pytest.mark.parametrize("function", [reshaped, empty_apart, two_questions, of_the_first_few])
def test_a_question_about_rows_whose_answers_make_no_difference(function: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    program = export(Model(function), (torch.randn(8, 3),), dynamic_shapes=ROWS)

    assert program.capture_strategy == "open-sizes"
    one = -torch.rand(5, 3)
    one[2] = 1
    for x in (torch.randn(8, 3), torch.randn(5, 3), -torch.rand(4, 3), torch.rand(20, 3), one):
        torch.testing.assert_close(program(x), function(x))


def test_sizes_may_all_be_static() -> None:
    program = export(Model(empty_apart), (torch.randn(8, 3),))
    for x in (torch.randn(8, 3), -torch.rand(8, 3)):
        torch.testing.assert_close(program(x), empty_apart(x))


def all_rows_instead(x: torch.Tensor) -> torch.Tensor:
    kept = positive(x)
    return x.sum(0) if kept.shape[0] == 0 else kept.sum(0)


def one_apart(x: torch.Tensor) -> torch.Tensor:
    kept = positive(x)
    return kept.sum(0) * (5 if kept.shape[0] == 1 else 1)


def one_of_two_apart(x: torch.Tensor) -> torch.Tensor:
    kept, others = positive(x), torch.where(x[:, 1] < 0)[0]
    return kept.sum(0) + (1 if others.shape[0] == 0 else 0)


def many_apart(x: torch.Tensor) -> torch.Tensor:
    kept = positive(x)
    return kept.sum(0) if kept.shape[0] > 500 else kept.mean(0)


def of_a_value(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() > 0 else x


@pytest.mark.parametrize("function", [all_rows_instead, one_apart, one_of_two_apart, many_apart, of_a_value])
def test_a_question_whose_answers_make_a_difference_is_refused(function: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(CaptureError):
        export(Model(function), (torch.randn(8, 3),), dynamic_shapes=ROWS, strategy="open-sizes")


def test_questions_are_tried_or_refused() -> None:
    with pytest.raises(CaptureError):
        export(Model(empty_apart), (torch.randn(8, 3),), dynamic_shapes=ROWS, trial_runs=False)
    with pytest.raises(CaptureError, match="would not be compared"):
        export(Model(empty_apart), (torch.randn(8, 3),), strategy="open-sizes", trial_runs=False)


def padded(x: torch.Tensor) -> torch.Tensor:
    wanted = int(math.ceil(float(x.shape[0]) / 4) * 4)
    return F.pad(x, (0, 0, 0, wanted - x.shape[0]))


def halved(x: torch.Tensor) -> torch.Tensor:
    assert isinstance(x.shape[0], int)
    return x[: int(x.shape[0] / 2)] * int("3") + float(x.shape[0])


@pytest.mark.parametrize("function", [padded, halved])
def test_int_and_float_keep_sizes_open(function: Callable[..., torch.Tensor]) -> None:
    program = export(Model(function), (torch.randn(8, 3),), dynamic_shapes=ROWS, strategy="open-sizes")
    for rows in (8, 5, 12, 31):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(program(x), function(x))


def in_one_piece(x: torch.Tensor) -> torch.Tensor:
    size = x.shape[0]
    return torch.cat([x[start : start + size] * (start + 2) for start in range(0, size, size)])


def in_halves(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[0] // 2
    assert isinstance(range(2), range)
    return torch.stack([x[start : start + half].sum(0) for start in range(0, 2 * half, half)])


@pytest.mark.parametrize("function", [in_one_piece, in_halves])
def test_a_range_of_sizes_has_as_many_steps_for_every_size(function: Callable[..., torch.Tensor]) -> None:
    program = export(Model(function), (torch.randn(8, 3),), dynamic_shapes=ROWS)
    assert program.capture_strategy == "open-sizes"
    for rows in (8, 5, 12, 31):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(program(x), function(x))


def in_fours(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[start : start + 4].sum(0) for start in range(0, x.shape[0], 4)])


def test_a_range_whose_steps_depend_on_a_size_is_refused() -> None:
    with pytest.raises((CaptureError, DynamicShapeError)):
        export(Model(in_fours), (torch.randn(8, 3),), dynamic_shapes=ROWS, strategy="open-sizes")


def scaled(x: torch.Tensor) -> torch.Tensor:
    """Resize an image as detection models do: its shorter side, unless the longer one becomes too long."""
    shorter, longer = min(x.shape), max(x.shape)
    factor = min(7 / shorter, 9 / longer)
    return F.interpolate(x[None, None], scale_factor=factor, recompute_scale_factor=True, mode="bilinear")[0, 0]


def of_a_given_height(x: torch.Tensor) -> torch.Tensor:
    """Bring an image to a height; the number that ``int`` makes of it holds for each image that it fits."""
    return F.pad(x, (0, 0, 0, 20 - int(x.shape[0] * min(7 / min(x.shape), 9 / max(x.shape)))))


@pytest.mark.filterwarnings("ignore:The model is right for a part")
def test_numbers_that_hold_for_some_sizes_are_kept_open() -> None:
    model, example = Model(of_a_given_height), torch.randn(8, 10)
    shapes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
    program = export(model, (example,), dynamic_shapes=shapes)
    assert program.capture_strategy == "open-sizes"
    for shape in ((8, 10), (6, 8), (5, 30), (7, 7), (13, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x), model(x))
    restricted = export(model, (example,), dynamic_shapes=shapes, trial_runs=False)
    assert restricted.capture_strategy == "non-strict"
    with pytest.raises(InvalidArgumentError):
        restricted(torch.randn(13, 4))


@pytest.mark.filterwarnings("ignore:The model is right for a part")
def test_numbers_that_hold_for_some_sizes_are_kept_open_before_other_ways_are_tried(monkeypatch) -> None:
    tried = []
    for name, one in STRATEGIES.items():
        noting = lambda attempts, one=one: (tried.append(one.name), one.record(attempts))[1]  # noqa: E731
        monkeypatch.setitem(STRATEGIES, name, dataclasses.replace(one, record=noting))
    shapes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
    assert export(Model(of_a_given_height), (torch.randn(8, 10),), dynamic_shapes=shapes)
    assert tried == ["non-strict", "open-sizes"]


def best(x: torch.Tensor) -> torch.Tensor:
    return x.flatten().topk(min(20, x.numel()))[0]


@pytest.mark.parametrize("function", [scaled, best])
@pytest.mark.filterwarnings("ignore:The model is right for a part")
def test_the_smaller_of_two_sizes_may_be_either(function: Callable[..., torch.Tensor]) -> None:
    program = export(Model(function), (torch.randn(8, 6),), dynamic_shapes=({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},))
    assert program.capture_strategy == "non-strict"
    for shape in ((8, 6), (6, 8), (5, 3), (7, 7), (13, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x), function(x))


def test_an_operator_of_a_library_may_find_nothing() -> None:
    """What describes an operator in torch's older way takes its number of rows for 2 or more, as torchvision does."""
    library = torch.library.Library("test_open_sizes", "DEF")
    library.define("above(Tensor x) -> Tensor")
    library.impl("above", lambda x: torch.nonzero(x > 1)[:, 0], "CPU")

    @torch.library.register_fake("test_open_sizes::above", lib=library)
    def fake(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(torch.library.get_ctx().create_unbacked_symint(), dtype=torch.int64)

    def function(x: torch.Tensor) -> torch.Tensor:
        found = torch.ops.test_open_sizes.above(x)
        return x - 1 if found.shape[0] == 0 else x + 1

    with pytest.raises(CaptureError):
        export(Model(function), (torch.randn(8),), strategy="open-sizes")


def test_functions_of_other_files_keep_sizes_open() -> None:
    class Halved(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, : steps_of_two(x.shape[1])] * 2

    program = export(Halved(), (torch.randn(2, 8),), dynamic_shapes=({1: "length"},), strategy="open-sizes")
    for length in (4, 9, 13):
        x = torch.randn(2, length)
        torch.testing.assert_close(program(x), Halved()(x))
