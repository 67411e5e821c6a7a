"""Each property check finds what it is for, and nothing in sound models."""

import numpy as np
import onnx
import pytest
import realistic
from models import build, clone, info, mlp, node_named
from onnx import TensorProto, helper

from onnx_verify import Expectations, check_model, summarize


def found(model, check, **keywords):
    return [finding.message for finding in check_model(model, **keywords) if finding.check == check]


@pytest.mark.parametrize("name", ["cnn", "quantized", "control_flow"])
def test_a_sound_model_has_no_findings(name):
    assert check_model(getattr(realistic, name)()) == []


def test_an_unused_initializer_input_and_node_are_found():
    model = clone(mlp())
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3000, np.float32), "extra"))
    model.graph.input.append(info("idle", [1]))
    model.graph.node.append(helper.make_node("Neg", ["r0"], ["nowhere"], name="dead"))
    texts = found(model, "unused")
    assert any("'extra' is never read (12000 bytes)" in text for text in texts)
    assert any("'idle'" in text for text in texts)
    assert any("Neg dead" in text for text in texts)
    assert len(texts) == 3


def test_a_large_constant_is_found():
    value = onnx.numpy_helper.from_array(np.zeros(300_000, np.float32))
    nodes = [
        helper.make_node("Constant", [], ["c"], name="big", value=value),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    model = build(nodes, [info("x", [300_000])], [info("y", [300_000])])
    assert "Constant big holds 1.1 MiB" in found(model, "large constant")[0]


def test_a_wrong_opset_and_names_are_found():
    expected = Expectations(opset=17, input_names=["input"], output_names=["r2"])
    assert found(mlp(), "opset", expected=expected) == ["the opset is 18, should be 17"]
    assert found(mlp(), "names", expected=expected) == ["the inputs are ['x'], should be ['input']"]


def test_an_invalid_node_is_found():
    model = clone(mlp())
    node_named(model, "relu0").attribute.append(helper.make_attribute("no_such", 1))
    assert "no_such" in found(model, "validity", run=False)[0]


def test_a_dimension_that_is_not_really_dynamic_is_named():
    model = build(
        [helper.make_node("Add", ["x", "bias"], ["y"])],
        [info("x", ["batch", "width"])],
        [info("y", ["batch", "width"])],
        {"bias": np.ones((1, 3), np.float32)},
    )
    texts = found(model, "dynamic dimensions")
    assert any("'width' is declared dynamic, but the model fails at size 2, 4, 7" in text for text in texts)
    assert not any(text.startswith("'batch'") for text in texts)


def test_an_output_whose_size_is_not_what_it_declares_is_found():
    model = build(
        [helper.make_node("Concat", ["x", "x"], ["y"], axis=0)], [info("x", ["batch"])], [info("y", ["batch"])]
    )
    assert any("output 'y' is declared [batch]" in text for text in found(model, "dynamic dimensions"))


def test_a_dimension_that_should_be_dynamic_and_is_fixed_is_found():
    expected = Expectations(dynamic=["batch", "seq"])
    assert found(mlp(), "dynamic dimensions", expected=expected) == [
        "no input has a dynamic dimension 'seq'; it is fixed"
    ]


def test_a_random_model_is_not_deterministic():
    model = build([helper.make_node("RandomUniformLike", ["x"], ["y"])], [info("x", [50])], [info("y", [50])])
    assert "output 'y' differs" in found(model, "determinism")[0]
    assert found(mlp(), "determinism") == []


def test_nodes_without_a_kernel_are_all_named():
    code = TensorProto.BFLOAT16
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=code),
        helper.make_node("Sin", ["a"], ["b"], name="sine"),
        helper.make_node("Erf", ["b"], ["c"], name="error"),
        helper.make_node("Cast", ["c"], ["y"], to=TensorProto.FLOAT),
    ]
    texts = found(build(nodes, [info("x", ["n"])], [info("y", ["n"])], opset=22), "kernels")
    assert len(texts) == 2
    assert "Sin sine on bfloat16" in texts[0]
    assert "Erf error on bfloat16" in texts[1]


def test_a_state_that_does_not_fit_back_is_found():
    states = {"past_k": "present_k", "past_v": "present_v"}
    assert found(realistic.decoder(), "state", expected=Expectations(states=states)) == []
    texts = found(counter(stale=True), "state", expected=Expectations(states={"old": "new"}))
    assert "may be stale" in texts[0]
    assert found(counter(), "state", expected=Expectations(states={"old": "new"})) == []
    assert "there is no state" in found(counter(), "state", expected=Expectations(states={"old": "typo"}))[0]
    growing = build(
        [helper.make_node("Concat", ["old", "x"], ["new"], axis=0)],
        [info("x", [2]), info("old", [2])],
        [info("new", [4])],
    )
    assert (
        "does not take its own state back" in found(growing, "state", expected=Expectations(states={"old": "new"}))[0]
    )


def counter(stale=False):
    kind, inputs = ("Identity", ["old"]) if stale else ("Add", ["old", "x"])
    nodes = [helper.make_node(kind, inputs, ["new"]), helper.make_node("Mul", ["x", "old"], ["y"])]
    return build(nodes, [info("x", [2]), info("old", [2])], [info("y", [2]), info("new", [2])])


def test_a_summary_counts_what_is_there():
    summary = summarize(realistic.control_flow())
    assert summary["nodes"] == 3
    assert summary["operators"]["If"] == 1
    assert summary["opsets"] == {"ai.onnx": 18}
    assert summary["inputs"] == [{"name": "x", "dtype": "float", "shape": ["n"]}]
    assert summarize(mlp(width=64))["parameters"] == 3 * (64 * 64 + 64)


def test_names_that_occur_twice_are_found():
    nodes = [helper.make_node("Neg", ["x"], ["a"], name="same"), helper.make_node("Neg", ["a"], ["y"], name="same")]
    model = build(nodes, [info("x", ["n"])], [info("y", ["n"]), info("y", ["n"])])
    texts = found(model, "names", run=False)
    assert any("2 outputs are called 'y'" in text for text in texts)
    assert any("2 nodes are called 'same'" in text for text in texts)


def test_a_model_refused_for_another_reason_is_reported_as_it_is():
    nodes = [helper.make_node("NoSuchOp", ["x"], ["y"], domain="nowhere")]
    assert "NoSuchOp" in found(build(nodes, [info("x", ["n"])], [info("y", ["n"])]), "kernels")[0]
