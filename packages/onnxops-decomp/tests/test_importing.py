"""An ONNX model as a module of torch computes what ONNX Runtime computes of it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from importable_models import model, wanted
from onnx import TensorProto, helper, numpy_helper

from onnxops_decomp import ModelImportError, to_torch

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def flattening():
    """Reshape to sizes that are computed from the input's, as older exporters write it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "zero"], ["batch"]),
        helper.make_node("Unsqueeze", ["batch", "front"], ["batch_1d"]),
        helper.make_node("Concat", ["batch_1d", "rest"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["flat"]),
        helper.make_node("MatMul", ["flat", "layer.weight"], ["y"], name="product"),
    ]
    weight = np.arange(24, dtype=np.float32).reshape(12, 2)
    constants = {"zero": np.array(0), "front": np.array([0]), "rest": np.array([-1]), "layer.weight": weight}
    return model(nodes, [("x", FLOAT, ["n", 3, 4])], [("y", FLOAT, ["n", 2])], constants)


def test_sizes_are_python_numbers_so_that_export_keeps_them_dynamic() -> None:
    module = to_torch(flattening())
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(module, (torch.rand(3, 3, 4),), dynamic_shapes=({0: batch},))

    x = torch.rand(5, 3, 4)
    torch.testing.assert_close(program.module()(x), x.reshape(5, 12) @ module.layer.weight)


def test_the_names_of_the_file_are_those_of_the_module() -> None:
    module = to_torch(flattening(), trainable=True)

    assert list(module.state_dict()) == ["layer.weight"]
    assert module.layer.weight.requires_grad
    assert [node.name for node in module.graph.nodes if node.op == "placeholder"] == ["x"]
    (product,) = [node for node in module.graph.nodes if node.meta.get("onnx", {}).get("op_type") == "MatMul"]
    assert product.meta["onnx"]["name"] == "product"
    assert module.meta["onnx"]["outputs"] == ["y"]


def test_a_cast_of_nan_to_four_bits_gives_the_largest_value_as_the_specification_says() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["small"], to=TensorProto.FLOAT4E2M1),
        helper.make_node("Cast", ["small"], ["y"], to=FLOAT),
    ]
    module = to_torch(model(nodes, [("x", FLOAT, [4])], [("y", FLOAT, [4])], opset=25))
    made = module(torch.tensor([np.nan, np.inf, -np.inf, 1.2]))
    torch.testing.assert_close(made, torch.tensor([6.0, 6.0, -6.0, 1.0]))


@pytest.mark.parametrize(
    "name", ["FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "DOUBLE"]
)
@pytest.mark.parametrize("external", [False, True])
def test_weights_of_every_float_are_read(tmp_path, name: str, external: bool) -> None:
    number = TensorProto.DataType.Value(name)
    made = model([helper.make_node("Cast", ["w"], ["y"], to=FLOAT)], [], [("y", FLOAT, [2])])
    made.graph.initializer.append(helper.make_tensor("w", number, [2], [1.5, -2.0]))
    raw = numpy_helper.from_array(numpy_helper.to_array(made.graph.initializer[0]), "w")
    made.graph.initializer[0].CopyFrom(raw)
    path = tmp_path / "model.onnx"
    onnx.save(made, path, save_as_external_data=external, size_threshold=0)
    assert to_torch(path)().tolist() == [1.5, -2]


@pytest.mark.parametrize("opset", [21, 23, 25])
def test_quantization_to_four_bits_takes_the_type_of_the_file_at_every_opset(opset: int) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    made = model(nodes, [("x", FLOAT, [3])], [("y", FLOAT, [3])], {"scale": np.array(0.5, np.float32)}, opset)
    made.graph.initializer.append(helper.make_tensor("zero", TensorProto.INT4, [], [-3]))
    got = to_torch(made)(torch.tensor([-80.0, 0.3, 80.0]))
    torch.testing.assert_close(got, torch.tensor([-2.5, 0.5, 5.0]))


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("names", [["x", "low"], ["x", "", "high"], ["x", "low", "high"]])
def test_unsigned_numbers_are_clipped_as_such(names: list[str], dtype: type) -> None:
    most = np.iinfo(dtype).max
    x = np.array([0, most // 2, most // 2 + 9, most], dtype)
    bounds = {"low": np.array(most // 2 + 3, dtype), "high": np.array(most - 1, dtype)}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    made = model(
        [helper.make_node("Clip", names, ["y"])], [("x", [4])], [("y", [4])], {n: bounds[n] for n in names[1:] if n},
        dtype=kind,
    )  # fmt: skip
    want = np.clip(x, bounds["low"] if "low" in names else None, bounds["high"] if "high" in names else None)
    np.testing.assert_array_equal(to_torch(made)(torch.from_numpy(x)).numpy(), want)


@pytest.mark.parametrize("start, end, step", [(-100, -200, -1), (-6, -7, -1), (100, -200, -2), (-100, 200, 3)])
def test_limits_of_a_slice_outside_of_the_tensor_are_moved_to_its_ends(start: int, end: int, step: int) -> None:
    constants = {"start": np.array([start]), "end": np.array([end]), "axis": np.array([0]), "step": np.array([step])}
    made = model([helper.make_node("Slice", ["x", *constants], ["y"])], [("x", ["n"])], [("y", ["m"])], constants)
    for size in (5, 3, 1):
        x = np.arange(size, dtype=np.float32)
        (want,) = wanted(made, {"x": x})
        np.testing.assert_array_equal(to_torch(made)(torch.from_numpy(x)).numpy(), want)


def test_a_signal_may_lack_the_last_dimension_as_torch_onnx_writes_it() -> None:
    constants = {"step": np.array(2), "window": np.array([0.1, 0.9, 0.9, 0.1], np.float32)}
    node = helper.make_node("STFT", ["x", "step", "window"], ["y"])
    made = model([node], [("x", [1, "n"])], [("y", [1, "frames", 3, 2])], constants)
    x = np.random.default_rng(0).standard_normal((1, 11)).astype(np.float32)
    (want,) = wanted(made, {"x": x})
    torch.testing.assert_close(to_torch(made)(torch.from_numpy(x)), torch.from_numpy(want))


@pytest.mark.parametrize("start, limit, step", [(3, 1, 1), (0, 7, -1), (10, 0, -3), (0, 5, 2), (2, 2, 1)])
@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_a_range_away_from_its_limit_is_empty(start: int, limit: int, step: int, dtype: type) -> None:
    feeds = dict(zip(("start", "limit", "step"), (np.array(each, dtype) for each in (start, limit, step)), strict=True))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node("Range", list(feeds), ["y"])
    made = model([node], [(name, []) for name in feeds], [("y", ["n"])], dtype=kind)
    (want,) = wanted(made, feeds)
    got = to_torch(made)(*map(torch.from_numpy, feeds.values())).numpy()
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


PLACES = "<int64[1] zero = {0}, int64 z = {0}, int64 two = {2}, int64[2] twice = {0, 0}, int64[2, 1] below = {-3, 0}>"


@pytest.mark.parametrize(
    "body",
    [
        "y = Squeeze(x, zero)",
        "s = Shape(x) n = Squeeze(s, zero) y = ConstantOfShape(n)",
        "y = Unsqueeze(x, twice)",
        "y = GatherND(x, below)",
        "y = ScatterND(x, below, x)",
        "s = SequenceConstruct(x, x) t = SequenceErase(s, two) y = SequenceAt(t, z)",
        "s = SequenceConstruct(x) t = SequenceInsert(s, x, two) y = SequenceAt(t, z)",
    ],
)
def test_places_that_there_are_not_are_an_error(body: str) -> None:
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> g (float[n, m] x) => (float y) {PLACES} {{{body}}}'
    )
    module = to_torch(made)
    with pytest.raises((ValueError, IndexError)):
        module(torch.ones(2, 3))


def test_a_module_lies_on_the_cpu_whatever_the_default_device_is() -> None:
    nodes = [helper.make_node("Add", ["one", "one"], ["two"]), helper.make_node("Mul", ["x", "two"], ["y"])]
    with torch.device("meta"):
        module = to_torch(model(nodes, [("x", [2])], [("y", [2])], {"one": np.ones(2, np.float32)}))
    assert module(torch.ones(2)).tolist() == [2, 2]


def test_what_is_made_of_sizes_lands_on_the_default_device() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Squeeze", ["sizes"], ["n"]),
        helper.make_node("Range", ["zero", "n", "one"], ["steps"]),
        helper.make_node("ConstantOfShape", ["sizes"], ["zeros"]),
        helper.make_node("HannWindow", ["n"], ["window"]),
        helper.make_node("Cast", ["steps"], ["floats"], to=FLOAT),
        helper.make_node("Sum", ["x", "w", "floats", "zeros", "window"], ["y"]),
    ]
    constants = {"zero": np.array(0), "one": np.array(1), "w": np.ones(1, np.float32)}
    outputs = [("y", FLOAT, ["n"]), ("sizes", INT64, [1])]
    module = to_torch(model(nodes, [("x", FLOAT, ["n"])], outputs, constants)).to("meta")
    with torch.device("meta"):
        made = module(torch.ones(5))
    assert [each.device.type for each in made] == ["meta", "meta"]


def branches():
    def branch(op_type):
        made = helper.make_node(op_type, ["x", "w"], ["made"])
        return helper.make_graph([made], "branch", [], [helper.make_tensor_value_info("made", FLOAT, [3])])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("Add"), else_branch=branch("Mul"))
    inputs = [("x", FLOAT, [3]), ("c", BOOL, [])]
    return model([node], inputs, [("y", FLOAT, [3])], {"w": np.array([1, 2, 3], np.float32)})


@pytest.mark.parametrize("condition", [True, False])
def test_a_branch_is_python_in_eager_mode_and_cond_in_an_exported_program(condition: bool) -> None:
    module = to_torch(branches())
    x, w = torch.rand(3), torch.tensor([1.0, 2.0, 3.0])
    program = torch.export.export(module, (x, torch.tensor(True)))

    expected = x + w if condition else x * w
    torch.testing.assert_close(module(x, torch.tensor(condition)), expected)
    torch.testing.assert_close(program.module()(x, torch.tensor(condition)), expected)


def test_gradients_reach_the_parameters_of_the_file() -> None:
    module = to_torch(flattening(), trainable=True)
    module(torch.ones(2, 3, 4)).sum().backward()
    torch.testing.assert_close(module.layer.weight.grad, torch.full((12, 2), 2.0))


def test_the_statistics_of_a_normalization_are_buffers_and_the_rest_of_it_is_trained() -> None:
    constants = {name: np.array([1, 2, 3], np.float32) for name in ("scale", "bias", "mean", "var")}
    node = helper.make_node("BatchNormalization", ["x", *constants], ["y"])
    shape = ["n", 3, "m"]
    module = to_torch(model([node], [("x", FLOAT, shape)], [("y", FLOAT, shape)], constants), trainable=True)

    module(torch.ones(2, 3, 4)).sum().backward()

    assert {name for name, each in module.named_parameters() if each.grad is not None} == {"scale", "bias"}
    assert dict(module.named_buffers()).keys() == {"mean", "var"}


def test_external_data_are_mapped_and_writing_to_them_leaves_the_file(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(flattening(), path, save_as_external_data=True, location="data.bin", size_threshold=0)
    before = (tmp_path / "data.bin").read_bytes()
    module = to_torch(path)

    with torch.no_grad():
        module.layer.weight.zero_()

    assert (tmp_path / "data.bin").read_bytes() == before
    assert to_torch(path).layer.weight.sum() == 276


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "missing.bin"])
def test_data_outside_of_the_folder_are_refused(tmp_path, location: str) -> None:
    broken = flattening()
    (tensor,) = [each for each in broken.graph.initializer if each.name == "layer.weight"]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    path = tmp_path / "model.onnx"
    path.write_bytes(broken.SerializeToString())

    with pytest.raises(ModelImportError, match=r"layer\.weight"):
        to_torch(path)


def test_a_file_that_is_no_model_is_an_error_of_the_package(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\xff nothing")
    with pytest.raises(ModelImportError, match="cannot be read"):
        to_torch(path)


@pytest.mark.parametrize(
    "node, message",
    [
        (helper.make_node("Nothing", ["x"], ["y"], name="n"), "has no such operator"),
        (helper.make_node("Relu", ["x"], ["y"], name="n", alpha=1.0), "attribute 'alpha'"),
        (helper.make_node("Relu", ["x", "x"], ["y"], name="n"), "2 inputs"),
        (helper.make_node("Add", ["x", "absent"], ["y"], name="n"), "'absent'"),
    ],
)
def test_a_node_that_is_not_understood_is_named(node, message: str) -> None:
    with pytest.raises(ModelImportError, match=message) as caught:
        to_torch(model([node], [("x", FLOAT, [2])], [("y", FLOAT, [2])]))
    assert caught.value.node == "n"


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_sizes_in_a_tensor_of_any_rank(rank: int) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "places"], ["picked"]),
        helper.make_node("Unsqueeze", ["picked", "front"], ["row"]),
        helper.make_node("Add", ["row", "one"], ["y"]),
    ]
    constants = {"places": np.array([[0, 1], [1, 0]])[(0,) * (2 - rank)], "front": np.array([0]), "one": np.array(1)}
    module = to_torch(model(nodes, [("x", FLOAT, ["n", 3])], [("y", INT64, None)], constants))
    want = np.array([[6, 4], [4, 6]])[(0,) * (2 - rank)]
    assert module(torch.ones(5, 3)).tolist() == want[None].tolist()


def test_an_optional_without_a_value_has_a_type() -> None:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
    nodes = [helper.make_node("Optional", [], ["o"], type=kind), helper.make_node("OptionalHasElement", ["o"], ["y"])]
    assert to_torch(model(nodes, [], [("y", BOOL, [])]))().item() is False
