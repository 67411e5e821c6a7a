"""Names that a call leaves with the memory of another one: a later call that writes to one changes both in PyTorch."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from code_of_tests import compiled
from random_state import compare_calls

import onnx_ts_legacy
from onnx_fx_export import OnnxExporterError, export


def export_script(model: torch.nn.Module, *args: Any, **options: Any) -> Any:
    return onnx_ts_legacy.export(torch.jit.script(model), *args, **options)


EXPORTERS: dict[str, Callable[..., Any]] = {
    "fx": export,
    "traced": onnx_ts_legacy.export,
    "scripted": export_script,
}
BEGINNINGS = ["self.last = torch.zeros(3)", "self.last = self.first", "self.register_buffer('last', torch.zeros(3))"]
WRITES = ["self.last.add_(1)", "self.last[0] = 5.0", "self.last += 1"]
BINDS = [
    *("self.last = self.first", "self.last = self.first[:]", "self.last = self.first.view(3)"),
    *("self.last = self.first.detach()", "self.first = self.last[:]", "self.last = self.first.contiguous()"),
    "kept = [self.first]; self.last = kept[0]",
]
ORDERS = [
    ["{write}", "{bind}", "result = result + self.first", "self.first.add_(1)"],
    ["{bind}", "{write}", "result = result + self.first"],
    ["result = result + self.first", "self.first.add_(1)", "{bind}", "{write}"],
    ["{write}", "result = result + self.first", "{bind}"],
]
ALL = list(itertools.product(BEGINNINGS, ORDERS, WRITES, BINDS))
# Every beginning, write and order stands beside every way to bind in one of the blocks.
BLOCKS = [pytest.param(n, marks=[] if n == 0 else [pytest.mark.wide]) for n in range(11)]


def source(begin: str, order: list[str], write: str, bind: str) -> str:
    lines = [line.format(write=write, bind=bind) for line in order]
    return "\n        ".join(
        [
            "import torch\n\nclass Model(torch.nn.Module):\n    def __init__(self):",
            f"super().__init__()\n        self.register_buffer('first', torch.zeros(3))\n        {begin}",
            "\n    def forward(self, x):\n        result = x",
            *lines,
            "return result\n",
        ]
    )


def is_right(text: str, export_model: Callable[..., Any], state: str) -> bool:
    """Export a model, and return whether it was exported; it has to be right in three calls."""

    def fresh() -> torch.nn.Module:
        model: torch.nn.Module = compiled(text, "/models/meeting.py")["Model"]()
        return model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = export_model(fresh(), (torch.randn(2, 3),), dynamic_shapes=[{0: "n"}], state=state)
        except OnnxExporterError:
            return False
    compare_calls(program, fresh, state, text)
    return True


@pytest.mark.parametrize("state", ["io", "ignore"])
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("block", BLOCKS)
def test_each_call_is_right_or_the_export_refused(block: int, exporter: str, state: str) -> None:
    exported = [is_right(source(*each), EXPORTERS[exporter], state) for each in ALL[block :: len(BLOCKS)]]
    assert sum(exported) > len(exported) // (4 if state == "io" else 2)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("begin", [BEGINNINGS[0], BEGINNINGS[2]])
def test_what_a_later_call_would_write_to_is_refused(begin: str, exporter: str) -> None:
    model = compiled(source(begin, ORDERS[3], WRITES[0], BINDS[1]), "/models/meeting.py")["Model"]()
    with pytest.raises(OnnxExporterError, match=r"binds last \(at .*\) to the memory of first, and a later call"):
        EXPORTERS[exporter](model, (torch.randn(2, 3),), state="io")


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_reference_that_is_made_anew_before_it_is_read_is_exported(exporter: str) -> None:
    order = ["self.first.add_(1)", "{bind}", "result = result + self.last"]
    assert is_right(source(BEGINNINGS[0], order, "", BINDS[0]), EXPORTERS[exporter], "io")


SOMETIMES = {
    "if": ["if x.sum() > 0:", "    self.last = self.first"],
    "both": ["if x.sum() > 0:", "    self.last = self.first", "else:", "    self.last = self.first[:]"],
    "loop": ["for _ in range(x.size(0)):", "    self.last = self.first"],
}


@pytest.mark.parametrize("kind", SOMETIMES)
def test_what_a_script_binds_on_some_paths_is_refused_where_it_is_written_to(kind: str) -> None:
    order = ["self.last.add_(1)", "result = result + self.first", *SOMETIMES[kind]]
    model = compiled(source(BEGINNINGS[2], order, "", ""), f"/models/{kind}.py")["Model"]()
    with pytest.raises(OnnxExporterError, match=r"binds last .*to the memory of first"):
        export_script(model, (torch.ones(2, 3),), state="io")
    assert is_right(source(BEGINNINGS[2], [*order[1:], "result = result * 2"], "", ""), export_script, "ignore")


class Part(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(2, 3))


class TwoNames(torch.nn.Module):
    """Holds a module under two names, and writes to a part of its buffer."""

    def __init__(self, write: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.part = self.same = Part()
        self.write = write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.write(self.part.rows, x)
        return x + self.same.rows[0] + self.part.rows.sum(0)


@pytest.mark.parametrize(
    "write",
    [
        lambda rows, x: rows[0].add_(x.sum(0)),
        lambda rows, x: rows.__setitem__(1, x[0]),
        lambda rows, x: rows.T[1].mul_(x.sum()),
        lambda rows, x: rows.diagonal().add_(1),
    ],
)
@pytest.mark.parametrize("exporter", ["fx", "traced"])
def test_a_part_of_a_buffer_of_a_module_under_two_names_is_written_to(write: Any, exporter: str) -> None:
    program = EXPORTERS[exporter](TwoNames(write), (torch.randn(2, 3),), dynamic_shapes=[{0: "n"}], state="io")
    assert len(program.initial_state) == 1
    compare_calls(program, lambda: TwoNames(write), "io", exporter)


@pytest.mark.parametrize("exporter", ["fx", "traced"])
@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.first.set_(model.first + 1),
        lambda model: model.first.resize_(4),
        lambda model: model.last.unsqueeze_(0),
        lambda model: model.last.set_(model.first + 1),
        lambda model: setattr(model.first, "data", model.first + 1),
    ],
)
def test_the_model_has_its_memory_and_sizes_after_an_export(change: Callable[[Any], Any], exporter: str) -> None:
    class Changing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("first", torch.zeros(3))
            self.last = torch.zeros(3)
            self.count = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            change(self)
            return x + self.first.sum() + self.count

    model = Changing()
    view = model.first[:]
    with warnings.catch_warnings(), contextlib.suppress(OnnxExporterError):
        warnings.simplefilter("ignore")
        EXPORTERS[exporter](model, (torch.randn(2, 3),), state="ignore")
    assert model.first.tolist() == model.last.tolist() == [0, 0, 0]
    assert model.count == 0
    model.first.add_(1)
    assert view.tolist() == [1, 1, 1]
