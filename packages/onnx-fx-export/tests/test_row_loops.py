"""Loops over rows whose number the data decides, as mixtures of experts have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from onnx_fx_export import CaptureError, export

ROWS = ({0: "rows"},)


class Model(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def positive(x: torch.Tensor) -> torch.Tensor:
    return torch.nonzero(x[:, 0] > 0)[:, 0]


def written(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for row in positive(x):
        out[row] = x[row] * 2
    return out + 1


def accumulated(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total, product = x.new_zeros(3), torch.ones(())
    for row in positive(x):
        part = x[row]
        total = total * 0.5 + part
        product = product * part.sum()
    return total, product


def decided(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for row in positive(x):
        if x[row].sum() > 1:
            continue
        if x[row, 1] > 0:
            out.index_add_(0, row.reshape(1), x[row : row + 1])
        else:
            out.index_add_(0, row.reshape(1), -x[row : row + 1])
    return out


def decided_late(x: torch.Tensor) -> torch.Tensor:
    out, total = torch.zeros_like(x), x.new_zeros(3)
    for row in positive(x):
        out.index_add_(0, row.reshape(1), x[row : row + 1])
        total = total + out[row]
        if total[1] > 0:
            out.mul_(2)
        if total[2] > 0:
            total = total - 1
    return out + total


def of_sizes(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(len(x.shape), 3)
    for row in positive(x):
        smaller = torch.where(x[:, 1] < x[row, 1])[0]
        if smaller.shape[0] == 0:
            continue
        out.index_add_(0, torch.zeros_like(smaller), x[smaller])
    return out


def twice(x: torch.Tensor) -> torch.Tensor:
    total = x.new_zeros(3)
    for row in positive(x):
        part = x[row]
        total = total + part
    for row in positive(-x):
        part = x[row].abs()
        total = total * part
    return total


def of_plain_numbers(x: torch.Tensor) -> torch.Tensor:
    """Experts whose number is read as one of Python."""
    weights, out = torch.arange(36.0).view(4, 3, 3) / 9, torch.zeros_like(x)
    chosen = x.argmax(1) + (x[:, 0] > 0)
    for expert in torch.nonzero(torch.bincount(chosen, minlength=5)):
        number = int(expert.item())
        rows = torch.where(chosen == number)[0]
        if rows.numel() == 0:
            continue
        part = x[rows] if number >= 4 or number == 1 else x[rows] @ weights[number]
        out.index_add_(0, rows, part)
    return out


def numbered(x: torch.Tensor) -> torch.Tensor:
    kept = x[x[:, 0] > 0]
    out = torch.zeros(len(kept), 2, 3)
    for number in range(len(kept)):
        out[number, 0, :] = kept[number] * 2
        out[number, 1] = number
        out[number, 1, 2] = kept[number, 1]
    return out


def resized(x: torch.Tensor) -> torch.Tensor:
    """Each row in a size of its own, as heat maps of keypoints are in that of their box."""
    kept = x[x[:, 0] > 0]
    best = torch.zeros(len(kept), 2)
    for number in range(len(kept)):
        width = int((kept[number, 2].abs() * 8).ceil().item())
        row = F.interpolate(kept[number][None, None], size=width + 2, mode="linear")[0, 0]
        best[number, 0] = row.argmax() / width
        best[number, 1] = row.sum()
    # torch traces the loop again, without writes.
    shifted = best + 1
    shifted.view(-1)[:1].mul_(2)
    return shifted


def written_through_a_view(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for row in positive(x):
        out[row] = x[row] * 2
    out.view(-1)[1] = 5
    return out


@pytest.mark.parametrize(
    "function",
    [
        *(written, accumulated, decided, decided_late, of_sizes, twice, of_plain_numbers),
        *(numbered, resized, written_through_a_view),
    ],
)
def test_a_loop_over_rows(function: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    program = export(Model(function), (torch.randn(6, 3),), dynamic_shapes=ROWS)

    assert program.capture_strategy == "row-loops"
    assert {node.op_type for node in program.model.graph} & {"Scan", "Loop"}
    for x in (torch.randn(6, 3), torch.randn(11, 3), torch.randn(2, 3), -torch.rand(4, 3)):
        torch.testing.assert_close(program(x), function(x), rtol=1e-5, atol=1e-6)


def traced_again(*results: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Write so that torch traces the program again, without writes, for which it wants control flow without aliases."""
    first = results[0] + 1
    first.view(-1)[:1].mul_(2)
    return first, *results


def of_views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    kept = x[x[:, 0] > 0]
    left, right, out = kept[:, 1], kept[:, 2], torch.zeros(len(kept))
    for number in range(len(kept)):
        out[number] = left[number] - right[number]
    return traced_again(out)


def handed_out(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    last, before, start = x.new_zeros(3), x.new_zeros(3), x.new_zeros(2)
    for row in x[x[:, 0] > 0]:
        before = last
        last = row
        start = row[:2]
    return traced_again(last, before, start)


def handed_out_by_a_branch(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    last, end = x.new_zeros(3), x.new_zeros(2)
    for row in x[x[:, 0] > 0]:
        if row[1] > 0:
            last = row
            end = row[1:]
        else:
            end = last[1:]
    return traced_again(last, end)


def one_under_two_names(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    total = other = x.new_zeros(3)
    for row in x[x[:, 0] > 0]:
        total = total + row
        other = total
    return traced_again(total, other)


@pytest.mark.parametrize("function", [of_views, handed_out, handed_out_by_a_branch, one_under_two_names])
def test_a_loop_that_hands_out_what_it_is_given(function: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    program = export(Model(function), (torch.randn(6, 3),), dynamic_shapes=ROWS, strategy="row-loops")

    for x in (torch.randn(6, 3), torch.randn(11, 3), -torch.rand(4, 3)):
        torch.testing.assert_close(program(x), function(x), rtol=1e-5, atol=1e-6)


def behind_a_question(x: torch.Tensor) -> torch.Tensor:
    kept = x[x[:, 0] > 0]
    if kept.shape[0] > 0:
        kept = kept * 2
    out = torch.zeros(len(kept), 3)
    for number in range(len(kept)):
        out[number] = kept[number].cumsum(0)
    return out


def test_a_loop_behind_a_question_about_the_number_of_rows() -> None:
    torch.manual_seed(0)
    program = export(Model(behind_a_question), (torch.randn(6, 3),), dynamic_shapes=ROWS)

    assert program.capture_strategy == "open-sizes"
    for x in (torch.randn(6, 3), torch.randn(11, 3), -torch.rand(4, 3)):
        torch.testing.assert_close(program(x), behind_a_question(x), rtol=1e-5, atol=1e-6)


def left_by_break(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for row in positive(x):
        out[row] = x[row]
        if x[row].sum() > 1:
            break
    return out


def counted(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for number, row in enumerate(positive(x)):
        out[row] = x[row] * number
    return out


def listed(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[row] * 2 for row in positive(x)])


def last(x: torch.Tensor) -> torch.Tensor:
    found = [x.new_zeros(3)]
    for row in positive(x):
        found.append(found[-1] + x[row])
    return found[-1]


def from_outside(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Over no rows, the two are different."""
    first, found = x[0] * 2, x.new_zeros(3)
    for _ in positive(x):
        found = first
    return found + 1, first + 1


def one_end_of_two(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    other, total = x.new_ones(3), x.new_zeros(3)
    for row in positive(x):
        total = total + x[row]
        other = total
    return total + 1, other + 1


def test_a_loop_that_ends_early_is_right_or_refused() -> None:
    torch.manual_seed(0)
    try:
        program = export(Model(left_by_break), (torch.randn(6, 3),), dynamic_shapes=ROWS)
    except CaptureError:
        return
    for rows in (1, 2, 6, 9) * 5:
        x = torch.randn(rows, 3)
        torch.testing.assert_close(program(x), left_by_break(x))


@pytest.mark.parametrize("function", [counted, listed, last])
def test_a_loop_that_does_more_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(CaptureError):
        export(Model(function), (torch.randn(6, 3),), dynamic_shapes=ROWS)


@pytest.mark.parametrize("function", [from_outside, one_end_of_two])
def test_variables_that_differ_over_no_rows_alone_are_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(CaptureError, match="two variables stand for one tensor"):
        export(Model(function), (torch.randn(6, 3),), dynamic_shapes=ROWS, strategy="row-loops")


class Experts(nn.Module):
    """A mixture of experts that runs those that are chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.up, self.down = nn.Parameter(torch.randn(4, 8, 12)), nn.Parameter(torch.randn(4, 12, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(2, -1)
        mask = nn.functional.one_hot(chosen, 5).permute(2, 1, 0)
        out = torch.zeros_like(tokens)
        for expert in (mask.sum((-1, -2)) > 0).nonzero():
            expert = expert[0]
            if expert == 4:
                continue
            place, token = torch.where(mask[expert])
            part = nn.functional.silu(tokens[token] @ self.up[expert]) @ self.down[expert]
            out.index_add_(0, token, part * weights[token, place, None])
        return out.view(x.shape)


def test_a_mixture_of_experts() -> None:
    torch.manual_seed(0)
    model = Experts().eval()
    program = export(model, (torch.randn(2, 3, 8),), dynamic_shapes=({0: "batch", 1: "time"},))
    for sizes in ((2, 3), (3, 7), (1, 1)):
        x = torch.randn(*sizes, 8)
        torch.testing.assert_close(program(x), model(x).detach(), rtol=1e-4, atol=1e-5)


def test_a_mixture_of_experts_of_one_size() -> None:
    model = Experts().eval()
    program = export(model, (torch.randn(2, 3, 8),))
    for _ in range(3):
        x = torch.randn(2, 3, 8)
        torch.testing.assert_close(program(x), model(x).detach(), rtol=1e-4, atol=1e-5)


def test_what_cannot_be_compared_is_not_taken() -> None:
    with pytest.raises(CaptureError, match="would not be compared"):
        export(Model(written), (torch.randn(6, 3),), strategy="row-loops", trial_runs=False)
