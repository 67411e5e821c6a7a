"""Models in windows: the same values, whatever the outputs are."""

import numpy as np
import pytest
import realistic
from models import build, clone, info, mlp, node_named, normal
from onnx import TensorProto, helper

from onnx_verify import Backend, InputSet, compare, find_mismatch, load_model
from onnx_verify.running.streaming import StreamedRuntime, bounded_runtime

CASES = {
    "cnn": InputSet((normal(2, 3, 12, 12),)),
    "decoder": InputSet(kwargs=realistic.decoder_inputs()),
    "recurrent": InputSet((normal(4, 2, 5),)),
    "control_flow": InputSet((normal(4),)),
}


@pytest.mark.parametrize("limit", [1, 20_000])
@pytest.mark.parametrize("name", CASES)
def test_a_model_in_windows_agrees_with_one_session(name, limit):
    model = load_model(getattr(realistic, name)())
    windows = StreamedRuntime(model, Backend(), limit)
    assert compare(Backend().load(model), windows, [CASES[name]])


def test_outputs_may_be_inputs_initializers_and_sequences():
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("SequenceConstruct", ["x", "y"], ["s"])]
    big = normal(2000)
    model = build(nodes, [info("x", [3])], [info("y", [3]), info("x", [3]), info("w", [2000]), sequence], {"w": big})
    outputs = StreamedRuntime(load_model(model), Backend(), 1).run(InputSet((normal(3),)))
    assert [name for name, _ in outputs] == ["y", "x", "w", "s[0]", "s[1]"]
    np.testing.assert_array_equal(outputs[2][1], big)
    np.testing.assert_array_equal(outputs[4][1], -outputs[1][1])


def test_windows_are_used_only_where_the_weights_are_large():
    small, large = load_model(mlp(width=8)), load_model(mlp(width=64))
    assert not isinstance(bounded_runtime(small, Backend(), 1 << 20), StreamedRuntime)
    assert not isinstance(bounded_runtime(large, Backend(), 1 << 20), StreamedRuntime)
    assert isinstance(bounded_runtime(large, Backend(), 1 << 16), StreamedRuntime)


def test_a_fault_is_found_in_a_model_that_runs_in_windows():
    sound = mlp(width=64)
    broken = clone(sound)
    node_named(broken, "relu1").op_type = "Abs"
    report = find_mismatch(broken, (normal(2, 64),), reference=sound, memory_limit=1 << 12)
    assert "in windows" in report.verdict.candidate
    assert report.first.node.name == "relu1"


def test_an_operator_that_shape_inference_does_not_know_costs_only_the_estimate():
    node = helper.make_node("Gelu", ["x"], ["g"], domain="com.microsoft", name="gelu")
    model = build([node, helper.make_node("Neg", ["g"], ["y"])], [info("x", ["n"])], [info("y", ["n"])])
    windows = StreamedRuntime(load_model(model), Backend(), 1)
    assert compare(Backend().load(model), windows, [(normal(5),)])


def sequences(kind="SequenceInsert", last="second"):
    nodes = [
        helper.make_node("Neg", ["x"], ["first"], name="negate"),
        helper.make_node("Exp", ["x"], ["second"], name="exp"),
        helper.make_node("SequenceConstruct", ["x", "first"], ["s"], name="make"),
        helper.make_node(kind, ["s", last], ["t"], name="grow")
        if kind == "SequenceInsert"
        else helper.make_node(kind, ["s"], ["t"], name="grow"),
        helper.make_node("ConcatFromSequence", ["t"], ["y"], name="join", axis=0),
    ]
    return build(nodes, [info("x", ["n"])], [info("y", ["m"])])


@pytest.mark.parametrize(
    "broken, message",
    [(sequences(last="x"), "elements differ"), (sequences("SequenceErase"), "sequence has 1 elements, should have 3")],
)
def test_a_wrong_sequence_is_found(broken, message, tmp_path):
    report = find_mismatch(broken, (normal(3),), reference=sequences())
    assert report.first.node.name == "grow"
    assert message in str(report.first)
    assert report.first.export_repro(tmp_path).exists()


def test_a_repro_with_sequences_runs(tmp_path):
    import subprocess
    import sys

    report = find_mismatch(sequences(last="x"), (normal(3),), reference=sequences())
    script = report.first.export_repro(tmp_path)
    run = subprocess.run([sys.executable, "-I", script], capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stderr
    assert "MISMATCH" in run.stdout
