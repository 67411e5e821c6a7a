"""Attributes that a traced model binds anew: buffers are state, others are warned about, the model stays as it is."""

from __future__ import annotations

import copy
import inspect
import warnings

import pytest
import torch
from torch import Tensor, nn
from ts_models import n

import onnx_ts_legacy
from onnx_ts_legacy.errors import CaptureError, StateError


class Growing(nn.Module):
    """Keeps all rows that it has been given."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 0, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.keys = torch.cat([self.keys, x], 1)
        return self.keys.sum(1) + self.keys.shape[1]


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)
        self.register_buffer("hidden", torch.zeros(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = self.cell(x, self.hidden)
        self.hidden[:, 0] *= 2
        self.hidden = self.cell(x * 2, self.hidden)
        return self.hidden * 3


class Inside(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1


@pytest.mark.parametrize("opset", [9, 13, 18])
@pytest.mark.parametrize(
    ("model", "inputs", "axes"),
    [
        (Growing, [n(2, 1, 3), n(2, 4, 3), n(2, 2, 3)], {"x": {1: "t"}}),
        (Remembering, [n(2, 3), n(2, 3) + 1, -n(2, 3)], {}),
    ],
    ids=["growing", "remembering"],
)
def test_a_buffer_that_is_bound_anew_is_state(model: type, inputs: list[Tensor], axes: dict, opset: int) -> None:
    torch.manual_seed(0)
    eager = Inside(model())
    given = copy.deepcopy(eager)

    program = onnx_ts_legacy.export(given, (inputs[0],), state="io", dynamic_axes=axes, opset_version=opset)

    state = dict(program.initial_state)
    for x in inputs:
        outputs = dict(zip(program.output_names, program(x, **state), strict=True))
        torch.testing.assert_close(outputs["output"], eager(x).detach(), rtol=1e-4, atol=1e-5)
        state = {name: outputs[output] for name, output in program.state_outputs.items()}
    for name, value in eager.named_buffers():
        torch.testing.assert_close(state[name], value.detach(), rtol=1e-4, atol=1e-5)


def test_a_buffer_that_is_bound_anew_is_refused_without_state() -> None:
    lines, first = inspect.getsourcelines(Growing)
    line = first + next(index for index, text in enumerate(lines) if "self.keys = torch.cat" in text)

    with pytest.raises(StateError, match=rf"inner\.keys \(at .*test_module_attributes\.py:{line}\)"):
        onnx_ts_legacy.export(Inside(Growing()), (n(2, 1, 3),))


def test_a_buffer_that_is_bound_anew_beside_scripted_modules_is_refused() -> None:
    model = nn.Sequential(Growing(), torch.jit.script(nn.Linear(3, 3)))

    with pytest.raises(CaptureError, match=r"rebinds .*0\.keys"):
        onnx_ts_legacy.export(model, (n(2, 1, 3),), state="io")


class Noting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.calls, self.last, self.notes = 0, None, {"first": 1}
        self.history: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = self.linear(x)
        self.history.append(x)
        self.notes["first"] = 2
        self.fresh = x
        return self.last


def test_attributes_that_no_later_call_depends_on_may_change() -> None:
    program = onnx_ts_legacy.export(Inside(Noting()), (n(2, 3),))

    assert program.input_names == ["x"]


@pytest.mark.filterwarnings("ignore")
def test_an_export_leaves_the_attributes_of_a_model_as_they_were() -> None:
    model, growing = Noting(), Growing()
    keys = growing.keys

    onnx_ts_legacy.export(model, (n(2, 3),))
    onnx_ts_legacy.export(growing, (n(2, 3, 3),), state="io")

    assert (model.calls, model.last, model.history, model.notes) == (0, None, [], {"first": 1})
    assert not hasattr(model, "fresh")
    assert growing.keys is keys
    assert keys.shape == (2, 0, 3)


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.LSTM(3, 4, 2, bidirectional=True), n(5, 2, 3)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout()), n(2, 3, 6, 6)),
        (nn.TransformerEncoderLayer(8, 2, 16), n(5, 2, 8)),
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), n(2, 3)),
    ],
    ids=["lstm", "convolution", "transformer", "weight_norm"],
)
def test_torchs_own_modules_are_not_warned_about(model: nn.Module, x: Tensor) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        onnx_ts_legacy.export(model.eval(), (x,))

    assert not [warning for warning in caught if "sets" in str(warning.message)]
