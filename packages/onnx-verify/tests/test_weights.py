"""Large initializers, which are kept outside the graph, behave like any other."""

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from models import build, info, normal
from onnx import TensorProto, helper

from onnx_verify import Backend, compare, find_mismatch, load_model
from onnx_verify.models.storage import save_model

BIG = normal(2000)
X = (normal(2000, seed=1),)
REFERENCE = Backend.parse("reference")


def vector(name):
    return info(name, [2000])


@pytest.mark.parametrize("backend", [Backend(), REFERENCE], ids=["ort", "reference"])
def test_a_large_initializer_that_nothing_reads_does_no_harm(backend):
    model = build([helper.make_node("Neg", ["x"], ["y"])], [vector("x")], [vector("y")], {"unused": BIG})
    assert list(load_model(model).weights) == ["unused"]
    assert compare(lambda x: -x, model, X, backend=backend)


@pytest.mark.parametrize("backend", [Backend(), REFERENCE], ids=["ort", "reference"])
def test_a_large_initializer_that_is_an_output_is_returned(backend):
    model = build([helper.make_node("Neg", ["x"], ["y"])], [vector("x")], [vector("y"), vector("w")], {"w": BIG})
    assert compare(lambda x: (-x, BIG), model, X, backend=backend)


@pytest.mark.parametrize("backend", [Backend(), REFERENCE], ids=["ort", "reference"])
def test_a_large_initializer_that_only_a_body_reads_is_found(backend):
    then = helper.make_graph([helper.make_node("Add", ["x", "w"], ["t"])], "then", [], [vector("t")])
    other = helper.make_graph([helper.make_node("Sub", ["x", "w"], ["o"])], "else", [], [vector("o")])
    nodes = [helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other)]
    flag = info("flag", [], TensorProto.BOOL)
    model = build(nodes, [vector("x"), flag], [vector("y")], {"w": BIG})
    sets = [(*X, np.asarray(True)), (*X, np.asarray(False))]
    assert compare(lambda x, flag: x + BIG if flag else x - BIG, model, sets, backend=backend)


def test_a_large_initializer_that_a_function_takes_is_found():
    function = helper.make_function(
        "d", "Plus", ["a", "b"], ["c"], [helper.make_node("Add", ["a", "b"], ["c"])], [helper.make_opsetid("", 18)]
    )
    call = helper.make_node("Plus", ["x", "w"], ["y"], domain="d")
    model = build([call], [vector("x")], [vector("y")], {"w": BIG}, functions=[function])
    assert compare(lambda x: x + BIG, model, X)
    assert find_mismatch(model, X, reference=model, exhaustive=True).ok


def test_an_initializer_that_is_also_an_input_keeps_its_value():
    model = build([helper.make_node("Add", ["x", "w"], ["y"])], [vector("x"), vector("w")], [vector("y")], {"w": BIG})
    assert [value.name for value in load_model(model).inputs] == ["x"]
    assert compare(lambda x: x + BIG, model, X)


def known_to_onnx_ir(name):
    return pytest.mark.skipif(name not in ir.DataType.__members__, reason=f"this release of onnx-ir has no {name}")


@pytest.mark.parametrize(
    "values",
    [
        normal(3000).astype(ml_dtypes.bfloat16),
        normal(9001).astype(ml_dtypes.float8_e5m2),
        np.arange(9001).astype(ml_dtypes.int4),
        np.arange(9001).astype(ml_dtypes.uint4),
        pytest.param(np.arange(18001).astype(ml_dtypes.int2), marks=known_to_onnx_ir("INT2")),
        pytest.param(np.arange(18001).astype(ml_dtypes.uint2), marks=known_to_onnx_ir("UINT2")),
        pytest.param(normal(9001).astype(ml_dtypes.float6_e2m3fn), marks=known_to_onnx_ir("FLOAT6E2M3")),
        pytest.param(normal(9001).astype(ml_dtypes.float6_e3m2fn), marks=known_to_onnx_ir("FLOAT6E3M2")),
        normal(3000).astype(np.complex64),
        np.arange(9001) % 2 == 0,
        np.arange(3000, dtype=np.uint16),
    ],
    ids=lambda values: values.dtype.name,
)
@pytest.mark.parametrize("form", ["raw", "external", "saved"])
def test_every_element_type_survives(values, form, tmp_path):
    tensor = ir.to_proto(ir.tensor(values, name="w"))
    model = build(
        [helper.make_node("Identity", ["w"], ["y"])], [], [info("y", [len(values)], tensor.data_type)], opset=23
    )
    model.graph.initializer.append(tensor)
    path = tmp_path / "m.onnx"
    if form == "external":
        onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    elif form == "saved":
        save_model(load_model(model), path)
    loaded = load_model(model if form == "raw" else path)
    assert list(loaded.weights) == ["w"]
    read = loaded.initializer_values("w")
    assert read.dtype == values.dtype
    np.testing.assert_array_equal(read, values)
    np.testing.assert_array_equal(ir.from_proto(loaded.to_proto().graph.initializer[0]).numpy(), values)


def test_a_large_model_is_saved_with_its_weights_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr("onnx_verify.models.storage._SINGLE_FILE", 100)
    model = build([helper.make_node("Add", ["x", "w"], ["y"])], [vector("x")], [vector("y")], {"w": BIG})
    save_model(load_model(model), tmp_path / "m.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert compare(lambda x: x + BIG, tmp_path / "m.onnx", X)
    assert compare(model, onnx.load(tmp_path / "m.onnx"), X)


def test_a_disk_that_refuses_leaves_no_file(tmp_path, monkeypatch):
    import onnx_verify

    def refuse(*_):
        raise OSError("full")

    model = build([helper.make_node("Add", ["x", "w"], ["y"])], [vector("x")], [vector("y")], {"w": BIG})
    monkeypatch.setattr("onnx_verify.models.storage.os.replace", refuse)
    for limit in (1 << 30, 100):
        monkeypatch.setattr("onnx_verify.models.storage._SINGLE_FILE", limit)
        with pytest.raises(onnx_verify.OnnxVerifyError, match="cannot be written: full"):
            save_model(load_model(model), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []
