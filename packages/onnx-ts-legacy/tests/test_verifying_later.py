"""``program.verify`` runs the model that was exported, as the export found it, and leaves it as it was."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import onnx_ts_legacy
from onnxops_core import OnnxExporterError

fx = pytest.importorskip("onnx_fx_export", reason="the programs of both exporters are compared")

Export = Callable[..., Any]


both = pytest.mark.parametrize("export", [fx.export, onnx_ts_legacy.export], ids=["fx", "traced"])
EXPORTERS = {
    "fx": fx.export,
    "traced": onnx_ts_legacy.export,
    "scripted": lambda model, *args, **options: onnx_ts_legacy.export(torch.jit.script(model), *args, **options),
}
every = pytest.mark.parametrize("export", EXPORTERS.values(), ids=EXPORTERS)


class Counting(nn.Module):
    """Writes to a buffer and a parameter, past autograd too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x.sum(0)
        self.weight.data.mul_(2)
        return x * self.weight + self.total


class Rebinding(nn.Module):
    """Puts another buffer and another number into its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2, 3))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen = self.seen + x
        return self.seen * 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("state", ["io", "ignore"])
@pytest.mark.parametrize("later", [True, False], ids=["later", "at once"])
@every
def test_the_model_is_as_it_was(export: Export, later: bool, state: str) -> None:
    model, x = Counting(), torch.ones(2, 3)
    program = export(model, (x,), state=state, verify=not later)
    for _ in range(2 * later):
        program.verify(x)

    assert model.total.tolist() == [0, 0, 0]
    assert model.weight.tolist() == [1, 1, 1]


@pytest.mark.filterwarnings("ignore")
@both
def test_what_the_model_puts_into_its_attributes_goes_again(export: Export) -> None:
    model, x = Rebinding(), torch.ones(2, 3)
    seen = model.seen
    program = export(model, (x,), state="ignore")
    program.verify(x)
    program.verify(x)

    assert (model.calls, model.seen) == (0, seen)
    assert not seen.any()


@both
def test_the_model_runs_in_the_mode_and_under_the_autocast_of_the_export(export: Export) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).eval(), torch.randn(2, 3)
    with torch.autocast("cpu", dtype=torch.float16):
        program = export(model, (x,))
    model.train()

    assert next(iter(program.run(program.flat_inputs(x)).values())).dtype == torch.float16
    program.verify(x)
    assert model.training
    with torch.autocast("cpu", dtype=torch.bfloat16):
        program.verify(x)


@both
def test_what_the_model_has_learned_since_the_export_shows(export: Export) -> None:
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    program = export(model, (x,))
    program.verify(x)
    model.bias = nn.Parameter(model.bias + 1)

    with pytest.raises(OnnxExporterError, match="does not agree"):
        program.verify(x)


def test_a_mistake_of_the_capture_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx_fx_export import pipeline

    capture = pipeline.capture

    def mistaken(request: Any) -> Any:
        captured = capture(request)
        (node,) = (node for node in captured.program.graph.nodes if node.target is torch.ops.aten.relu.default)
        node.target = torch.ops.aten.neg.default
        return captured

    monkeypatch.setattr(pipeline, "capture", mistaken)
    program = fx.export(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), (torch.randn(2, 3),))

    with pytest.raises(OnnxExporterError, match="does not agree"):
        program.verify(torch.randn(2, 3))


def test_a_padded_encoder_runs_as_the_user_runs_it() -> None:
    """Without gradients and modes, torch runs a layer as one operator, which leaves zeros at padded positions."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    encoder = nn.TransformerEncoder(layer, 1).eval()
    x, mask = torch.randn(2, 4, 8), torch.tensor([[False, False, True, True], [False] * 4])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fx.export(encoder, (x,), kwargs={"src_key_padding_mask": mask}).verify(x, src_key_padding_mask=mask)


def test_control_flow_is_run_and_can_be_captured_afterwards() -> None:
    """Eager control flow compiles its branches, and what is compiled under a mode of torch cannot be captured again."""

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.cond(x.sum() > 0, lambda y: y + self.total, lambda y: y - 1, (x,))
            self.total.add_(x.sum(0))
            return y

    model, x = Branching(), torch.ones(2, 3)
    program = fx.export(model, (x,), state="io", verify=True)
    program.verify(x * 2)
    program.verify(-x)
    assert model.total.tolist() == [0, 0, 0]
    assert torch.export.export(model, (x,)).graph.find_nodes(op="call_function", target=torch.ops.higher_order.cond)
