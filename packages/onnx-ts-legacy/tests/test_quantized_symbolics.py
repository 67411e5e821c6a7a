"""Custom symbolics of quantized layers get weight, bias and parameters, as those published for torch.onnx expect."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.nn.intrinsic.quantized as fused
import torch.ao.nn.quantized as quantized
from torch import Tensor, nn
from ts_models import n

import onnx_ts_legacy
from onnx_ts_legacy import register_custom_op_symbolic
from onnx_ts_legacy import symbolic_helper as helper

SCALE, ZERO_POINT = 0.05, 60


def layer(kind: Callable[..., nn.Module], shape: tuple[int, ...], *args: Any, **kwargs: Any) -> nn.Module:
    """Return a quantized layer between a quantization and its inverse; ``shape`` is that of the weight."""
    made = kind(*args, **kwargs)
    bias = n(made.bias().shape[0]) if made.bias() is not None else None
    made.set_weight_bias(torch.quantize_per_tensor(n(*shape), 0.02, 0, torch.qint8), bias)
    made.scale, made.zero_point = SCALE, ZERO_POINT
    return nn.Sequential(quantized.Quantize(0.05, 120, torch.quint8), made, quantized.DeQuantize())


# Name of the operator, the layer, an input and one of another size.
LAYERS: dict[str, tuple[Callable[[], nn.Module], Tensor, Tensor]] = {
    "linear": (lambda: layer(quantized.Linear, (3, 4), 4, 3), n(2, 4), n(5, 4)),
    "linear_relu": (lambda: layer(fused.LinearReLU, (3, 4), 4, 3), n(2, 4), n(5, 4)),
    "conv1d": (lambda: layer(quantized.Conv1d, (4, 3, 3), 3, 4, 3, padding=1), n(2, 3, 6), n(5, 3, 6)),
    "conv2d": (
        lambda: layer(quantized.Conv2d, (4, 1, 3, 3), 2, 4, 3, stride=2, groups=2),
        n(2, 2, 7, 7),
        n(5, 2, 7, 7),
    ),
    "conv2d_relu": (lambda: layer(fused.ConvReLU2d, (4, 2, 3, 3), 2, 4, 3, bias=False), n(2, 2, 7, 7), n(5, 2, 7, 7)),
    "conv3d": (lambda: layer(quantized.Conv3d, (3, 2, 3, 3, 3), 2, 3, 3), n(2, 2, 5, 5, 5), n(3, 2, 5, 5, 5)),
    "conv_transpose2d": (
        lambda: layer(quantized.ConvTranspose2d, (3, 4, 3, 3), 3, 4, 3, stride=2, output_padding=1),
        n(2, 3, 5, 5),
        n(3, 3, 5, 5),
    ),
}


@pytest.fixture(autouse=True)
def _engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.quantized, "engine", "fbgemm")


def compare(model: nn.Module, x: Tensor, other: Tensor, opset: int) -> None:
    """Assert that results are equal, but for sums that round to the other side of a tie."""
    program = onnx_ts_legacy.export(model, (x,), opset_version=opset, dynamic_axes={"x": {0: "n"}}, input_names=["x"])
    apart = (program(other)[0] - model(other)).abs() / SCALE
    assert apart.max() < 1.01
    assert (apart > 0.01).float().mean() < 0.02


# Quantization by arithmetic, as no operator of opset 9 quantizes: nothing tells how far results at a tie may be apart.
NINE = pytest.param(9, marks=pytest.mark.no_round_trip(reason="compare() allows for ties, which no file tells of"))


# Not at 10: ONNX Runtime's own optimizations write a Round for the bias, which that opset does not have.
@pytest.mark.parametrize("opset", [NINE, 13, 18])
@pytest.mark.parametrize("name", LAYERS)
def test_the_opset_modules_convert_a_quantized_layer(name: str, opset: int) -> None:
    make, *inputs = LAYERS[name]
    function = getattr(importlib.import_module(f"onnx_ts_legacy.symbolic_opset{opset}"), f"quantized_{name}")
    counts = []

    def symbolic(g: Any, *args: Any) -> Any:
        counts.append(len(args))
        return function(g, *args)

    register_custom_op_symbolic(f"quantized::{name}", symbolic, 9)

    compare(make(), *inputs, opset)

    assert counts == [5 if name.startswith("linear") else 10 if "transpose" in name else 9]


def published(operator: str) -> Callable[..., Any]:
    """Return a symbolic in the way of those that come with torch.onnx: floats between two quantized tensors."""
    from onnx_ts_legacy import symbolic_opset9 as opset9

    float_form = getattr(opset9, operator.removesuffix("_relu"))

    def symbolic(g: Any, q_input: Any, q_weight: Any, bias: Any, *rest: Any) -> Any:
        *parameters, op_scale, op_zero_point = rest
        input, input_scale, _, _ = helper.dequantize_helper(g, q_input)
        weight, weight_scale, _, axis = helper.dequantize_helper(g, q_weight)
        q_bias = helper.requantize_bias_helper(g, bias, input_scale, weight_scale, axis)
        bias, _, _, _ = helper.dequantize_helper(g, q_bias)
        output = float_form(g, input, weight, bias, *parameters)
        if operator.endswith("_relu"):
            output = opset9.relu(g, output)
        return helper.quantize_helper(g, output, op_scale, op_zero_point)

    return symbolic


@pytest.mark.parametrize("opset", [10, 13])
@pytest.mark.parametrize("name", [name for name in LAYERS if "transpose" not in name])
def test_a_published_symbolic_of_a_quantized_layer(name: str, opset: int) -> None:
    make, *inputs = LAYERS[name]
    register_custom_op_symbolic(f"quantized::{name}", published(name), 10)

    compare(make(), *inputs, opset)


def test_the_parameters_of_a_convolution_are_constants() -> None:
    make, x, _ = LAYERS["conv2d"]
    seen = []

    def symbolic(g: Any, x: Any, weight: Any, bias: Any, *rest: Any) -> Any:
        *lists, groups, scale, zero_point = rest
        seen.append([helper._get_const(sizes, "is", "sizes") for sizes in lists])
        seen.append([groups.toIValue()])
        seen.append([scale.toIValue(), zero_point.toIValue()])
        return published("conv2d")(g, x, weight, bias, *rest)

    register_custom_op_symbolic("quantized::conv2d", symbolic, 9)
    onnx_ts_legacy.export(make(), (x,), opset_version=13)

    assert seen == [[[2, 2], [0, 0], [1, 1]], [2], [pytest.approx(SCALE), ZERO_POINT]]
