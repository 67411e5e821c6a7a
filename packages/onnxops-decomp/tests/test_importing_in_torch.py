"""Imported models in the rest of PyTorch: torch.compile, torch.export."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from importable_models import model
from onnx import TensorProto, helper

from onnxops_decomp import to_torch

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def convolutional():
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Resize", ["p", "", "scales"], ["u"], mode="nearest"),
        helper.make_node("Concat", ["u", "r"], ["k"], axis=1),
        helper.make_node("GlobalAveragePool", ["k"], ["g"]),
        helper.make_node("Shape", ["g"], ["size"], end=1),
        helper.make_node("Concat", ["size", "rest"], ["flat"], axis=0),
        helper.make_node("Reshape", ["g", "flat"], ["y"]),
    ]
    constants = {
        "w": rng.standard_normal((4, 3, 3, 3)).astype("f"),
        "scales": np.array([1, 1, 2, 2], "f"),
        "rest": np.array([-1]),
        **{name: rng.random(4).astype("f") for name in "sbmv"},
    }
    return model(nodes, [("x", ["n", 3, "h", "w"])], [("y", ["n", 8])], constants)


def recurrent(op_type):
    rng, gates = np.random.default_rng(0), {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type]
    node = helper.make_node(op_type, ["x", "w", "r"], ["y"], hidden_size=5)
    constants = {
        "w": rng.standard_normal((1, gates * 5, 4)).astype("f"),
        "r": rng.standard_normal((1, gates * 5, 5)).astype("f"),
    }
    return model([node], [("x", ["t", "n", 4])], [("y", ["t", 1, "n", 5])], constants)


def attending():
    nodes = [helper.make_node("Attention", ["x", "x", "x"], ["y"], q_num_heads=2, kv_num_heads=2, is_causal=1)]
    return model(nodes, [("x", ["n", "t", 8])], [("y", ["n", "t", 8])], opset=23)


MODELS = {
    "convolutional": (convolutional, [(2, 3, 8, 8), (3, 3, 6, 10)], {0: "n", 2: "h", 3: "w"}),
    "attending": (attending, [(2, 5, 8), (3, 4, 8)], {0: "n", 1: "t"}),
    "RNN": (lambda: recurrent("RNN"), [(6, 2, 4), (3, 5, 4)], {1: "n"}),
    "GRU": (lambda: recurrent("GRU"), [(6, 2, 4), (3, 5, 4)], {1: "n"}),
    "LSTM": (lambda: recurrent("LSTM"), [(6, 2, 4), (3, 5, 4)], {1: "n"}),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_compiled_as_one_graph(name: str) -> None:
    make, shapes, _ = MODELS[name]
    module = to_torch(make())
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for shape in shapes:
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), module(x))


@pytest.mark.parametrize("name", ["convolutional", "attending"])
def test_a_model_is_exported_with_dynamic_sizes(name: str) -> None:
    make, (first, second), axes = MODELS[name]
    module = to_torch(make())
    dims = dict.fromkeys(axes, torch.export.Dim.DYNAMIC)
    program = torch.export.export(module, (torch.randn(first),), dynamic_shapes=(dims,))
    x = torch.randn(second)
    torch.testing.assert_close(program.module()(x), module(x))


def test_a_compiled_module_pads_by_what_only_the_runtime_knows() -> None:
    node = helper.make_node("Pad", ["x", "pads"], ["y"], mode="edge")
    module = to_torch(model([node], [("x", FLOAT, ["n", 3]), ("pads", INT64, [4])], [("y", FLOAT, [None, None])]))
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    for pads in ([1, 0, 2, 1], [0, 2, -1, 0]):
        x, amounts = torch.rand(4, 3), torch.tensor(pads)
        torch.testing.assert_close(compiled(x, amounts), module(x, amounts))
