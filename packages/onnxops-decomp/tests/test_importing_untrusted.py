"""A model file is untrusted: the importer and the converter give a model, or an error of the package."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from onnxops_core import OnnxExporterError
from onnxops_decomp import convert_opset, to_torch

sys.path.insert(0, str(Path(__file__).parents[2] / "onnx-verify" / "tests"))

import realistic

NAMES = ("cnn", "decoder", "recurrent", "quantized", "control_flow")
SAMPLES = [getattr(realistic, name)().SerializeToString() for name in NAMES]


def taken(data: bytes) -> int:
    """Return how many of the two take a model; any error but the package's own is a failure."""
    try:
        model = onnx.ModelProto.FromString(data)
    except Exception:  # protobuf's own, before anything of this package has seen the bytes
        return 0
    count = 0
    for function in (to_torch, lambda given: convert_opset(given, 13)):
        try:
            function(model)
            count += 1
        except OnnxExporterError:
            pass
    return count


def mutated(rng: random.Random) -> bytes:
    data = bytearray(rng.choice(SAMPLES))
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data))
        kind = rng.random()
        if kind < 0.6:
            data[place] = rng.randrange(256)
        elif kind < 0.8:
            del data[place : place + rng.randint(1, 4)]
        else:
            data[place:place] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 4)))
    return bytes(data)


@pytest.mark.parametrize("seed, count", [(0, 60), pytest.param(1, 1500, marks=pytest.mark.wide)])
def test_a_mutated_model_is_a_model_or_an_error(seed: int, count: int) -> None:
    rng = random.Random(seed)
    assert sum(taken(mutated(rng)) for _ in range(count)) > 0


@pytest.mark.parametrize("data", SAMPLES, ids=NAMES)
def test_a_model_cut_off_anywhere_is_an_error_or_another_whole_model(data: bytes) -> None:
    for stop in range(0, len(data), max(len(data) // 12, 1)):
        taken(data[:stop])
    assert taken(data)


def with_node(*nodes: onnx.NodeProto, **tensors: onnx.TensorProto) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph(list(nodes), "graph", infos[:1], infos[1:], list(tensors.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def short_tensor() -> onnx.ModelProto:
    tensor = numpy_helper.from_array(torch.ones(4).numpy(), "w")
    tensor.dims[0] = 1 << 40
    return with_node(helper.make_node("Add", ["x", "w"], ["y"]), w=tensor)


BROKEN = {
    "cycle": with_node(helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Neg", ["a"], ["b"])),
    "an output that nothing gives": with_node(helper.make_node("Neg", ["x"], ["z"])),
    "a value given twice": with_node(helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["y"])),
    "a tensor larger than its data": short_tensor(),
    "code in a name": with_node(helper.make_node("__import__('os')", ["x"], ["y"])),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("function", [to_torch, lambda given: convert_opset(given, 13)], ids=["to_torch", "convert"])
def test_what_is_broken_is_an_error_of_the_package(function, name: str) -> None:
    with pytest.raises(OnnxExporterError):
        function(BROKEN[name])


def test_names_that_are_code_are_names() -> None:
    evil = 'x"); import os; os.abort() #'
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in (evil, "y\n    raise KeyError")]
    node = helper.make_node("Neg", [infos[0].name], [infos[1].name], name="class\n:")
    graph = helper.make_graph([node], "graph", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    assert to_torch(model)(torch.ones(2)).tolist() == [-1, -1]


def test_an_absurd_size_is_not_made_at_the_import() -> None:
    shape = numpy_helper.from_array(torch.tensor([1 << 40]).numpy(), "shape")
    model = with_node(
        helper.make_node("ConstantOfShape", ["shape"], ["z"]), helper.make_node("Add", ["x", "z"], ["y"]), shape=shape
    )
    to_torch(model)
    convert_opset(model, 13)
