"""Conditions on dynamic sizes are kept: a program does at each size what the model does there."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from onnx_fx_export import InvalidArgumentError
from onnx_fx_export import export as export_by
from onnx_fx_export.size_ways import search

export = functools.partial(export_by, strategy="size-ways")
BOTH = ({0: "rows", 1: "steps"},)


class Model(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear, x)


def compared(linear: nn.Module, x: torch.Tensor) -> Any:
    return linear(x) * 2 if x.shape[1] > 4 else linear(x).cumsum(1)


def folded(linear: nn.Module, x: torch.Tensor) -> Any:
    """ConvTasNet's rest, which changes what is folded: one program for both is wrong."""
    rest = -x.shape[1] % 3
    if rest > 0:
        x = torch.cat([x * 2, x.new_zeros(x.shape[0], rest, 4)], 1)
    return linear(x.reshape(x.shape[0], x.shape[1] // 3, 3, 4).sum(2))


def among(linear: nn.Module, x: torch.Tensor) -> Any:
    return x[:, :3] if x.shape[1] in (4, 5) else linear(x)


def of_both(linear: nn.Module, x: torch.Tensor) -> Any:
    rows, steps = x.shape[:2]
    if rows == steps:
        return x.transpose(0, 1) + 1
    return linear(x) if min(rows, steps) > 2 else x - rows


def nested(linear: nn.Module, x: torch.Tensor) -> Any:
    rows, steps = x.shape[:2]
    if not (steps % 4 or rows * steps > 20):
        return x.flip(1)
    if 3 <= steps < 8:
        x = F.pad(x, (0, 0, 0, 2)) if steps % 2 else x[:, 1:]
    return x, linear(x).sum(1)


def calls() -> Iterator[torch.Tensor]:
    yield from (torch.randn(rows, steps, 4) for rows, steps in itertools.product(range(2, 6), range(2, 13)))


def test_the_strategy_is_named_where_sizes_are_left_out() -> None:
    model, x = Model(compared).eval(), torch.randn(3, 7, 4)
    with pytest.warns(UserWarning, match='t >= 5.* export with strategy="size-ways", or change the code'):
        program = export_by(model, (x,), dynamic_shapes=({1: "t"},))

    with pytest.raises(InvalidArgumentError, match='of such sizes, with strategy="size-ways", or without code'):
        program(torch.randn(3, 3, 4))


@pytest.mark.filterwarnings("ignore:The model is right for only some")
@pytest.mark.parametrize("chosen", [{"strategy": "size-ways"}, {"strategy": "non-strict"}, {"trial_runs": False}])
def test_the_strategy_is_not_named_where_it_would_not_help(chosen: dict[str, Any]) -> None:
    program = export_by(Model(compared).eval(), (torch.randn(3, 7, 4),), dynamic_shapes=({1: "t"},), **chosen)

    assert not program.constraints.remedy


@pytest.mark.parametrize("steps", [4, 7])
@pytest.mark.parametrize("function", [compared, folded, among, of_both])
def test_each_size_takes_its_way(function: Callable[..., Any], steps: int) -> None:
    model = Model(function).eval()
    program = export(model, (torch.randn(3, steps, 4),), dynamic_shapes=BOTH)

    assert "If" in [node.op_type for node in program.model.graph]
    assert program.timings["ways of sizes"] > 0
    for x in calls():
        torch.testing.assert_close(program(x), model(x))


def test_sizes_of_results_that_the_program_cannot_return_are_refused() -> None:
    """A tensor in one way, and two in another one."""
    model = Model(nested).eval()
    program = export(model, (torch.randn(3, 7, 4),), dynamic_shapes=BOTH)

    refused = 0
    for x in calls():
        expected = model(x)
        if isinstance(expected, tuple):
            torch.testing.assert_close(program(x), expected)
            continue
        refused += 1
        with pytest.raises(InvalidArgumentError):
            program(x)
    assert refused


@pytest.mark.parametrize("options", [{"strategy": "non-strict"}, {"trial_runs": False}])
def test_a_program_that_is_not_compared_is_for_the_sizes_of_its_example(options: dict[str, Any]) -> None:
    program = export(Model(compared), (torch.randn(3, 7, 4),), dynamic_shapes=BOTH, **options)

    assert "ways of sizes" not in program.timings
    with pytest.raises(InvalidArgumentError, match="steps >= 5"):
        program(torch.randn(3, 3, 4))


@pytest.mark.parametrize("limit", ["_MOST_NODES", "_MOST_QUESTIONS"])
def test_large_programs_and_those_with_many_conditions_stay(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, limit, 0)
    program = export(Model(compared), (torch.randn(3, 7, 4),), dynamic_shapes=BOTH)

    assert program.constraints.conditions == ("steps >= 5",)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls if x.shape[1] > 4 else x


def test_state_has_one_way() -> None:
    program = export(Counting(), (torch.randn(3, 7, 4),), dynamic_shapes=BOTH, state="io")

    with pytest.raises(InvalidArgumentError, match="steps >= 5"):
        program(torch.randn(3, 3, 4))


class Weighty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 64), nn.BatchNorm1d(64), nn.Linear(64, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.first(x).transpose(1, 2)).transpose(1, 2)
        if x.shape[1] % 2:
            return self.second(y).relu()
        return self.second(y[:, ::2]) + self.second.weight.sum()


def test_weights_are_stored_once_and_replaced_in_all_ways(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, other = Weighty().eval(), Weighty().eval()
    program = export(model, (torch.randn(3, 7, 4),), dynamic_shapes=BOTH, f=tmp_path / "model.onnx")
    onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)
    floats = sum(value.const_value.size for value in program.model.graph.initializers.values())

    assert floats < 2 * sum(weight.numel() for weight in model.state_dict().values())
    program.apply_weights(other.state_dict())
    for x in calls():
        torch.testing.assert_close(program(x), other(x))


def test_a_file_refuses_what_no_way_takes(tmp_path: Path) -> None:
    import onnxruntime

    class Sound(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.flip(1) if x.shape[1] > 5 else x
            return x.unfold(1, 3, 1).sum(-1)

    program = export(Sound(), (torch.randn(3, 7),), dynamic_shapes=BOTH, size_checks=True, f=tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for steps in (3, 4, 9):
        x = torch.randn(2, steps)
        (result,) = session.run(None, {program.input_names[0]: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(result), Sound()(x))
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument, match="steps >= 6 or"):
        session.run(None, {program.input_names[0]: torch.randn(2, 2).numpy()})


def test_declared_bounds_are_kept() -> None:
    steps = torch.export.Dim.DYNAMIC(min=3, max=9)
    model = Model(compared)
    program = export(model, (torch.randn(3, 7, 4),), dynamic_shapes=({0: "rows", 1: steps},))

    for size in range(3, 10):
        x = torch.randn(2, size, 4)
        torch.testing.assert_close(program(x), model(x))
    for size in (2, 10):
        with pytest.raises(InvalidArgumentError):
            program(torch.randn(2, size, 4))
