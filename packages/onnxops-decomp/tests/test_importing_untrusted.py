"""A model file is untrusted: the importer and the converter give a model, or an error of the package."""

from __future__ import annotations

import pickle
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


@pytest.mark.parametrize("seed, count", [(0, 60), pytest.param(1, 1500, marks=pytest.mark.wide)])
def test_a_mutated_model_is_a_model_or_an_error(seed: int, count: int) -> None:
    rng = random.Random(seed)
    assert sum(taken(realistic.mutated(rng, SAMPLES)) for _ in range(count)) > 0


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


@pytest.mark.parametrize("name", ["graph", "_code", "meta", "recompile", "graph.w", "forward", "__dict__", "self", "."])
def test_weights_may_have_the_name_of_anything_in_a_module(name: str) -> None:
    weight = numpy_helper.from_array(torch.full((1,), 2.0).numpy(), name)
    module = to_torch(with_node(helper.make_node("Mul", ["x", name], ["y"]), w=weight))
    for each in (module, pickle.loads(pickle.dumps(module))):
        assert each(torch.ones(2)).tolist() == [2, 2]
        assert each.graph is not each.code


@pytest.mark.parametrize("name", ["a.b", "x.y", "graph", "forward", "", "."])
def test_bodies_may_have_any_name(name: str) -> None:
    made = helper.make_node("Neg", ["x"], ["made"])
    output = helper.make_tensor_value_info("made", TensorProto.FLOAT, [2])
    body = helper.make_graph([made], name, [], [output])
    model = with_node(helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body))
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    assert to_torch(model)(torch.ones(2), torch.tensor(True)).tolist() == [-1, -1]


def test_an_absurd_size_is_not_made_at_the_import() -> None:
    shape = numpy_helper.from_array(torch.tensor([1 << 40]).numpy(), "shape")
    model = with_node(
        helper.make_node("ConstantOfShape", ["shape"], ["z"]), helper.make_node("Add", ["x", "z"], ["y"]), shape=shape
    )
    to_torch(model)
    convert_opset(model, 13)


def external(**entries: str) -> onnx.TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "data.bin", **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def huge(*dims: int) -> onnx.TensorProto:
    tensor = external()
    tensor.dims[:] = dims
    return tensor


TENSORS = {
    "an offset beyond the file": external(offset="16"),
    "a negative offset": external(offset="-4"),
    "an offset that is no number": external(offset="0x10; rm"),
    "a length beyond the file": external(length="32"),
    "a length that is not the tensor's": external(length="8"),
    "more than the file holds": huge(1 << 40),
    "sizes whose product overflows": huge(1 << 32, 1 << 32, 1 << 32),
    "a negative size": huge(-4),
    "a dtype that is none": TensorProto(name="w", data_type=99, dims=[1], raw_data=b"1234"),
    "too few bytes in the file": TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=b"1234"),
    "no name for its file": external(location=""),
    "a folder for its file": external(location="."),
}


@pytest.mark.parametrize("name", TENSORS)
def test_weights_that_are_not_there_are_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "data.bin").write_bytes(b"\0" * 16)
    path = tmp_path / "model.onnx"
    path.write_bytes(with_node(helper.make_node("Add", ["x", "w"], ["y"]), w=TENSORS[name]).SerializeToString())
    with pytest.raises(OnnxExporterError):
        to_torch(path)


def test_external_data_that_are_cut_off_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(with_node(helper.make_node("Add", ["x", "w"], ["y"]), w=external()).SerializeToString())
    (tmp_path / "data.bin").write_bytes(b"\0" * 16)
    to_torch(path)
    for size in (15, 0):
        (tmp_path / "data.bin").write_bytes(b"\0" * size)
        with pytest.raises(OnnxExporterError, match=r"data\.bin"):
            to_torch(path)


def calling(*bodies: tuple[str, str]) -> onnx.ModelProto:
    """Return a model of functions, each of which calls another."""
    model = with_node(helper.make_node(bodies[0][0], ["x"], ["y"], domain="own"))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    model.opset_import.append(opsets[1])
    for name, called in bodies:
        body = [helper.make_node(called, ["a"], ["b"], domain="own")]
        model.functions.append(helper.make_function("own", name, ["a"], ["b"], body, opsets))
    return model


def doubling_functions(count: int) -> onnx.ModelProto:
    """Return a model of few functions whose nodes are 2 ** count when they are inlined."""
    model = with_node(helper.make_node("f0", ["x"], ["y"], domain="own"))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    model.opset_import.append(opsets[1])
    for place in range(count):
        domain, op_type = ("own", f"f{place + 1}") if place + 1 < count else ("", "Neg")
        body = [helper.make_node(op_type, [first], [second], domain=domain) for first, second in ("ab", "bc")]
        model.functions.append(helper.make_function("own", f"f{place}", ["a"], ["c"], body, opsets))
    return model


def nested(depth: int) -> onnx.ModelProto:
    """Return a model whose If nodes lie in each other."""
    graph = None
    for _ in range(depth):
        made = helper.make_node("Neg", ["x"], ["made"])
        if graph is not None:
            made = helper.make_node("If", ["c"], ["made"], then_branch=graph, else_branch=graph)
        graph = helper.make_graph([made], "body", [], [helper.make_tensor_value_info("made", TensorProto.FLOAT, [2])])
    model = with_node(helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=graph))
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    return model


@pytest.mark.parametrize(
    "bodies",
    [[("f", "f")], [("f", "g"), ("g", "h"), ("h", "f")], [(f"f{place}", f"f{place + 1}") for place in range(2000)]],
    ids=["itself", "in a circle", "deep"],
)
def test_functions_that_call_themselves_are_an_error(bodies: list[tuple[str, str]]) -> None:
    with pytest.raises(OnnxExporterError):
        to_torch(calling(*bodies))


def test_functions_that_become_endless_when_they_are_inlined_are_an_error() -> None:
    with pytest.raises(OnnxExporterError, match="nodes"):
        to_torch(doubling_functions(40))
    assert to_torch(doubling_functions(4))(torch.ones(2)).tolist() == [1, 1]


def test_bodies_in_bodies_are_read() -> None:
    assert to_torch(nested(5))(torch.ones(2), torch.tensor(True)).tolist() == [-1, -1]


def test_a_branch_with_fewer_outputs_than_its_node_is_an_error() -> None:
    branches = "then_branch = t () => (float[2] p) {p = Neg(x)}, else_branch = e () => (float[2] q) {q = Abs(x)}"
    text = (
        f'<ir_version: 8, opset_import: ["": 18]> g (float[2] x, bool c) => (float[2] y) {{y, z = If(c) <{branches}>}}'
    )
    with pytest.raises(OnnxExporterError, match="2 outputs"):
        to_torch(onnx.parser.parse_model(text))


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Softmax", ["x"], ["y"], axis=1.0),
        helper.make_node("Softmax", ["x"], ["y"], axis="first"),
        helper.make_node("Concat", ["x", "x"], ["y"], axis=[0]),
        helper.make_node("Cast", ["x"], ["y"], to=99),
        helper.make_node("If", ["x"], ["y"], then_branch=1, else_branch=2),
        helper.make_node("Transpose", ["x"], ["y"], perm="back"),
        helper.make_node("Constant", [], ["y"], value=1),
        helper.make_node("Constant", [], ["y"]),
    ],
    ids=lambda node: f"{node.op_type} {[each.name for each in node.attribute]}",
)
def test_attributes_of_another_type_are_an_error(node: onnx.NodeProto) -> None:
    with pytest.raises(OnnxExporterError):
        to_torch(with_node(node))
