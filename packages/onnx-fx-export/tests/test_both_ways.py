"""Conditions that data decides are captured with both answers, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from onnx_fx_export import CaptureError, InvalidArgumentError, export

ROWS = ({0: "rows"},)


class Model(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear, x)


def returned(linear: nn.Module, x: torch.Tensor) -> Any:
    if x.sum() > 0:
        return x + 1
    return x


def with_constants(linear: nn.Module, x: torch.Tensor) -> Any:
    y = linear(x)
    if (y > 0.5).any():
        y = y * torch.tensor([2.0, 3.0, 4.0])
    else:
        y = y - torch.tensor([1.0, 1.0, 2.0])
    return torch.relu(y) + x, x.sum(1)


def of_a_mask(linear: nn.Module, x: torch.Tensor) -> Any:
    """FSMT's way to a mask that may be left out, and another question behind it."""
    mask: torch.Tensor | None = x > 0
    if not mask.all():  # type: ignore[union-attr]
        mask = None
    y = linear(x)
    if mask is not None:
        y = y.masked_fill(mask, 7.0)
    if y.max() > 1:
        y = y - 1
    return y.cumsum(0)


def remembered(linear: nn.Module, x: torch.Tensor) -> Any:
    """What one branch leaves in Python decides in another one."""
    factor = 1
    if x[0, 0] > 0:
        factor = 3
    if x[0, 1] > 0:
        x = x * factor
    return linear(x)


def nested(linear: nn.Module, x: torch.Tensor) -> Any:
    if x.mean() > 0:
        y = linear(x) * x.shape[0]
        if y.mean() > 0:
            y = y.reshape(x.shape[0] * 3)
            y = (y + 1).reshape(x.shape[0], 3)
    else:
        y = x.flip(0)
    return y.softmax(0)


def written(linear: nn.Module, x: torch.Tensor) -> Any:
    y = x * 2
    if x.mean() > 0:
        y[:, 1] = 5.0
    z = y + 1
    z[0] += x.shape[0]
    return z


def written_in_one_way(linear: nn.Module, x: torch.Tensor) -> Any:
    """A call that may return its operand is made before the question, and written to in one way alone."""
    counted = (x > 0).cumsum(0).type_as(x)
    y = (counted * x).type_as(counted)
    if x.mean() > 0:
        y[0] = 1.0
        return linear(y)
    return y * 2


def of_rows(linear: nn.Module, x: torch.Tensor) -> Any:
    kept = x[x[:, 0] > 0]
    return linear(x).sum(0) if kept.shape[0] == 0 else kept.sum(0) * (5 if kept.shape[0] == 1 else 1)


def of_a_number(linear: nn.Module, x: torch.Tensor) -> Any:
    number = x.abs().max().to(torch.int64).item()
    return x * number if number > 1 else x - number


def of_equal_constants(linear: nn.Module, x: torch.Tensor) -> Any:
    if x.sum() > 0:
        return linear(x) * torch.tensor([2.0, 3.0, 4.0]) - torch.tensor([2.0, 3.0, 4.0])
    return linear(x) / torch.tensor([2.0, 3.0, 4.0])


def of_whole_tensors(linear: nn.Module, x: torch.Tensor) -> Any:
    if torch.equal(x, x.abs()) or torch.allclose(x, -x.abs(), rtol=1e-3):
        return linear(x)
    return x + 1 if (x[0, 0] > 0).is_nonzero() else x


def of_numbers(linear: nn.Module, x: torch.Tensor) -> Any:
    if float(x.mean()) > 0.5 or 0.0 in x:
        return linear(x)
    return x * int(x[0, 0] > 0) if int(x.abs().max()) in (1, 2) else x - 1


def in_pairs(linear: nn.Module, x: torch.Tensor) -> Any:
    """One shape whose size each way computes in its own steps."""
    rows = x.shape[0] + x.shape[0] % 2
    padded = nn.functional.pad(x, (0, 0, 0, rows - x.shape[0]))
    if x.sum() > 0:
        return padded.view(rows // 2, 2, 3).flip(1).reshape(rows // 2 * 2, 3)
    return padded + 1


def inputs() -> list[torch.Tensor]:
    """Rows whose numbers are all negative, all positive, and of both signs."""
    torch.manual_seed(1)
    moved = [torch.randn(2 + index % 5, 3) + shift for index, shift in enumerate((-3.0, -1.0, 0.0, 1.0, 3.0) * 2)]
    one = -torch.ones(4, 3)
    one[2] = 1
    signs = [torch.randn(3, 3).abs() * torch.tensor([first, second, 1.0]) for first in (-1, 1) for second in (-1, 1)]
    return [*moved, one, *signs]


@pytest.mark.filterwarnings("error:The model was captured with both answers")
@pytest.mark.parametrize(
    "function",
    [
        *(returned, with_constants, of_a_mask, remembered, nested, written, written_in_one_way),
        *(of_rows, of_a_number),
        *(of_equal_constants, in_pairs, of_whole_tensors, of_numbers),
    ],
)
def test_both_ways_are_kept(function: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    model = Model(function).eval()
    program = export(model, (torch.randn(8, 3),), dynamic_shapes=ROWS)

    assert program.capture_strategy == "both-ways"
    assert "If" in [node.op_type for node in program.model.graph]
    for x in inputs():
        with torch.no_grad():
            expected = pytree.tree_leaves(model(x))
        for actual, wanted in zip(pytree.tree_leaves(program(x)), expected, strict=True):
            torch.testing.assert_close(actual, wanted)


def raising_on_nan(linear: nn.Module, x: torch.Tensor) -> Any:
    if torch.isnan(x).any():
        raise ValueError(f"{x.shape[0]} rows are not numbers")
    return linear(x) if x.sum() > 0 else x


def raising_beyond_bounds(linear: nn.Module, x: torch.Tensor) -> Any:
    if x.sum() > 0:
        assert x.min() > -100 and x.max() < 100, "too large"  # noqa: PT018
        return linear(x)
    torch._assert(x.max() < 1000, "too large")
    return x


def raising_for_an_index(linear: nn.Module, x: torch.Tensor) -> Any:
    index = x[:, 0].argmax()
    if not 0 <= index < x.shape[0]:
        raise IndexError(
            f"no row {x}",
        )
    return x[index]


@pytest.mark.parametrize(
    ("function", "strategy"),
    [(raising_on_nan, "both-ways"), (raising_beyond_bounds, "both-ways"), (raising_for_an_index, "non-strict")],
)
def test_ways_that_raise_are_left_out_and_named(function: Callable[..., Any], strategy: str) -> None:
    torch.manual_seed(0)
    model = Model(function).eval()
    with pytest.warns(UserWarning, match=r"raises an exception for some inputs, at\n.*test_both_ways.py:\d+\n"):
        program = export(model, (torch.randn(8, 3),), dynamic_shapes=ROWS)

    assert program.capture_strategy == strategy
    for x in inputs():
        with torch.no_grad():
            torch.testing.assert_close(program(x), model(x))


def test_a_model_that_raises_on_all_ways_is_refused() -> None:
    def function(linear: nn.Module, x: torch.Tensor) -> Any:
        if x.sum() > 0:
            raise ValueError("too large")
        raise ValueError("too small")

    with pytest.raises(CaptureError, match="too small"):
        export(Model(function), (torch.randn(8, 3),), dynamic_shapes=ROWS)


def left_early(linear: nn.Module, x: torch.Tensor) -> Any:
    for _ in range(10):
        if x.abs().max() < 1:
            break
        x = x / 2
    return x


def test_a_loop_of_ten_steps_is_left_when_the_data_says_so() -> None:
    model = Model(left_early)
    program = export(model, (torch.randn(8, 3),), dynamic_shapes=ROWS)

    assert program.capture_strategy == "both-ways"
    for size in (0.1, 1.0, 3.0, 60.0, 900.0, 10_000.0):
        x = torch.randn(5, 3) * size
        torch.testing.assert_close(program(x), model(x))


def in_twos_or_threes(linear: nn.Module, x: torch.Tensor) -> Any:
    count = 2 if x.sum() > 0 else 3
    return x + x.reshape(-1, count, 3).cumsum(1).sum((0, 1))


def of_other_sizes(linear: nn.Module, x: torch.Tensor) -> Any:
    return x if x.sum() > 0 else x[: (x.shape[0] + 7) // 2]


def test_ways_to_shapes_that_agree_for_small_sizes_only_are_refused() -> None:
    with pytest.raises(CaptureError):
        export(Model(of_other_sizes), (torch.randn(8, 3),), dynamic_shapes=ROWS)


def test_what_each_way_takes_for_granted_of_sizes_is_a_condition() -> None:
    model = Model(in_twos_or_threes).eval()
    program = export(model, (torch.randn(6, 3),), dynamic_shapes=ROWS)
    for rows in (12, 18):
        for x in (torch.rand(rows, 3), -torch.rand(rows, 3)):
            torch.testing.assert_close(program(x), model(x))
    for rows in (8, 9):
        with pytest.raises(InvalidArgumentError, match="rows"):
            program(torch.rand(rows, 3))


def with_positions(linear: nn.Module, x: torch.Tensor) -> Any:
    return x + linear.weight.repeat(4, 1)[: x.shape[0]] if x.sum() > 0 else x + 1  # type: ignore[operator]


def without_positions(linear: nn.Module, x: torch.Tensor) -> Any:
    return x + 1 if x.sum() > 0 else x + linear.weight.repeat(4, 1)[: x.shape[0]]  # type: ignore[operator]


@pytest.mark.parametrize("function", [with_positions, without_positions])
def test_a_bound_that_one_way_has_is_a_condition(function: Callable[..., Any]) -> None:
    model = Model(function).eval()
    program = export(model, (torch.randn(6, 3),), dynamic_shapes=ROWS)
    for x in (torch.rand(12, 3), -torch.rand(12, 3)):
        torch.testing.assert_close(program(x), model(x))
    with pytest.raises(InvalidArgumentError, match="rows <= 12"):
        program(torch.rand(13, 3))


def seldom_captured_as_it_runs(linear: nn.Module, x: torch.Tensor) -> Any:
    if x.abs().sum() > 1e3:
        x = x * (3 if torch.compiler.is_exporting() else 2)
    return linear(x)


def test_ways_that_random_numbers_do_not_take_are_compared_as_well() -> None:
    with pytest.raises(CaptureError, match="differs from the model where the data takes another path"):
        export(Model(seldom_captured_as_it_runs), (torch.randn(8, 3),), dynamic_shapes=ROWS, strategy="both-ways")


def of_a_weight(linear: Any, x: torch.Tensor) -> Any:
    return x + 1 if linear.weight.sum() > 1e3 else linear(x)


def test_a_way_that_no_input_takes_is_named() -> None:
    place = f"test_both_ways.py:{of_a_weight.__code__.co_firstlineno + 1}: true"
    with pytest.warns(UserWarning, match=place) as warned:
        program = export(Model(of_a_weight), (torch.randn(8, 3),), dynamic_shapes=ROWS)
    assert not any(": false" in str(each.message) for each in warned)
    assert program.capture_strategy == "both-ways"


def test_what_both_ways_do_behind_their_branches_is_written_once() -> None:
    model = Model(lambda linear, x: linear((x + 1 if x.sum() > 0 else x - 1).relu()).softmax(0))
    program = export(model, (torch.randn(8, 3),), dynamic_shapes=ROWS)
    assert [node.op_type for node in program.model.graph.all_nodes()].count("Softmax") == 1


def of_other_shapes(linear: nn.Module, x: torch.Tensor) -> Any:
    return x if x.sum() > 0 else x[:1]


def without_end(linear: nn.Module, x: torch.Tensor) -> Any:
    while x.sum() > 0:
        x = x - 1
    return x


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = nn.Buffer(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            self.count += 1
        return x * 2


class Remembering(nn.Module):
    """Leaves something in Python in one of the ways alone."""

    def __init__(self, remember: Callable[[nn.Module, torch.Tensor], None]) -> None:
        super().__init__()
        self.remember, self.calls, self.seen, self.kept = remember, 0, dict[str, torch.Tensor](), torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            self.remember(self, x)
        y = x * (self.calls + len(self.seen) + 1)
        if x[0, 0] > 0:
            y = y + self.kept
        return y


def count(model: Any, x: torch.Tensor) -> None:
    model.calls += 1


def fill(model: Any, x: torch.Tensor) -> None:
    model.seen["last"] = x


def keep(model: Any, x: torch.Tensor) -> None:
    model.kept = x[0]


REFUSED = {
    "other shapes": Model(of_other_shapes),
    "without end": Model(without_end),
    "a buffer": Counting(),
    "a number": Remembering(count),
    "a dictionary": Remembering(fill),
    "an attribute": Remembering(keep),
    "names of results": Model(lambda linear, x: {"high": x} if x.sum() > 0 else {"low": -x}),
    "kinds of results": Model(lambda linear, x: (x, x) if x.sum() > 0 else [x, -x]),
    "numbers among results": Model(lambda linear, x: (x, 1) if x.sum() > 0 else (x, 2)),
    "results left out": Model(lambda linear, x: (x, None) if x.sum() > 0 else (x, x)),
}


@pytest.mark.parametrize("model", REFUSED.values(), ids=REFUSED)
def test_ways_that_one_graph_cannot_hold_are_refused(model: nn.Module) -> None:
    with pytest.raises(CaptureError, match="The model branches on the values of a tensor"):
        export(model, (torch.randn(8, 3),), dynamic_shapes=ROWS)


def test_a_branch_of_no_consequence_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    def printing(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            _ = linear(x)
        return x + 1

    program = export(Model(printing), (torch.randn(8, 3),), dynamic_shapes=ROWS)
    assert [node.op_type for node in program.model.graph] == ["Add"]
    # torch.export prints what it had of the ways that it gave up.
    assert capfd.readouterr().err == ""


def test_nothing_is_kept_that_is_not_compared() -> None:
    with pytest.raises(CaptureError, match="The model branches on the values of a tensor"):
        export(Model(returned), (torch.randn(8, 3),), dynamic_shapes=ROWS, trial_runs=False)


class Beside(nn.Module):
    """Decides by data, and beside that computes a size that is one for the example."""

    def forward(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        between = weights[:-1]
        x = x + torch.outer(between, between).sum()
        return x + 1 if torch.nonzero(x[:, 0]).shape[0] > 1 else x - 1


def test_a_size_that_is_one_for_the_example_is_captured_at_larger_ones() -> None:
    model = Beside()
    program = export(model, (torch.randn(5, 3), torch.randn(2)), dynamic_shapes=({0: "rows"}, {0: "weights"}))
    for x in (torch.randn(4, 3), torch.zeros(3, 3)):
        for count in (2, 3, 6):
            weights = torch.zeros(count)
            torch.testing.assert_close(program(x, weights), model(x, weights))
