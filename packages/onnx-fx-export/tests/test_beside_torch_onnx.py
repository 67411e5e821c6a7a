"""What the README says of torch.onnx.export and of this package, each on the same model."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn

from onnx_fx_export import export
from onnx_fx_export.errors import MutationError

X = torch.randn(3, 4)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x * self.calls


def by_torch(model: nn.Module, **options: Any) -> onnx.ModelProto:
    with contextlib.redirect_stdout(io.StringIO()):
        program = torch.onnx.export(model, (X,), dynamo=True, verbose=False, **options)
    return program.model_proto


def opset(model: onnx.ModelProto) -> int:
    return next(entry.version for entry in model.opset_import if not entry.domain)


@pytest.mark.filterwarnings("ignore")
def test_the_opset_is_the_one_that_was_asked_for() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).eval()

    assert opset(by_torch(model, opset_version=12)) == 18
    assert opset(export(model, (X,), opset_version=12).model_proto) == 12


@pytest.mark.filterwarnings("ignore")
def test_state_is_an_output_or_an_error() -> None:
    assert len(by_torch(Counting().eval()).graph.output) == 1

    with pytest.raises(MutationError):
        export(Counting().eval(), (X,))
    program = export(Counting().eval(), (X,), state="io")
    assert [output.name for output in program.model_proto.graph.output][1:] == ["calls.next"]


class Forces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_(True)
        return -torch.autograd.grad(self.layers(x).sum(), x)[0]


class Transformed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.func.grad(lambda v: (v**3).sum())(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.parametrize("kind", [Forces, Transformed])
def test_gradients_inside_of_forward_are_written(kind: type[nn.Module], dynamo: bool) -> None:
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises((torch.onnx.errors.OnnxExporterError, RuntimeError)):
        torch.onnx.export(kind().eval(), (X,), io.BytesIO(), dynamo=dynamo)

    assert export(kind().eval(), (X,), verify=True).model_proto.graph.node


class Steps(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        state, states = torch.zeros(4), []
        for row in x:
            state = torch.tanh(state + row)
            states.append(state)
        return torch.stack(states)


@pytest.mark.filterwarnings("ignore")
def test_a_loop_over_a_dynamic_size_stays_one() -> None:
    with pytest.raises(torch.onnx.OnnxExporterError):
        by_torch(Steps(), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))

    program = export(Steps(), (X,), dynamic_shapes=({0: "n"},))
    for rows in (3, 7, 1):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(program(x), Steps()(x))
