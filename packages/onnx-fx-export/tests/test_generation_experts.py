"""Layers of experts become one operator of ONNX Runtime that computes what they do, however they are weighed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from language_models import language_model

from onnx_fx_export import ONNXProgram, export
from onnx_fx_export.generation.experts import joined_experts
from onnx_fx_export.generation.operators.experts import TRANSLATIONS
from onnx_fx_export.generation.quantization import quantized

HIDDEN, COUNT = 32, 4
Weigh = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class Layer(torch.nn.Module):
    """Experts of a model, and what chooses among them."""

    def __init__(self, weigh: Weigh, name: str = "mixtral", **settings: int) -> None:
        super().__init__()
        self.experts = language_model(name, num_hidden_layers=1, **settings).model.layers[0].mlp.experts
        for weight in self.experts.parameters():
            weight.data.normal_(std=0.3)
        self.router, self.weigh = torch.nn.Parameter(torch.randn(COUNT, HIDDEN)), weigh

    def forward(self, x):
        weights, chosen = self.weigh(torch.nn.functional.linear(x, self.router))
        return self.experts(x, chosen, weights)


def usual(scores):
    weights, chosen = scores.softmax(-1).topk(2)
    return weights / weights.sum(-1, keepdim=True), chosen


# How a model may weigh the experts that it chose, and how many operators write them.
WEIGHINGS = {
    "shares of the chosen": (usual, 1),
    "shares of all": (lambda scores: scores.softmax(-1).topk(2), 1),
    "sigmoid": (lambda scores: scores.sigmoid().topk(2), 1),
    "often all zero": (lambda scores: (scores - 1).relu().topk(2), 1),
    "negative": (lambda scores: scores.topk(2), 2),
    "over tokens": (lambda scores: (lambda top: (top.values.softmax(0), top.indices))(scores.topk(2)), 1),
    "one twice": (lambda scores: (scores.sigmoid()[:, :2], scores.topk(1).indices.expand(-1, 2)), 1),
}


def exported(layer: Layer) -> ONNXProgram:
    with joined_experts(layer, on_paper=False):
        return export(
            layer,
            (torch.randn(5, HIDDEN),),
            dynamic_shapes=({0: "tokens"},),
            target="onnxruntime",
            custom_translation_table=TRANSLATIONS,
        )


def need_kernels(bits: int | None) -> None:
    """Skip a test where the installed runtime is given no such experts."""
    least = "1.23" if bits is None else "1.31"
    pytest.importorskip("onnxruntime", minversion=least, reason=f"ONNX Runtime has these experts since {least}")


def count(program: ONNXProgram, op_type: str) -> int:
    return [node.op_type for node in program.model.graph.all_nodes()].count(op_type)


@pytest.mark.parametrize("bits", [None, 4, 8])
@pytest.mark.parametrize("weighing", WEIGHINGS)
def test_experts_count_as_the_model_weighs_them(weighing, bits):
    need_kernels(bits)
    weigh, written = WEIGHINGS[weighing]
    layer = Layer(weigh).eval()

    with torch.no_grad(), quantized(layer, bits) if bits else contextlib.nullcontext():
        program = exported(layer)
        for tokens in (1, 9):
            x = torch.randn(tokens, HIDDEN)
            torch.testing.assert_close(program(x), layer(x), rtol=1e-4, atol=1e-5)

    assert count(program, "QMoE" if bits else "MoE") == written


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
@pytest.mark.parametrize(("bits", "most"), [(4, 0.25), (8, 0.02)])
def test_rounded_experts_compute_with_the_nearest_weights(name, bits, most):
    settings = {"layer_types": ["full_attention"]} if name == "gpt_oss" else {}
    layer, x = Layer(usual, name, **settings), torch.randn(7, HIDDEN)

    with torch.no_grad():
        wanted = layer(x)
        with quantized(layer, bits) as (layers, left):
            found = layer(x)

        assert (layers, left) == (1, ())
        assert (found - wanted).norm() / wanted.norm() < most
        torch.testing.assert_close(layer(x), wanted)


def test_experts_of_odd_widths_stay_and_are_named():
    need_kernels(None)
    layer = Layer(usual, intermediate_size=40)

    with quantized(layer, 4) as (layers, left):
        program = exported(layer)

    assert (layers, left) == (0, ("experts",))
    assert (count(program, "MoE"), count(program, "QMoE")) == (1, 0)
