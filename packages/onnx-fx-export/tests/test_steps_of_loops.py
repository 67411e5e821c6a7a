"""What steps of loops over a dynamic number of them do: end early, read their neighbours, ask data, keep attributes."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from right_or_refused import check_right_or_refused
from torch.utils import _pytree as pytree

from onnx_fx_export import OnnxExporterError, export


def previous_row(x):
    state, outputs = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        before = x[:, t - 1] if t > 0 else torch.zeros_like(x[:, 0])
        state = torch.tanh(state + x[:, t] - before)
        outputs.append(state)
    return torch.stack(outputs, 1)


def next_row(x):
    state, length = x[:, 0], x.shape[1]
    for t in range(length):
        if t < length - 1:
            state = state * x[:, t + 1]
        state = state + x[:, -1 - t]
    return state


def filter_of_second_order(x):
    result = torch.zeros_like(x)
    for t in range(x.shape[1]):
        if t >= 2:
            result[:, t] = result[:, t - 1] * 0.5 + result[:, t - 2] * 0.25 + x[:, t]
        else:
            result[:, t] = x[:, t]
    return result


def window_in_the_middle(x):
    state, length = x[:, 0], x.shape[1]
    for t in range(length):
        if 0 < t < length - 1 and not t == 3:
            state = state + x[:, t - 1 : t + 2].mean(1)
        elif t == 3 or t == length - 1:
            state = state * 0.5
    return state


def places_within_bounds(x):
    state, length = x[:, 0], x.shape[1]
    for t in range(length):
        state = (
            state * 0.5 + x[:, max(t - 2, 0)] + x[:, min(t + 1, length - 1)] + x[:, int(t / 2)] + x[:, (3 * t) % length]
        )
    return state


def positions(x):
    table = torch.zeros(x.shape[1], 4)
    for place in range(x.shape[1]):
        for i in range(0, 4, 2):
            table[place, i] = math.sin(place / 100 ** (i / 4))
            table[place, i + 1] = math.cos(place / 100 ** (i / 4)) + math.floor(place / 2) + math.log(place + 1, 2)
    return x + table[:, :3]


def skipped(x):
    state = x[:, 0]
    for t in range(x.shape[1]):
        if t % 2:
            if t == 3:
                continue
            state = state * 0.5
        elif t == 4:
            continue
        state = torch.tanh(state + x[:, t])
    return state


def one_of_two_appended(x):
    state, outputs = x[:, 0], []
    for t in range(x.shape[1]):
        if t == 0:
            outputs.append(state)
            continue
        state = torch.tanh(state + x[:, t] - x[:, t - 1])
        if t % 2:
            outputs.append(state)
        else:
            state = state * 2
            outputs.append(x[:, t])
    return torch.stack(outputs, 1)


def left_at_a_step(x):
    state, last = x[:, 0], x[:, 0] * 0
    for t in range(x.shape[1]):
        if t == 3:
            break
        state = torch.tanh(state + x[:, t])
        last = state * t
    return state, last


def left_by_data(x):
    state, steps = x[:, 0] * 0, 0
    for row in x.unbind(1):
        if state.abs().sum() > 4:
            break
        if row.sum() < 0:
            continue
        state = state + row
        steps += 1
    return state, torch.as_tensor(steps)


def branches_on_data(x):
    state, outputs = x[:, 0], []
    for t in range(x.shape[1]):
        if x[:, t].sum() > 0 and t != 2:
            state = torch.tanh(state + x[:, t])
        else:
            state = state * 0.5 if state.mean() < 0.1 or t == 1 else state + 1
        outputs.append(state)
    return torch.stack(outputs, 1)


def size_and_counter(x):
    state = 1
    for t in range(x.shape[1]):
        state = state + x[:, t]
        if x.shape[1] > 4 and t > 1:
            state = state * 0.5
    return state


class Keeping(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.state, self.steps = None, 0

    def forward(self, x):
        self.state, self.steps, outputs = None, 0, []
        for t in range(x.shape[1]):
            self.state = x[:, t] if self.state is None else torch.tanh(self.linear(self.state) + x[:, t])
            self.steps += 1
            outputs.append(self.state * self.steps)
        return torch.stack(outputs, 1), self.state / self.steps


class Asking(Keeping):
    def next(self, row):
        return torch.tanh(self.linear(self.state) + row)

    def forward(self, x):
        self.state = x[:, 0]
        for t in range(x.shape[1]):
            self.state = self.next(x[:, t])
        return self.state


class Computing(Keeping):
    @property
    def doubled(self):
        return self.state * 2

    def forward(self, x):
        self.state = x[:, 0]
        for t in range(x.shape[1]):
            self.state = torch.tanh(self.doubled + x[:, t])
        return self.state


PLACES = (previous_row, next_row, filter_of_second_order, window_in_the_middle, places_within_bounds, positions)
ENDS = (skipped, one_of_two_appended, left_at_a_step, left_by_data)
OTHERS = (branches_on_data, Keeping().eval())


def check(program, model, *lengths) -> None:
    for length in lengths:
        for _ in range(3):
            x = torch.randn(3, length, 3)
            with torch.no_grad():
                expected = pytree.tree_leaves(model(x.clone()))
            torch.testing.assert_close(pytree.tree_leaves(program(x)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "model", [*PLACES, *ENDS, *OTHERS], ids=lambda model: getattr(model, "__name__", type(model).__name__)
)
def test_loops_stay_dynamic(model) -> None:
    program = export(model, (torch.randn(2, 5, 3),), dynamic_shapes=({0: "batch", 1: "length"},))
    assert program.capture_strategy == "size-loops"
    check(program, model, 5, 1, 2, 3, 9)


def test_a_condition_on_a_size_holds_for_the_sizes_of_the_program() -> None:
    program = export(size_and_counter, (torch.randn(2, 5, 3),), dynamic_shapes=({0: "batch", 1: "length"},))
    check(program, size_and_counter, 5, 8)
    with pytest.raises(OnnxExporterError, match="length >= 5"):
        program(torch.randn(2, 3, 3))


def test_a_place_beyond_the_end_is_an_error_as_in_pytorch() -> None:
    def chosen(x, places):
        state = x[:, 0]
        for t in range(places.shape[0]):
            state = state * 0.5 + x[:, places[t]]
        return state

    shapes = ({0: "batch", 1: "length"}, {0: "steps"})
    program = export(chosen, (torch.randn(2, 5, 3), torch.tensor([0, 2, -1])), dynamic_shapes=shapes)

    x, places = torch.randn(3, 4, 3), torch.tensor([3, -4, 1, 2, 0])
    torch.testing.assert_close(program(x, places), chosen(x, places))
    with pytest.raises(Exception, match="out of"):
        program(x, torch.tensor([0, 4]))


def appended_at_times(x):
    outputs = [x[:, 0]]
    for t in range(x.shape[1]):
        if t == 2:
            continue
        outputs.append(x[:, t])
    return torch.stack(outputs, 1)


def clipped_windows(x):
    outputs = []
    for t in range(x.shape[1]):
        outputs.append(x[:, max(t - 2, 0) : t + 1].mean(1))
    return torch.stack(outputs, 1)


def windows_over_the_end(x):
    state = x[:, 0]
    for t in range(x.shape[1]):
        state = state + x[:, t : t + 2].sum(1) + x[:, t - 1 : t + 1].sum(1)
    return state


def counter_where_it_was_left(x):
    for t in range(x.shape[1]):
        if t == 2:
            break
    return x[:, 0] * t


def without_an_end(x):
    for step in itertools.count():
        if step == 3:
            break
        x = x + 1
    for t in range(x.shape[1]):
        x = x + x[:, t : t + 1]
    return x


@pytest.mark.parametrize(
    "model",
    [
        without_an_end,
        appended_at_times,
        clipped_windows,
        windows_over_the_end,
        counter_where_it_was_left,
        *(Asking().eval(), Computing().eval()),
    ],
)
def test_others_are_right_or_refused(model) -> None:
    check_right_or_refused(model, (1, 2, 3, 5, 8))
