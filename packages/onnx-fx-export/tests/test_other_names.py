"""A tensor that the model keeps under several names is one: what is written under one of them is read under all."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import onnx_ts_legacy
from onnx_fx_export import export
from onnxops_core import OnnxExporterError

Keep = Callable[[nn.Module, torch.Tensor], Callable[[nn.Module], torch.Tensor]]


def attribute(model: nn.Module, tensor: torch.Tensor) -> Callable[[nn.Module], torch.Tensor]:
    model.other = tensor
    return lambda model: model.other


def item(model: nn.Module, tensor: torch.Tensor) -> Callable[[nn.Module], torch.Tensor]:
    model.others = [tensor]
    return lambda model: model.others[0]


def entry(model: nn.Module, tensor: torch.Tensor) -> Callable[[nn.Module], torch.Tensor]:
    model.table = {"other": (tensor,)}
    return lambda model: model.table["other"][0]


def of_an_object(model: nn.Module, tensor: torch.Tensor) -> Callable[[nn.Module], torch.Tensor]:
    model.holder = SimpleNamespace(other=tensor)
    return lambda model: model.holder.other


def of_a_part(model: nn.Module, tensor: torch.Tensor) -> Callable[[nn.Module], torch.Tensor]:
    model.part = nn.Identity()
    model.part.other = tensor
    return lambda model: model.part.other


def another_buffer(model: nn.Module, tensor: torch.Tensor) -> Callable[[nn.Module], torch.Tensor]:
    model.register_buffer("other", tensor)
    return lambda model: model.other


class Model(nn.Module):
    """Adds to a buffer, and reads it under another name or the other way round."""

    def __init__(self, keep: Keep, writes_other: bool) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(3))
        self.read = keep(self, self.total)
        self.writes_other = writes_other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        written, read = (self.read(self), self.total) if self.writes_other else (self.total, self.read(self))
        before = read * 2
        written += x.sum(0)
        return before + x * read


def captured(model: nn.Module, args: Any, *, dynamic_shapes: Any, **options: Any) -> Any:
    shapes = [{0: torch.export.Dim.DYNAMIC}]
    return export(torch.export.export(model, args, dynamic_shapes=shapes), **options)


EXPORTS: dict[str, Callable[..., Any]] = {"fx": export, "captured before": captured, "traced": onnx_ts_legacy.export}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("writes_other", [True, False], ids=["written", "read"])
@pytest.mark.parametrize("keep", [attribute, item, entry, of_an_object, of_a_part, another_buffer])
@pytest.mark.parametrize("export_model", EXPORTS.values(), ids=EXPORTS)
def test_a_tensor_is_one_under_all_its_names(export_model: Callable[..., Any], keep: Keep, writes_other: bool) -> None:
    model = Model(keep, writes_other)
    program = export_model(model, (torch.randn(2, 3),), dynamic_shapes=[{0: "n"}], state="io")

    ((state, following),) = program.state.items()
    values, own = dict(program.initial_state), copy.deepcopy(model)
    for rows in (2, 5, 1):
        x = torch.randn(rows, 3)
        found = program.run({program.input_names[0]: x, **values})
        torch.testing.assert_close(found[program.output_names[0]], own(x))
        torch.testing.assert_close(found[following], own.total)
        values = {state: found[following]}


@pytest.mark.filterwarnings("ignore")
def test_a_parameter_in_a_list_is_the_parameter() -> None:
    class Decaying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.weights = [self.weight]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.weights[0].mul_(0.5)
            return x * self.weight

    program = export(Decaying(), (torch.randn(2, 3),), state="io", verify=True)
    assert list(program.state) == ["weight"]


class Apart(nn.Module):
    """Keeps the memory of a buffer, or a buffer itself, under another name."""

    def __init__(self, shows: Callable[[torch.Tensor], torch.Tensor], run: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("total", torch.zeros(3))
        self.other = shows(self.total)
        self.data = self.weight.data
        self.run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.run(self, x)
        return x * self.weight * self.data + self.total + self.other


def replace_buffer(model: Any, x: torch.Tensor) -> None:
    model.total = model.total + x.sum(0)


def replace_other(model: Any, x: torch.Tensor) -> None:
    model.other = model.other + x.sum(0)


@torch.no_grad()
def write_weight(model: Any, x: torch.Tensor) -> None:
    model.weight.mul_(0.5)


APART: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[Any, torch.Tensor], Any]]] = {
    "the memory of a buffer": (torch.Tensor.detach, lambda model, x: model.other.add_(x.sum(0))),
    "the data of a parameter": (torch.clone, lambda model, x: model.data.mul_(0.5)),
    "a buffer, replaced": (lambda total: total, replace_buffer),
    "a buffer, replaced under the other name": (lambda total: total, replace_other),
}


@pytest.mark.parametrize("case", APART)
@pytest.mark.parametrize("export_model", [export, onnx_ts_legacy.export], ids=["fx", "traced"])
def test_what_is_one_only_at_first_is_refused(export_model: Callable[..., Any], case: str) -> None:
    with pytest.raises(OnnxExporterError, match=r"shares its memory|under one name"):
        export_model(Apart(*APART[case]), (torch.randn(2, 3),), state="io")


@pytest.mark.filterwarnings("ignore")
def test_the_data_of_a_parameter_that_is_written_to() -> None:
    """It is one tensor for a capture, while a trace has it as a constant."""
    model, x = Apart(torch.clone, write_weight), torch.randn(2, 3)
    program = export(model, (x,), state="io")
    torch.testing.assert_close(program(x), x * 0.25)
    with pytest.raises(OnnxExporterError, match="shares its memory with data"):
        onnx_ts_legacy.export(model, (x,), state="io")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("export_model", [export, onnx_ts_legacy.export], ids=["fx", "traced"])
def test_the_first_call_does_not_part_them(export_model: Callable[..., Any]) -> None:
    model, x = Apart(lambda total: total, replace_buffer), torch.randn(2, 3)
    program = export_model(model, (x,), state="ignore")
    found = program.run({program.input_names[0]: x})
    torch.testing.assert_close(found[program.output_names[0]], x + x.sum(0))


class Counting(nn.Module):
    """Writes to a buffer what no input decides, which torch.export runs on the buffer itself."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.parts = [self.count, torch.ones(3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.parts[1].mul_(0.5)
        self.parts[0].add_(1)
        return x * self.parts[1] + self.count


@pytest.mark.parametrize("export_model", [export, onnx_ts_legacy.export], ids=["fx", "traced"])
def test_what_no_input_decides_is_written_in_the_model_alone(export_model: Callable[..., Any]) -> None:
    model, own, x = Counting(), Counting(), torch.randn(2, 3)
    program = export_model(model, (x,), state="io")
    assert (model.count.tolist(), model.parts[1].tolist()) == ([0] * 3, [1] * 3)

    values = dict(program.initial_state)
    for _ in range(3):
        found = program.run({program.input_names[0]: x, **values})
        torch.testing.assert_close(found[program.output_names[0]], own(x))
        values = {state: found[following] for state, following in program.state.items()}
