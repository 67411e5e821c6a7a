"""Quantized models and quantization-aware training, against torch's own quantized kernels."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.ao.quantization as tq
from torch import Tensor, nn
from ts_models import run

import onnx_ts_legacy
from onnx_ts_legacy.errors import OnnxExporterError

pytestmark = pytest.mark.filterwarnings("ignore")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = tq.QuantStub(), tq.DeQuantStub()
        self.conv, self.relu, self.pool = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2)
        self.linear = nn.Linear(36, 5)
        self.arithmetic = torch.ao.nn.quantized.FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        y = self.pool(self.relu(self.conv(self.quant(x))))
        y = self.arithmetic.add(y, y)
        return self.dequant(self.linear(y.flatten(1)))


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    torch.manual_seed(0)
    model = Small().train()
    model.qconfig = tq.get_default_qat_qconfig(torch.backends.quantized.engine)
    prepared = tq.prepare_qat(model)
    for _ in range(4):
        prepared(torch.randn(8, 3, 8, 8))
    return prepared.eval()


def steps_apart(program: onnx_ts_legacy.TSProgram, model: nn.Module, x: Tensor, step: float) -> np.ndarray:
    (actual,) = run(program.model_proto, {program.input_names[0]: x.numpy()})
    return np.abs(actual - model(x).detach().numpy()) / step


@pytest.mark.parametrize("opset", [13, 17, 21])
def test_a_quantized_model_stays_within_one_step_of_torchs_kernels(trained: nn.Module, opset: int) -> None:
    model = tq.convert(copy.deepcopy(trained))
    axes = {"x": {0: "n"}}

    program = onnx_ts_legacy.export(model, (torch.randn(2, 3, 8, 8),), opset_version=opset, dynamic_axes=axes)

    # Rounding at each layer may fall to the other side of a tie, which is one step of the output or two.
    apart = steps_apart(program, model, torch.randn(7, 3, 8, 8), model.linear.scale)
    assert apart.max() <= 2.01
    assert (apart > 0.01).mean() < 0.2
    assert program.model.graph.initializers["conv.weight_quantized"].dtype.name == "INT8"


def test_fake_quantization_becomes_quantize_and_dequantize(trained: nn.Module) -> None:
    model = copy.deepcopy(trained).apply(tq.disable_observer)

    program = onnx_ts_legacy.export(model, (torch.randn(2, 3, 8, 8),), opset_version=13, dynamic_axes={"x": {0: "n"}})

    step = float(model.linear.activation_post_process.scale)
    apart = steps_apart(program, model, torch.randn(7, 3, 8, 8), step)
    assert apart.max() <= 2.01
    assert (apart > 0.01).mean() < 0.2
    operators = [node.op_type for node in program.model.graph]
    assert operators.count("QuantizeLinear") == operators.count("DequantizeLinear") >= 5


def test_an_observer_that_is_still_on_is_refused_with_what_to_call(trained: nn.Module) -> None:
    with pytest.raises(OnnxExporterError, match="disable_observer"):
        onnx_ts_legacy.export(trained, (torch.randn(2, 3, 8, 8),), opset_version=13)
