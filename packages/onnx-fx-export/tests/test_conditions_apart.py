"""Many conditions that data decides one after the other: right where they are independent, refused where not."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable

import pytest
import torch

from onnx_fx_export import export
from onnx_fx_export.errors import CaptureError

EXPERTS = 4


class Mixture(torch.nn.Module):
    def __init__(self, function: Callable[[Mixture, torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.experts = torch.nn.ModuleList([torch.nn.Linear(EXPERTS, EXPERTS) for _ in range(EXPERTS)])
        self.used = self._seen = False
        self.router = Router()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x, x > 0)


def rows_of_each(m, x, hit):
    found = torch.zeros_like(x)
    for number, expert in enumerate(m.experts):
        mask = hit[:, number]
        if not mask.any():
            continue
        found[mask] += expert(x[mask])
    return found


def two_branches(m, x, hit):
    for number, expert in enumerate(m.experts):
        x = torch.relu(expert(x)) if hit[:, number].any() else torch.tanh(x) - number
    return x


def what_was_computed(m, x, hit):
    found = x
    for number, expert in enumerate(m.experts):
        if (found[:, number] > 0).any():
            found = expert(found) + x
    return found


def an_entry_of_a_dict(m, x, hit):
    state = {"found": x, "count": 0}
    for number, expert in enumerate(m.experts):
        if hit[:, number].any():
            state["found"] = state["found"] + expert(x)
    return state["found"]


def answers(x: torch.Tensor) -> list[torch.Tensor]:
    """Return inputs for each combination of columns that are positive somewhere."""
    inputs = []
    for bits in range(2**EXPERTS):
        rows = -x[: 1 + bits % len(x)].abs() - 0.1
        for number in range(EXPERTS):
            if bits >> number & 1:
                rows[number % len(rows), number] = 1 + number
        inputs.append(rows)
    return inputs


@pytest.mark.parametrize("function", [rows_of_each, two_branches, what_was_computed, an_entry_of_a_dict])
def test_each_condition_is_kept(function: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    model = Mixture(function).eval()

    program = export(model, (torch.randn(6, EXPERTS),), dynamic_shapes=({0: "n"},), strategy="both-ways")

    for x in answers(torch.randn(6, EXPERTS)):
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)


def a_flag(m, x, hit):
    found, seen = x, False
    for number, expert in enumerate(m.experts):
        if hit[:, number].any():
            found, seen = found + expert(x), True
    return found if seen else found - 1


def an_attribute(m, x, hit):
    m.used = False
    for number, expert in enumerate(m.experts):
        if hit[:, number].any():
            x = x + expert(x)
            m.used = True
    found, m.used = x if m.used else x - 1, False
    return found


def a_count(m, x, hit):
    found = []
    for number, expert in enumerate(m.experts):
        if hit[:, number].any():
            found.append(expert(x))
    return sum(found) + x if len(found) == 2 else x * 0


def one_for_the_other(m, x, hit):
    one, other = x, x * 2
    for number, expert in enumerate(m.experts):
        if hit[:, number].any():
            one, other = other, one
        one = one + expert(other)
    return one


def the_last_one(m, x, hit):
    last = -1
    for number in range(EXPERTS):
        if hit[:, number].any():
            x, last = x + 1, number
    return x * last


def a_count_in_a_closure(m, x, hit):
    calls = [0]

    def called(expert, x):
        calls[0] += 1
        return expert(x)

    for number, expert in enumerate(m.experts):
        if hit[:, number].any():
            x = x + called(expert, x)
    return x + calls[0]


def a_private_attribute(m, x, hit):
    m._seen = False
    for number, expert in enumerate(m.experts):
        if hit[:, number].any():
            x = x + expert(x)
            m._seen = True
    found, m._seen = x if m._seen else x - 1, False
    return found


class Router(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.was_asked = False

    def forward(self, x):
        self.was_asked = True
        return x + 1


def an_attribute_of_a_part(m, x, hit):
    m.router.was_asked = False
    for number in range(EXPERTS):
        if hit[:, number].any():
            x = m.router(x)
    found, m.router.was_asked = x if m.router.was_asked else x - 1, False
    return found


def a_queue_deep_in_a_dict(m, x, hit):
    state = {"a": {"b": {"c": {"d": {"e": collections.deque(maxlen=1)}}}}}
    for number, expert in enumerate(m.experts):
        if hit[:, number].any():
            x = x + expert(x)
            state["a"]["b"]["c"]["d"]["e"].append(1)
    return x if state["a"]["b"]["c"]["d"]["e"] else x - 1


def a_counter(m, x, hit):
    calls = itertools.count()
    for number, expert in enumerate(m.experts):
        if hit[:, number].any():
            x = x + expert(x)
            next(calls)
    return x + next(calls)


_calls = 0


def _called(x):
    global _calls
    _calls += 1
    return x + 1


def _were_calls():
    return _calls > 0


def a_global_of_another_function(m, x, hit):
    global _calls
    _calls = 0
    for number in range(EXPERTS):
        if hit[:, number].any():
            x = _called(x)
    return x if _were_calls() else x - 1


TOGETHER = [
    a_global_of_another_function,
    a_private_attribute,
    an_attribute_of_a_part,
    a_queue_deep_in_a_dict,
    a_counter,
    a_flag,
    an_attribute,
    a_count,
    one_for_the_other,
    the_last_one,
    a_count_in_a_closure,
]


@pytest.mark.parametrize("function", TOGETHER)
def test_conditions_that_change_later_code_are_refused(function: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(CaptureError, match=r"paths|stores in Python objects"):
        export(Mixture(function).eval(), (torch.randn(6, EXPERTS),), dynamic_shapes=({0: "n"},), strategy="both-ways")
