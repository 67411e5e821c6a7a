"""What loops over a dynamic number of steps carry, and conditions on the number of a step."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from right_or_refused import check_right_or_refused
from torch.utils import _pytree as pytree

from onnx_fx_export import export

OUTSIDE = torch.randn(3)
State = namedtuple("State", "hidden cell")


class Cells(torch.nn.Module):
    """States in tuples, lists and dicts, some of which begin as None."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTMCell(3, 3)
        self.layers = torch.nn.ModuleList([torch.nn.GRUCell(3, 3) for _ in range(2)])


class Tuples(Cells):
    def forward(self, x):
        state, outputs = None, []
        for part in x.unbind(1):
            state = self.lstm(part, state)
            outputs.append(state[0])
        other = State(*state)
        for t in range(x.shape[1]):
            h, c = self.lstm(x[:, t], (other.hidden, other.cell))
            other = State(h, c)
        return torch.stack(outputs, 1), other


class Lists(Cells):
    def forward(self, x):
        states, outputs = [torch.zeros_like(x[:, 0]) for _ in self.layers], []
        for t in range(x.shape[1]):
            new = x[:, t]
            for number, layer in enumerate(self.layers):
                states[number] = layer(new, states[number])
                new = states[number]
            outputs.append(new)
        return torch.stack(outputs, 1), states


class Dicts(Cells):
    def forward(self, x):
        state = {"h": x[:, 0], "sums": [x[:, 0], x[:, 0] * 2]}
        for t in range(x.size(1)):
            state["h"] = torch.tanh(state["h"] + x[:, t])
            state["sums"] = [each + state["h"] for each in state["sums"]]
        return state


def first_is_other(x):
    outputs = []
    for t in range(x.shape[1]):
        if t == 0:
            state = x[:, 0] * 2
        else:
            state = torch.tanh(state + x[:, t])
        outputs.append(state)
    return torch.stack(outputs, 1), state


def none_is_other(x):
    state, outputs = None, []
    for t in range(x.shape[1]):
        state = x[:, t] if state is None else 0.5 * state + x[:, t]
        outputs.append(state)
    return torch.stack(outputs, 1), state


def last_is_other(x):
    state, length = x[:, 0], x.shape[1]
    for t in range(length):
        state = torch.tanh(state + x[:, t])
        if t < length - 1:
            state = state * 2
    return state


def by_turns(x):
    state, even, odd = x[:, 0], 0.0, torch.zeros(3)
    for t in range(x.shape[1]):
        state = state + x[:, t] if t % 2 == 0 else state * 0.5
        if t % 3 == 0:
            even = even + state.sum()
        elif t == 7:
            state = state * 2
        elif t % 3 == 1:
            odd = odd - state.sum(0)
        else:
            kept = state * 2
            odd = odd + kept.sum(0)
    return state, even, odd


def in_place_under_conditions(x):
    state, total = x[:, 0] * 1, torch.zeros(3)
    for t, row in enumerate(x.transpose(0, 1)):
        if t > 2:
            state += row
            total[1] += row.sum()
        else:
            state *= 0.5
    return state, total


def one_before(x):
    outputs = []
    for t in range(x.shape[1]):
        before = outputs[-1] if t > 0 else torch.zeros(x.shape[0], 3)
        outputs.append(torch.tanh(before + x[:, t]))
    return torch.stack(outputs, 1)


def windows(x):
    padded, outputs, result = torch.nn.functional.pad(x, (0, 0, 1, 1)), [], torch.zeros(x.shape[0], 2 * x.shape[1])
    for t in range(x.shape[1]):
        outputs.append(padded[:, t : t + 3].mean(1))
        result[:, 2 * t : (t + 1) * 2] = x[:, t, :2]
    return torch.stack(outputs, 1), result


def counted(x):
    state, other, t, k = x[:, 0], x[:, 0], 0, x.shape[1]
    while t < x.shape[1]:
        state = torch.tanh(state + x[:, t])
        t += 1
    while k > 0:
        other = other * 0.5 + x[:, k - 1]
        k -= 1
    return state, other


def counter_behind(x):
    total = x[:, 0] * 0
    for t in range(x.shape[1]):
        total = total + x[:, t]
        last = total * 2
    return total / (t + 1), last


def views_of_one_tensor(x):
    first, pair, outputs = x[:, 0], (x[:, 0], x[:, -1]), []
    state = first
    for t, row in enumerate(x.transpose(0, 1)):
        state = torch.tanh(state + first * row + pair[1])
        outputs.append(state + x[:, t] - pair[0])
    return torch.stack(outputs, 1)


def numbered_pairs(x):
    state, total = x[:, 0], 0.0
    for t, (row, other) in enumerate(zip(x.transpose(0, 1), x.flip(1).unbind(1), strict=True)):
        state = torch.tanh(state + row * OUTSIDE) if t > 1 else other
        total = total + state.sum() * t
    for number, (name, value) in enumerate(zip("ab", (1, 2), strict=True)):
        total = total + number * value + len(name)
    return state, total


STATES = (Tuples().eval(), Lists().eval(), Dicts().eval(), views_of_one_tensor)
CONDITIONS = (first_is_other, none_is_other, last_is_other, by_turns, in_place_under_conditions, one_before)
COUNTERS = (windows, counted, counter_behind, numbered_pairs)


@pytest.mark.parametrize(
    "model", [*STATES, *CONDITIONS, *COUNTERS], ids=lambda model: getattr(model, "__name__", type(model).__name__)
)
def test_loops_stay_dynamic(model) -> None:
    program = export(model, (torch.randn(2, 5, 3),), dynamic_shapes=({0: "batch", 1: "length"},))
    assert program.capture_strategy == "size-loops"
    for shape in ((2, 5, 3), (1, 1, 3), (3, 2, 3), (2, 9, 3)):
        x = torch.randn(shape)
        with torch.no_grad():
            expected = pytree.tree_leaves(model(x.clone()))
        torch.testing.assert_close(pytree.tree_leaves(program(x)), expected, rtol=1e-4, atol=1e-5)


def set_late(x):
    found, state = None, x[:, 0]
    for t in range(x.shape[1]):
        state = state + x[:, t]
        if t == 40:
            found = state
    return state if found is None else found


def flagged_late(x):
    flag, state = False, x[:, 0]
    for t in range(x.shape[1]):
        state = state + x[:, t]
        if t == 40:
            flag = True
    return state * 2 if flag else state


def grows(x):
    outputs = []
    for t in range(x.shape[1]):
        outputs.append(x[:, : t + 1].mean(1))
    return torch.stack(outputs, 1)


def adds_at_times(x):
    outputs = []
    for t in range(x.shape[1]):
        if t % 2 == 0:
            outputs.append(x[:, t])
    return torch.stack(outputs, 1)


def counter_of_while(x):
    t, state = 0, x[:, 0]
    while t < x.shape[1]:
        state = state + x[:, t]
        t += 2
    return state * t


def number_at_first(x):
    number, state = 0.0, x[:, 0]
    for t in range(x.shape[1]):
        state = (number - number) * 0.3
        number = number + x[:, t]
    return torch.as_tensor(state), number


@pytest.mark.parametrize("model", [number_at_first, set_late, flagged_late, grows, adds_at_times, counter_of_while])
def test_others_are_right_or_refused(model) -> None:
    check_right_or_refused(model, (1, 2, 5, 8, 39, 40, 41, 42, 60))
