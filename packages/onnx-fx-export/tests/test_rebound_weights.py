"""Buffers and parameters that a model binds anew are state, wherever in the model they stand, and in whatever order."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import onnx_fx_export
import onnx_ts_legacy
from onnx_fx_export import OnnxExporterError

EXPORTERS = [onnx_fx_export.export, onnx_ts_legacy.export]
X = torch.linspace(-2, 2, 6).reshape(2, 3)
CALLS = [X, X * 0.5 + 1, X - 3]


class Kept(nn.Module):
    def __init__(self, step: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(2, 3))
        self.register_buffer("older", torch.ones(2, 3))
        self.register_buffer("absent", None)
        self.weight = nn.Parameter(torch.full((2, 3), 0.5))
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self, x)


class Outer(nn.Module):
    """Has two modules with state, which are called one after the other."""

    def __init__(self, step: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = Kept(step), Kept(step)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def add(model: Any, x: Tensor) -> Tensor:
    model.last = model.last + x
    return model.last * 2


def delay(model: Any, x: Tensor) -> Tensor:
    y = model.last + model.older
    model.older = model.last
    model.last = x
    return y


def swap(model: Any, x: Tensor) -> Tensor:
    model.last, model.older = model.older, model.last
    return model.last * x


def reset(model: Any, x: Tensor) -> Tensor:
    y = model.last + x
    model.last = model.older
    return y


def bind_and_write(model: Any, x: Tensor) -> Tensor:
    model.last = model.last + x
    model.last[0] = 1
    return model.last * 1


def write_and_bind(model: Any, x: Tensor) -> Tensor:
    shown = model.last[0]
    model.last = model.last + x
    shown.add_(1)
    return model.last + shown


def return_old(model: Any, x: Tensor) -> Tensor:
    old = model.last
    model.last = x * 2
    return old


def set_in_registry(model: Any, x: Tensor) -> Tensor:
    y = model.last + x
    model._buffers["last"] = y * 0.5
    return y


def register(model: Any, x: Tensor) -> Tensor:
    y = model.last + x
    model.register_buffer("last", y * 0.5)
    return y


def other_registry(model: Any, x: Tensor) -> Tensor:
    y = model.last + x
    model.__dict__["_buffers"] = {**model._buffers, "last": y * 0.5}
    return y


def parameter(model: Any, x: Tensor) -> Tensor:
    y = model.weight + x
    model.weight = nn.Parameter(y * 0.5)
    return y


STEPS = [add, delay, swap, reset, bind_and_write, write_and_bind, return_old, set_in_registry, register, other_registry]
# torch.export itself knows of the buffers of the outermost module.
CASES = [*((Outer, step) for step in (*STEPS, parameter)), *((Kept, step) for step in (delay, swap, parameter))]


def outputs_of_calls(program: Any) -> list[Tensor]:
    state, found = dict(program.initial_state), []
    for x in CALLS:
        results = program.run({"x": x, **state})
        state = {name: results[after] for name, after in program.state.items()}
        found.append(results[program.output_names[0]])
    return found


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
@pytest.mark.parametrize(("make", "step"), CASES)
def test_what_is_bound_anew_is_state(step: Any, make: Any, export: Any) -> None:
    with torch.no_grad():
        eager = make(step)
        expected = [eager(x).clone() for x in CALLS]
    model = make(step)
    with pytest.raises(OnnxExporterError, match=rf"(last|weight) \(at {re.escape(__file__)}:\d+\)"):
        export(model, (X,))

    program = export(model, (X,), state="io", input_names=["x"])

    torch.testing.assert_close(outputs_of_calls(program), expected)
    for (name, after), (_, before) in zip(model.state_dict().items(), make(step).state_dict().items(), strict=True):
        assert type(after) is type(before), name
        torch.testing.assert_close(after, before)


def wider(model: Any, x: Tensor) -> Tensor:
    y = model.last + x
    model.last = y.double()
    return y * 1.0


def longer(model: Any, x: Tensor) -> Tensor:
    model.last = torch.cat([model.last, x])
    return model.last.sum(0) + x


def first(model: Any, x: Tensor) -> Tensor:
    model.absent = x if model.absent is None else model.absent + x
    return model.absent * 2


def none(model: Any, x: Tensor) -> Tensor:
    y = x if model.last is None else x + 1
    model.last = None
    return y


@pytest.mark.parametrize("make", [Kept, Outer])
@pytest.mark.parametrize("step", [wider, longer, first, none])
def test_what_cannot_be_one_input_is_refused_or_ignored(step: Any, make: Any) -> None:
    model = make(step)
    for state in ("error", "io"):
        with pytest.raises(OnnxExporterError, match=rf"(last|absent) \(at {re.escape(__file__)}:\d+\)"):
            onnx_fx_export.export(model, (X,), state=state)
    with torch.no_grad():
        expected = make(step)(X)

    with pytest.warns(UserWarning, match="changes"):
        program = onnx_fx_export.export(model, (X,), state="ignore")

    torch.testing.assert_close(program(X), expected)


def fill(model: Any, x: Tensor) -> Tensor:
    if model.absent is None:
        model.absent = torch.arange(3.0)
    return model.absent + x


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
@pytest.mark.parametrize("make", [Kept, Outer])
def test_what_is_filled_once_is_no_state(make: Any, export: Any) -> None:
    program = export(make(fill), (X,), input_names=["x"])
    with torch.no_grad():
        torch.testing.assert_close(outputs_of_calls(program), [make(fill)(x) for x in CALLS])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Kept(add), Kept(add)
        self.second.last = self.first.last

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
def test_tied_buffers_that_part_are_refused(export: Any) -> None:
    with pytest.raises(OnnxExporterError, match=r"binds first\.last .* shared its memory with second\.last"):
        export(Tied(), (X,), state="io")


def write_to_both(model: Any, x: Tensor) -> Tensor:
    y = model.older + x
    model.older = model.last
    model.older.add_(x)
    return y + model.last


def read_after_a_write(model: Any, x: Tensor) -> Tensor:
    model.last.add_(x)
    y = model.older + x
    model.older = model.last
    return y


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
def test_buffers_that_come_to_share_memory_are_refused_where_a_later_call_tells(export: Any) -> None:
    with pytest.raises(OnnxExporterError, match=r"binds older .* to the memory of last, and a later call that writes"):
        export(Kept(read_after_a_write), (X,), state="io")


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
def test_buffers_that_come_to_share_memory_are_state_where_no_call_tells(export: Any) -> None:
    model = Kept(write_to_both)
    program = export(Kept(write_to_both), (X,), input_names=["x"], state="io")
    with torch.no_grad():
        torch.testing.assert_close(outputs_of_calls(program), [model(x) for x in CALLS])


class Learning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.sum = torch.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.mean.add_(y.mean(0))
        self.sum.add_(y.sum(0))
        return y + self.mean + self.sum


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
def test_state_that_is_written_with_gradients_has_none_afterwards(export: Any) -> None:
    model = Learning()
    export(model, (X,), state="io")
    assert [(x.requires_grad, x.is_leaf) for x in (model.mean, model.sum)] == [(False, True)] * 2
    assert model.linear.weight.requires_grad
