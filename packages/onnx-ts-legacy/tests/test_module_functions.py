"""Modules as functions of the model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from ts_models import agree, exported

import onnx_ts_legacy
from onnx_ts_legacy.errors import ArgumentsError

X, Y = torch.randn(2, 4), torch.randn(5, 4)
AXES = {"x": {0: "n"}}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.relu(self.linear(x))) + x


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            return x * self.shift
        return x - self.shift


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.last = nn.Sequential(Block(), Block()), nn.Linear(4, 3)
        self.branching = torch.jit.script(Branching())

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.branching(self.blocks(x))) + x.size(0)


@pytest.mark.parametrize(
    "opset", [pytest.param(n, marks=[] if n in (15, 18, 23) else [pytest.mark.wide]) for n in range(15, 27)]
)
@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
def test_every_module_becomes_a_function_that_computes_the_same(scripted: bool, opset: int) -> None:
    model = torch.jit.script(Model()) if scripted else Model()

    program = exported(model, (X,), (Y,), (-Y,), dynamic_axes=AXES, opset=opset, export_modules_as_functions=True)

    names = {(function.domain, function.name) for function in program.model.functions.values()}
    assert {("torch.nn.modules.linear", "Linear"), ("torch.nn.modules.container", "Sequential")} <= names
    assert [node.op_type for node in program.model.graph if node.domain] == ["Sequential", "Branching", "Linear.1"]
    assert "Add" in [node.op_type for node in program.model.graph if not node.domain]
    assert "branching.shift" in program.model.graph.initializers


@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
def test_modules_of_one_class_that_do_the_same_share_a_function(scripted: bool) -> None:
    model = torch.jit.script(Model()) if scripted else Model()

    program = exported(model, (X,), (Y,), dynamic_axes=AXES, export_modules_as_functions={Block})

    assert [function.name for function in program.model.functions.values()] == ["Block"]
    calls = [node for node in program.model.graph if node.op_type == "Block"]
    assert [[str(value.name) for value in call.inputs[1:]] for call in calls] == [
        [f"blocks.{i}.{name}" for name in ("linear.weight", "linear.bias", "norm.weight", "norm.bias")] for i in (0, 1)
    ]


def test_modules_that_differ_in_a_constant_have_functions_of_their_own() -> None:
    model = nn.Sequential(nn.LeakyReLU(0.1), nn.LeakyReLU(0.2), nn.LeakyReLU(0.1))

    program = exported(model, (X,), (Y,), dynamic_axes={"input": {0: "n"}}, export_modules_as_functions=True)

    assert [node.op_type for node in program.model.graph] == ["LeakyReLU", "LeakyReLU.1", "LeakyReLU"]


class Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.sin(self.linear(x)))


def test_a_module_that_is_called_twice_is_one_function_called_twice() -> None:
    program = exported(Reused(), (X,), (Y,), dynamic_axes=AXES, export_modules_as_functions=True)

    assert [node.op_type for node in program.model.graph] == ["Linear", "Sin", "Linear"]
    assert len(program.model.functions) == 1


def test_attention_and_recurrence_with_dynamic_sizes_become_functions() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.lstm = nn.LSTM(8, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(self.encoder(x))[0]

    program = exported(
        Both().eval(),
        (torch.randn(2, 5, 8),),
        (torch.randn(3, 7, 8),),
        dynamic_axes={"x": {0: "n", 1: "t"}},
        export_modules_as_functions=True,
    )

    names = {function.name for function in program.model.functions.values()}
    assert {"TransformerEncoderLayer", "MultiheadAttention", "LSTM"} <= names


def test_a_file_with_functions_is_loaded_and_run(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    onnx_ts_legacy.export(Model(), (X,), path, export_modules_as_functions=True, verify=True)

    assert path.exists()


@pytest.mark.parametrize("opset", range(7, 15))
def test_functions_need_opset_15(opset: int) -> None:
    with pytest.raises(ArgumentsError, match="15"):
        onnx_ts_legacy.export(Model(), (X,), opset_version=opset, export_modules_as_functions=True)


def test_a_function_has_no_modules() -> None:
    program = onnx_ts_legacy.export(torch.relu, (X,), export_modules_as_functions=True)

    agree(program, torch.relu, (X,))
    assert not program.model.functions


class OfTheMainProgram(nn.Module):
    __module__ = "__main__"

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) + 1


@pytest.mark.parametrize("chosen", [True, {OfTheMainProgram}], ids=["all", "class"])
@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
def test_modules_that_the_main_program_defines_become_functions(chosen: bool | set, scripted: bool) -> None:
    model = nn.Sequential(OfTheMainProgram(), nn.Linear(4, 4))

    program = exported(
        torch.jit.script(model) if scripted else model,
        (X,),
        (Y,),
        export_modules_as_functions=chosen,
        dynamic_axes={"input": {0: "n"}},
    )

    assert ("__main__", "OfTheMainProgram") in {(f.domain, f.name) for f in program.model.functions.values()}
