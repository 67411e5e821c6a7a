"""Weights of a model file are mapped, wherever they lie, and a file that is not as expected is read as a whole."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from onnxops_decomp import ModelImportError, to_torch
from onnxops_decomp.files.mapped import read_mapped
from onnxops_decomp.files.streaming import length_delimited

SIDE = 160
"""Large enough for a weight that is mapped."""


def weights(*dtypes):
    return {
        f"w{place}": (np.arange(SIDE * SIDE).reshape(SIDE, SIDE) % 13).astype(dtype)
        for place, dtype in enumerate(dtypes)
    }


def model(constants, name=""):
    nodes = [
        helper.make_node("Cast", ["x"], ["h0"], to=TensorProto.FLOAT),
        *(
            node
            for place in range(len(constants))
            for node in (
                helper.make_node("Cast", [f"w{place}"], [f"f{place}"], to=TensorProto.FLOAT),
                helper.make_node("Add", [f"h{place}", f"f{place}"], [f"h{place + 1}"]),
            )
        ),
    ]
    infos = [
        helper.make_tensor_value_info(value, TensorProto.FLOAT, [SIDE, SIDE]) for value in ("x", f"h{len(constants)}")
    ]
    tensors = [numpy_helper.from_array(array, key) for key, array in constants.items()]
    graph = helper.make_graph(nodes, "graph" + name, infos[:1], infos[1:], tensors, doc_string="of a test")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9, producer_name="tool")


def result_of(path):
    return to_torch(path)(torch.zeros(SIDE, SIDE))


@pytest.mark.parametrize("shift", range(8))
def test_weights_inside_of_a_file_are_mapped_wherever_they_begin(tmp_path, shift: int) -> None:
    constants = weights(np.float32, np.float64, np.float16, np.int64, np.uint8)
    path = tmp_path / "model.onnx"
    onnx.save(model(constants, "g" * shift), path)

    assert read_mapped(path) is not None
    module = to_torch(path)
    assert module.meta["onnx"]["producer_name"] == "tool"
    assert {name: value.dtype for name, value in module.state_dict().items()} == {
        name: torch.from_numpy(array).dtype for name, array in constants.items()
    }
    torch.testing.assert_close(module(torch.zeros(SIDE, SIDE)), torch.from_numpy(constants["w4"]).float() * 5)


def test_writing_to_mapped_weights_leaves_the_file(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(weights(np.float32)), path)
    before = path.read_bytes()
    module = to_torch(path)
    with torch.no_grad():
        module.w0.add_(1)
    assert path.read_bytes() == before


def test_a_file_behind_a_link_is_read_with_the_data_beside_it(tmp_path) -> None:
    (tmp_path / "blobs").mkdir()
    onnx.save(model(weights(np.float32)), tmp_path / "blobs" / "1")
    path = tmp_path / "model.onnx"
    path.symlink_to(tmp_path / "blobs" / "1")
    assert result_of(path).sum() == weights(np.float32)["w0"].sum()


def test_some_weights_beside_the_file_and_some_inside(tmp_path) -> None:
    made = model(weights(np.float32, np.float32))
    tensor = made.graph.initializer[1]
    (tmp_path / "data.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="data.bin")
    path = tmp_path / "model.onnx"
    path.write_bytes(made.SerializeToString())
    assert result_of(path).sum() == 2 * weights(np.float32)["w0"].sum()


def test_a_tensor_that_claims_more_than_the_file_holds_is_refused(tmp_path) -> None:
    made = model(weights(np.float32))
    made.graph.initializer[0].dims[0] = 1 << 40
    path = tmp_path / "model.onnx"
    path.write_bytes(made.SerializeToString())
    with pytest.raises(ModelImportError, match="w0"):
        to_torch(path)


@pytest.mark.parametrize("stop", [10, 1000, 70_000, 102_000])
def test_a_file_that_is_cut_off_is_refused(tmp_path, stop: int) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model(weights(np.float32)).SerializeToString()[:stop])
    with pytest.raises(ModelImportError):
        to_torch(path)


def doubled(proto: onnx.ModelProto) -> bytes:
    """Return a model whose graph is written in two parts, which protobuf joins."""
    whole, rest = proto.graph, onnx.GraphProto()
    rest.initializer.extend(whole.initializer)
    del whole.initializer[:]
    data, part = proto.SerializeToString(), rest.SerializeToString()
    return data + length_delimited(7, len(part)) + part


def twice(proto: onnx.ModelProto) -> bytes:
    proto.graph.initializer.append(proto.graph.initializer[0])
    return proto.SerializeToString()


def as_numbers(proto: onnx.ModelProto) -> bytes:
    tensor = proto.graph.initializer[0]
    values = numpy_helper.to_array(tensor).reshape(-1).tolist()
    proto.graph.initializer[0].CopyFrom(helper.make_tensor("w0", TensorProto.FLOAT, [SIDE, SIDE], values))
    return proto.SerializeToString()


@pytest.mark.parametrize("written", [doubled, twice, as_numbers])
def test_another_layout_of_a_file_is_read_too(tmp_path, written) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(written(model(weights(np.float32))))
    assert result_of(path).sum() == weights(np.float32)["w0"].sum()
