"""Several engines judge one model."""

import json
import runpy
import sys
import types

import ml_dtypes
import numpy as np
import onnx
import pytest
import runtime_survey
from models import build, info
from onnx import TensorProto, helper
from typer.testing import CliRunner

import onnx_verify
from onnx_verify import Backend, InputError, InputSet, ModelRunError, blame, compare, find_mismatch, portable
from onnx_verify.cli import app
from onnx_verify.judging import gaps
from onnx_verify.judging import portable as judging
from onnx_verify.judging.gaps import Fate, Measured
from onnx_verify.running import engines

pytest.importorskip("onnxops_decomp", reason="onnxops-decomp is not installed")
THREE = ["ort", "reference", "torch"]


def network():
    weight = onnx.numpy_helper.from_array(np.random.default_rng(0).standard_normal((4, 3)).astype("f"), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Softmax", ["h"], ["s"], name="softmax", axis=-1),
        helper.make_node("Neg", ["s"], ["y"], name="negation"),
    ]
    model = build(nodes, [info("x", ["n", 4])], [info("y", ["n", 3])])
    model.graph.initializer.append(weight)
    return model


def wrong_softmax(model):
    """An engine that is ONNX's evaluator, but takes Softmax for Hardmax."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for node in changed.graph.node:
        if node.op_type == "Softmax":
            node.op_type = "Hardmax"
    evaluator = onnx.reference.ReferenceEvaluator(changed)
    return lambda feeds: evaluator.run(None, dict(feeds))


def without_softmax(model):
    if any(node.op_type == "Softmax" for node in model.graph.node):
        raise NotImplementedError("no kernel for Softmax")
    return wrong_softmax(model)


@pytest.fixture
def others(monkeypatch):
    """Two engines as other packages offer them."""
    from importlib.metadata import EntryPoint

    offered = types.ModuleType("offered_engines")
    offered.wrong_softmax, offered.without_softmax = wrong_softmax, without_softmax
    monkeypatch.setitem(sys.modules, "offered_engines", offered)
    names = ("wrong_softmax", "without_softmax")
    found = [EntryPoint(name, f"offered_engines:{name}", engines.GROUP) for name in names]
    monkeypatch.setattr(engines, "entry_points", lambda group: found if group == engines.GROUP else [])
    for function in (engines._found, engines.engine):
        function.cache_clear()
    yield
    for function in (engines._found, engines.engine):
        function.cache_clear()


@pytest.mark.parametrize("name", ["torch", "openvino"])
def test_an_engine_runs_models_and_agrees(name):
    if name == "openvino":
        pytest.importorskip("openvino")
    assert compare(network(), Backend.parse(name).load(network()), "random").ok


@pytest.mark.parametrize("code, dtype", [(TensorProto.BFLOAT16, ml_dtypes.bfloat16), (TensorProto.FLOAT16, np.float16)])
def test_torch_takes_and_gives_half_floats(code, dtype):
    model = build([helper.make_node("Identity", ["x"], ["y"])], [info("x", ["n"], code)], [info("y", ["n"], code)])
    ((_, made),) = Backend.parse("torch").load(model).run(InputSet((np.arange(3).astype(dtype),)))
    assert made.dtype == dtype
    assert made.astype(np.float32).tolist() == [0, 1, 2]


@pytest.mark.parametrize("code, kind", [(TensorProto.UINT64, np.uint64), (TensorProto.INT64, np.int64)])
def test_torch_takes_the_integers_that_onnx_runtime_gives(code, kind):
    model = build([helper.make_node("Identity", ["x"], ["y"])], [info("x", ["n"], code)], [info("y", ["n"], code)])
    given = np.arange(3, dtype=kind)
    for _ in range(2):
        ((_, given),) = Backend.parse("ort").load(model).run(InputSet((given,)))
        ((_, given),) = Backend.parse("torch").load(model).run(InputSet((given,)))
    assert given.dtype == kind
    assert given.tolist() == [0, 1, 2]


def test_sequences_pass_through_torch():
    nodes = [helper.make_node("SequenceConstruct", ["x", "x"], ["y"])]
    output = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, ["n"])
    model = build(nodes, [info("x", ["n"])], [output])
    assert compare(model, Backend.parse("torch").load(model), "random").ok


@pytest.mark.parametrize("pair", [("torch", "ort"), ("reference", "torch"), ("torch", "reference")])
def test_any_pair_can_be_searched(pair):
    one, other = map(Backend.parse, pair)
    assert find_mismatch(network(), "random", backend=one, reference_backend=other, exhaustive=True).ok


def test_a_name_that_no_engine_has_is_refused():
    with pytest.raises(InputError, match=r"unknown runtime 'nothing'.*torch"):
        Backend.parse("nothing")


def test_engines_that_agree_are_not_blamed():
    found = blame(network(), engines=THREE)
    assert found.ok
    assert found.alone is None
    assert str(found) == "ort, reference, torch agree"


def test_the_engine_that_stands_alone_is_blamed_on_the_node(others, tmp_path):
    found = blame(network(), engines=[*THREE, "wrong_softmax"])
    assert not found.ok
    assert found.alone == "wrong_softmax"
    assert found.node.node.name == "softmax"
    assert "ort" in str(found)
    script = found.node.export_repro(tmp_path / "repro")
    assert (script.parent / "model.onnx").exists()
    assert json.loads((script.parent / "settings.json").read_text())["runtime"] == "wrong_softmax"
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 1


def test_of_two_that_disagree_none_stands_alone(others):
    found = blame(network(), engines=["ort", "wrong_softmax"])
    assert not found.ok
    assert found.alone is None


def test_one_engine_is_no_judgment():
    with pytest.raises(ModelRunError, match="fewer than two"):
        blame(network(), engines=["ort"])


def test_each_place_says_what_stands_in_the_way(others):
    places = {
        (place.engine, place.opset): place
        for place in portable(network(), opsets=[11, 21], engines=["ort", "torch", "without_softmax", "wrong_softmax"])
    }
    own = onnx_verify.load_model(network()).opset
    assert {opset for _, opset in places} == {own, 11, 21}
    assert all(places[name, opset].ok for name in ("ort", "torch") for opset in (own, 11, 21))
    assert places["without_softmax", 21].operator == "Softmax"
    assert not places["without_softmax", 21].loads
    assert places["wrong_softmax", 21].agrees is False
    assert places["wrong_softmax", 21].operator == "Softmax"
    assert "differ" in places["wrong_softmax", 21].reason


def test_an_engine_that_is_alone_in_running_a_model_agrees_with_nothing(others):
    ours, other = portable(network(), engines=["ort", "without_softmax"])
    assert (ours.loads, ours.agrees, ours.ok) == (True, None, False)
    assert "no other engine" in ours.reason
    assert other.operator == "Softmax"


def branching():
    """A model whose Softmax stands in the branches of an If."""

    def branch(name):
        node = helper.make_node("Softmax", ["x"], [name], axis=-1)
        return helper.make_graph([node], name, [], [info(name, ["n"])])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("a"), else_branch=branch("b"))
    return build([node], [info("x", ["n"]), info("c", [], TensorProto.BOOL)], [info("y", ["n"])])


def no_branches(model):
    if any(node.op_type == "If" for node in model.graph.node):
        raise NotImplementedError("Softmax in the body of If")
    return wrong_softmax(model)


@pytest.mark.parametrize("known, named", [({"Softmax"}, "Softmax"), ({"Neg"}, "If"), (set(), "If")])
def test_an_operator_in_a_body_is_named_where_the_engine_is_known_to_lack_it(others, monkeypatch, known, named):
    sys.modules["offered_engines"].without_softmax = no_branches
    monkeypatch.setattr(judging, "lacks", lambda engine, node, opset: node.op_type in known)
    _, place = portable(branching(), engines=["ort", "without_softmax"])
    assert (place.loads, place.operator) == (False, named)


def test_an_engine_lacks_an_operator_from_the_version_on_that_was_measured(monkeypatch):
    known = {"engine": Measured("1", {"Softmax": Fate(3, 0, 0, 13), "Neg": Fate(3, 1, 0, 6)})}
    monkeypatch.setattr(gaps, "measured", lambda: known)
    softmax, neg = (helper.make_node(name, ["x"], ["y"]) for name in ("Softmax", "Neg"))
    assert gaps.lacks("engine", softmax, 13)
    assert not gaps.lacks("engine", softmax, 11)
    assert not gaps.lacks("engine", neg, 13)
    assert not gaps.lacks("another engine", softmax, 13)


@pytest.mark.wide
@pytest.mark.parametrize("engine", ["ort", "reference", "torch"])
def test_what_is_known_of_an_engine_is_what_is_measured(engine: str) -> None:
    known = gaps.measured()[engine]
    if runtime_survey.version(engine) != known.version:
        pytest.skip(f"another version was measured: {known.version}")
    found = runtime_survey.survey(engine, lambda function, cases: [function(case) for case in cases])
    assert found == known.operators, "python -m tools.runtime_table measures anew"


def test_an_opset_that_the_model_cannot_have_is_told_of():
    nodes = [helper.make_node("BitwiseNot", ["x"], ["y"], name="bits")]
    model = build(nodes, [info("x", ["n"], TensorProto.INT32)], [info("y", ["n"], TensorProto.INT32)])
    model.opset_import[0].version = 18
    (own, old) = portable(model, opsets=[7], engines=["ort"])
    assert own.ok
    assert old.ok or "bits" in old.reason


def test_the_commands_print_tables_and_json(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(network(), path)
    three = [argument for name in THREE for argument in ("--runtime", name)]
    shown = CliRunner().invoke(app, ["blame", str(path), *three])
    assert shown.exit_code == 0
    assert "ort, reference, torch agree" in shown.output
    shown = CliRunner().invoke(app, ["portable", str(path), "--opset", "11", *three, "--json"])
    assert shown.exit_code == 0
    assert len(json.loads(shown.stdout)["places"]) == 6


def test_compare_runs_each_model_in_its_own_runtime(others, tmp_path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(network(), path)
    command = ["compare", str(path), str(path), "--json"]

    same = CliRunner().invoke(app, [*command, "--runtime", "ort", "--runtime", "torch"])
    wrong = CliRunner().invoke(app, [*command, "--runtime", "ort", "--runtime", "wrong_softmax"])
    both_wrong = CliRunner().invoke(app, [*command, "--runtime", "wrong_softmax"])

    assert (same.exit_code, wrong.exit_code, both_wrong.exit_code) == (0, 1, 0)
    names = json.loads(wrong.output)
    assert "ort" in names["reference"]
    assert "wrong_softmax" in names["candidate"]


def test_bisect_takes_the_two_runtimes_in_the_order_of_the_models(others, tmp_path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(network(), path)
    made = CliRunner().invoke(app, ["bisect", str(path), "--runtime", "wrong_softmax", "--runtime", "ort", "--json"])
    assert made.exit_code == 1
    assert "softmax" in made.output


def test_three_runtimes_are_too_many(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(network(), path)
    made = CliRunner().invoke(app, ["compare", str(path), str(path), *(["--runtime", "ort"] * 3)])
    assert made.exit_code == 2
