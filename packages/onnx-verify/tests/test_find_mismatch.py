"""find_mismatch() beyond planted faults: runtimes, programs, repros, memory."""

import json
import subprocess
import sys
from dataclasses import dataclass

import faults
import numpy as np
import onnx
import pytest
import realistic
import torch
from models import build, clone, info, mlp, node_named, normal, set_weight, weight
from onnx import TensorProto, helper

import onnx_verify
from onnx_verify import Backend, OnnxBackend, Tolerance, find_mismatch
from onnx_verify.models.model import LoadedModel, load_model
from onnx_verify.models.slicing import Graph
from onnx_verify.running.streaming import OnnxStream


def with_fault(model, name, index, amount=1.0):
    copy = clone(model)
    values = weight(copy, name)
    values.reshape(-1)[index] += amount
    set_weight(copy, name, values)
    return copy


def test_a_report_has_no_truth_value():
    report = find_mismatch(mlp(), "random", reference=mlp())
    assert report.ok
    with pytest.raises(TypeError, match="has_mismatch"):
        bool(report)


def test_several_wrong_nodes_are_reported_in_the_order_of_the_graph():
    sound = mlp(layers=5)
    broken = with_fault(with_fault(sound, "b3", 2), "b1", 0)
    report = find_mismatch(broken, (normal(3, 8),), reference=sound, max_mismatches=9)
    assert [each.node.name for each in report.mismatches] == ["add1", "add3"]


def difference_and_product(names, *, reverse=False, second="Mul"):
    """Return a model of two inputs and two outputs, in the other order if asked for."""
    a, b, difference, product = names
    nodes = [helper.make_node("Sub", [a, b], [difference]), helper.make_node(second, [a, b], [product])]
    step = -1 if reverse else 1
    return build(nodes, [info(a, [2]), info(b, [2])][::step], [info(difference, [2]), info(product, [2])][::step])


def test_values_of_the_same_names_in_another_order_are_searched_by_name():
    sound = difference_and_product("abdp")
    assert find_mismatch(difference_and_product("abdp", reverse=True), "random", reference=sound, exhaustive=True).ok
    broken = difference_and_product("abdp", reverse=True, second="Div")

    report = find_mismatch(broken, (normal(2), normal(2, seed=1)), reference=sound)

    assert [each.node.op_type for each in report.mismatches] == ["Div"]
    assert report.notes == []


@pytest.mark.parametrize("second", ["Mul", "Div"])
def test_pairs_by_position_are_noted_in_the_report_and_on_its_page(second):
    pytest.importorskip("jinja2")
    from onnx_verify.reporting.report import render_report

    sound, other = difference_and_product("abdp"), difference_and_product("xyuv", second=second)
    for result in (onnx_verify.compare(sound, other, "random"), find_mismatch(other, "random", reference=sound)):
        for kind, pairs in (("inputs", "a with x, b with y"), ("outputs", "d with u, p with v")):
            note = f"{kind} are paired by position, as their names differ: {pairs}"
            assert note in str(result)
            assert note in render_report(result)


def test_the_sample_that_shows_the_fault_is_named():
    nodes = [helper.make_node("Clip", ["x", "", "hi"], ["y"], name="clip")]
    sound = build(nodes, [info("x", ["n"])], [info("y", ["n"])], {"hi": np.asarray(6, np.float32)})
    broken = clone(sound)
    set_weight(broken, "hi", np.asarray(100, np.float32))
    small, large = np.ones(3, np.float32), np.full(3, 50, np.float32)
    report = find_mismatch(broken, [(small,), (large,), (small,)], reference=sound)
    assert report.first.sample == "inputs 1"


def test_a_drift_within_every_tolerance_is_named_as_the_largest_error_only():
    sound = mlp(layers=2)
    broken = with_fault(sound, "b0", 0, 5e-6)
    report = find_mismatch(broken, (normal(3, 8),), reference=sound, tolerance=None, exhaustive=True)
    assert report.ok
    assert not report.mismatches
    strict = {0: Tolerance(1e-8, 1e-8)}
    report = find_mismatch(broken, (normal(3, 8),), reference=sound, tolerance=strict)
    assert report.has_mismatch
    assert not report.first.confirmed
    assert report.first.node.name == "add0"


def test_models_that_share_nothing_are_an_error():
    other = build(
        [helper.make_node("Sin", ["x"], ["s"]), helper.make_node("Cos", ["s"], ["c"])],
        [info("x", ["batch", 8])],
        [info("c", ["batch", 8])],
    )
    with pytest.raises(onnx_verify.InputError, match="corresponds"):
        find_mismatch(other, (normal(3, 8),), reference=mlp(), match="names")


def test_a_fused_candidate_is_compared_where_names_remain():
    nodes = [helper.make_node("Gemm", ["x", "w0", "b0"], ["a0"], name="gemm"), *mlp().graph.node[2:]]
    fused = build(
        nodes,
        list(mlp().graph.input),
        list(mlp().graph.output),
        {key: weight(mlp(), key) for key in ("w0", "b0", "w1", "b1", "w2", "b2")},
    )
    assert find_mismatch(fused, (normal(3, 8),), reference=mlp(), exhaustive=True).ok
    report = find_mismatch(with_fault(fused, "b0", 3), (normal(3, 8),), reference=mlp())
    assert report.first.node.name == "gemm"
    report = find_mismatch(mlp(), (normal(3, 8),), reference=with_fault(fused, "b0", 3))
    assert [node.name for node in report.first.nodes] == ["matmul0", "add0"]


def test_local_functions_are_searched_inside():
    function = helper.make_function(
        "test.domain",
        "Affine",
        ["a"],
        ["c"],
        [
            helper.make_node("Mul", ["a", "a"], ["b"], name="square"),
            helper.make_node("Neg", ["b"], ["c"], name="negate"),
        ],
        [helper.make_opsetid("", 18)],
    )

    def model(kind):
        changed = onnx.FunctionProto()
        changed.CopyFrom(function)
        changed.node[1].op_type = kind
        call = helper.make_node("Affine", ["x"], ["y"], domain="test.domain", name="call")
        return build([call], [info("x", ["n"])], [info("y", ["n"])], functions=[changed])

    report = find_mismatch(model("Abs"), (normal(4),), reference=model("Neg"))
    assert report.first.node.op_type == "Abs"


@dataclass(frozen=True)
class FaultyFusion(Backend):
    """A runtime whose optimizer makes a wrong node of each MatMul and Add that it sees together."""

    def load(self, model, by_name_only=False):
        loaded = load_model(model)
        proto = onnx.ModelProto()
        proto.CopyFrom(loaded.proto)
        outputs = {value.name for value in proto.graph.output}
        for node in list(proto.graph.node):
            if node.op_type != "Add":
                continue
            made = [other for other in proto.graph.node if other.output[0] == node.input[0]]
            if made and made[0].op_type == "MatMul" and made[0].output[0] not in outputs and "3" in node.name:
                node.op_type = "Sub"
        return super().load(LoadedModel(proto, loaded.weights, loaded.source), by_name_only)


def test_a_fault_that_vanishes_when_values_are_asked_for_is_found_by_bisection():
    model = mlp(layers=7)
    report = find_mismatch(model, (normal(2, 8),), backend=FaultyFusion(), reference_backend=Backend())
    assert [node.name for node in report.first.nodes] == ["matmul3", "add3"]
    assert "only when" in str(report.first)


def test_bisection_takes_a_binary_search_and_a_few_more():
    model = mlp(layers=40)
    report = find_mismatch(
        model, (normal(2, 8),), backend=FaultyFusion(), reference_backend=Backend(), strategy="bisect"
    )
    assert report.first.nodes[-1].name in {"add3", "add13", "add23", "add30"}
    assert report.runs <= 2 + 1 + np.ceil(np.log2(120)) + 3


@dataclass(frozen=True)
class FaultyKernel(Backend):
    """A runtime whose Relu is wrong."""

    def load(self, model, by_name_only=False):
        loaded = load_model(model)
        proto = onnx.ModelProto()
        proto.CopyFrom(loaded.proto)
        for node in proto.graph.node:
            if node.op_type == "Relu":
                node.op_type = "Abs"
        return super().load(LoadedModel(proto, loaded.weights, loaded.source), by_name_only)


def test_a_wrong_kernel_is_found_between_the_reference_evaluator_and_a_runtime():
    report = find_mismatch(mlp(), (normal(2, 8),), backend=FaultyKernel())
    assert report.first.node.name == "relu0"
    assert find_mismatch(mlp(), (normal(2, 8),), exhaustive=True).ok


def test_one_model_agrees_between_optimization_levels():
    report = find_mismatch(
        realistic.cnn(),
        (normal(2, 3, 12, 12),),
        backend=Backend.parse("ort:all"),
        reference_backend=Backend.parse("ort:disabled"),
        exhaustive=True,
    )
    assert report.ok
    assert report.checked >= 15


def test_a_wrong_fusion_is_found_between_two_models():
    def without_names(model):
        """Another model of the same function: the additions have a twin that nothing reads."""
        other = clone(model)
        other.graph.node.append(helper.make_node("Add", ["m0", "b0"], ["twin"], name="twin"))
        return other

    report = find_mismatch(
        mlp(layers=7), (normal(2, 8),), reference=without_names(mlp(layers=7)), backend=FaultyFusion()
    )
    assert [node.name for node in report.first.nodes] == ["matmul3", "add3"]


@pytest.mark.parametrize("name", ["add2", "relu5"])
def test_bisection_alone_finds_a_fault_between_two_models(name):
    sound = mlp(layers=8)
    broken = clone(sound)
    faults.becomes(name, "Sub" if name.startswith("add") else "Abs")(broken)
    report = find_mismatch(broken, (normal(2, 8),), reference=sound, strategy="bisect")
    assert [node.name for node in report.first.nodes] == [name]
    assert report.first.confirmed
    assert report.runs <= 2 + 1 + np.ceil(np.log2(24)) + 3


def test_bisection_goes_through_values_that_the_reference_does_not_have():
    nodes = [helper.make_node("Gemm", ["x", "w0", "b0"], ["a0"], name="gemm"), *mlp().graph.node[2:]]
    names = ("w0", "b0", "w1", "b1", "w2", "b2")
    fused = build(nodes, mlp().graph.input, mlp().graph.output, {name: weight(mlp(), name) for name in names})
    broken = clone(mlp())
    faults.values("w0", lambda w: w.T)(broken)
    report = find_mismatch(broken, (normal(3, 8),), reference=fused, strategy="bisect", match="names")
    assert [node.name for node in report.first.nodes] == ["matmul0", "add0"]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(11, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.attention = torch.nn.Linear(8, 8)
        self.register_buffer("shift", torch.randn(8))

    def forward(self, ids, *, scale):
        x = self.norm(self.embed(ids)) + self.shift
        weights = torch.softmax(self.attention(x) @ x.transpose(-1, -2) * scale, -1)
        return {"mixed": weights @ x, "weights": weights}


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    args, kwargs = (torch.randint(0, 11, (2, 5)),), {"scale": torch.tensor(0.3)}
    return torch.onnx.export(Net().eval(), args, kwargs=kwargs, dynamo=True, verbose=False)


SAMPLES = [
    onnx_verify.InputSet((torch.tensor([[1, 2, 3, 4, 5], [0, 10, 9, 8, 7]]),), {"scale": torch.tensor(0.3)}),
    onnx_verify.InputSet((torch.tensor([[5, 5, 5, 1, 1], [2, 2, 3, 3, 1]]),), {"scale": torch.tensor(-2.0)}),
]


def test_a_sound_onnx_program_agrees_with_its_exported_program_node_by_node(program):
    report = find_mismatch(program, SAMPLES, exhaustive=True)
    assert report.ok
    assert report.checked >= 8


def test_bisection_alone_finds_a_fault_between_a_model_and_a_program(program):
    model = clone(program.model_proto)
    node = next(node for node in model.graph.node if node.op_type == "Softmax")
    faults.attribute(node.name, "axis", 1)(model)
    report = find_mismatch(model, SAMPLES, reference=program.exported_program, strategy="bisect")
    assert report.first.node.name == node.name
    assert report.first.confirmed
    assert find_mismatch(program, SAMPLES, strategy="bisect", exhaustive=True).ok


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.randn(8, 8) / 3 for _ in range(5))
        self.biases = torch.nn.ParameterList(torch.randn(8) for _ in range(5))

    def forward(self, x):
        for w, b in zip(self.weights, self.biases, strict=True):
            x = torch.relu(x @ w + b)
        return x


def test_a_wrong_fusion_is_found_between_a_model_and_a_program():
    torch.manual_seed(0)
    exported = torch.onnx.export(Layers().eval(), (torch.ones(2, 8),), dynamo=True, verbose=False)
    model = clone(exported.model_proto)
    for number, node in enumerate(node for node in model.graph.node if node.op_type == "Add"):
        node.name = f"add{number}"
    reference = exported.exported_program
    report = find_mismatch(model, (torch.randn(2, 8),), reference=reference, backend=FaultyFusion())
    assert [node.op_type for node in report.first.nodes] == ["MatMul", "Add"]
    assert report.first.node.name == "add3"


@pytest.mark.parametrize("kind", ["Softmax", "MatMul", "LayerNormalization", "Gather", "Transpose"])
def test_a_fault_in_an_onnx_program_is_found_by_its_fx_node(program, kind):
    model = clone(program.model_proto)
    node = next(node for node in model.graph.node if node.op_type == kind)
    changes = {
        "Softmax": lambda: faults.attribute(node.name, "axis", 1),
        "MatMul": lambda: lambda _: node.__setattr__("op_type", "Add"),
        "LayerNormalization": lambda: faults.attribute(node.name, "epsilon", 0.5),
        "Gather": lambda: lambda m: _roll(m, node.input[0]),
        "Transpose": lambda: faults.attribute(node.name, "perm", list(range(len(node.attribute[0].ints)))),
    }
    changes[kind]()(model)
    report = find_mismatch(model, SAMPLES, reference=program.exported_program)
    assert report.first.confirmed
    assert node.output[0] in {name for each in report.first.nodes for name in each.outputs}
    assert report.first.node.fx_node


def _roll(model, name):
    set_weight(model, name, np.roll(weight(model, name), 1, 0))


def test_a_module_as_reference_says_what_to_give_instead():
    with pytest.raises(onnx_verify.InputError, match="ExportedProgram"):
        find_mismatch(mlp(), (normal(2, 8),), reference=torch.nn.ReLU())


REPRO_CASES = ["cnn", "decoder", "recurrent", "quantized", "control_flow"]


@pytest.mark.parametrize("name", REPRO_CASES)
def test_a_repro_runs_alone_and_shows_the_mismatch(name, tmp_path):
    sound = getattr(realistic, name)()
    inputs = {
        "cnn": (normal(2, 3, 12, 12),), "decoder": realistic.decoder_inputs(), "recurrent": (normal(4, 2, 5),),
        "quantized": (normal(3, 8),), "control_flow": (normal(4),),
    }[name]  # fmt: skip
    fault = next(each for each in faults.small_faults() if each.model == name)
    report = find_mismatch(faults.broken(sound, fault), inputs, reference=sound)
    script = report.first.export_repro(tmp_path / "repro")
    run = subprocess.run([sys.executable, "-I", script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 1, run.stderr
    assert "MISMATCH" in run.stdout
    folder = tmp_path / "repro"
    np.savez(folder / "reference.npz", **dict(np.load(folder / "candidate.npz")))
    run = subprocess.run([sys.executable, "-I", script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 0, run.stdout


def test_a_repro_holds_types_that_numpy_lacks(tmp_path):
    code = TensorProto.BFLOAT16
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=code),
        helper.make_node("Transpose", ["a"], ["b"], name="turn", perm=[1, 0]),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    sound = build(nodes, [info("x", [3, 3])], [info("y", [3, 3])], opset=21)
    broken = clone(sound)
    faults.attribute("turn", "perm", [0, 1])(broken)
    report = find_mismatch(broken, (normal(3, 3),), reference=sound)
    assert report.first.reports[0].candidate_dtype == "bfloat16"
    script = report.first.export_repro(tmp_path)
    run = subprocess.run([sys.executable, "-I", script], capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stderr


def test_the_repro_script_is_the_same_whatever_the_model_is_called(tmp_path):
    scripts = []
    for index, evil in enumerate(["plain", "'); import os; os.system('x'); ('"]):
        sound = mlp(layers=1)
        node_named(sound, "relu0").output[0] = evil
        sound.graph.output[0].name = evil
        broken = clone(sound)
        node_named(broken, "relu0").op_type = "Abs"
        report = find_mismatch(broken, (normal(2, 8),), reference=sound)
        scripts.append(report.first.export_repro(tmp_path / str(index)).read_text())
    assert scripts[0] == scripts[1]


def test_reports_convert_to_json():
    report = find_mismatch(with_fault(mlp(), "b1", 0), (normal(2, 8),), reference=mlp())
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert plain["ok"] is False
    assert plain["mismatches"][0]["nodes"][-1]["name"] == "add1"


def test_windows_give_the_same_values_as_one_run():
    graph = Graph(load_model(realistic.decoder()))
    feeds = realistic.decoder_inputs()
    names = set(graph.producer)
    whole = dict(OnnxStream(graph, [feeds], Backend()).values(names))
    small = OnnxStream(graph, [feeds], Backend(), memory_limit=4000)
    parts = dict(small.values(names))
    assert small.windows > 10
    assert whole.keys() == parts.keys() == names
    for name in names:
        np.testing.assert_allclose(parts[name][0], whole[name][0], rtol=1e-5, atol=1e-6)


def test_a_fault_is_found_in_the_smallest_windows():
    sound = realistic.decoder()
    broken = clone(sound)
    faults.becomes("Greater_future", "GreaterOrEqual")(broken)
    inputs = [realistic.decoder_inputs(), realistic.decoder_inputs(1, 2, 6, seed=3)]
    report = find_mismatch(broken, inputs, reference=sound, memory_limit=1)
    assert report.first.node.name == "Greater_future"


def test_backends_are_enumerated_and_named():
    assert {OnnxBackend.ONNX_RUNTIME_CPU, OnnxBackend.REFERENCE} <= set(OnnxBackend.available())
    assert Backend.parse("ort:basic").label == "ort:basic"
    with pytest.raises(onnx_verify.InputError, match="unknown runtime"):
        Backend.parse("tensorrt")
    with pytest.raises(onnx_verify.InputError, match="optimization"):
        Backend.parse("ort:most")


def test_a_program_and_a_model_that_have_nothing_in_common_are_an_error(program):
    other = build(
        [
            helper.make_node("Cast", ["ids"], ["q"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["q", "scale"], ["w"]),
        ],
        [info("ids", ["n", "s"], TensorProto.INT64), info("scale", [])],
        [info("w", ["n", "s"])],
    )
    with pytest.raises(onnx_verify.InputError, match="belong together"):
        find_mismatch(other, SAMPLES, reference=program.exported_program)


def test_options_that_allow_nothing_are_refused():
    for wrong in ({"strategy": "guess"}, {"max_mismatches": 0}, {"memory_limit": 0}):
        with pytest.raises(onnx_verify.InputError):
            find_mismatch(mlp(), "random", **wrong)
    with pytest.raises(onnx_verify.InputError, match="match is"):
        find_mismatch(mlp(seed=1), "random", reference=mlp(), match="shape")
    with pytest.raises(onnx_verify.InputError, match="cannot look into"):
        find_mismatch(lambda x: x, "random")


def test_a_random_operator_is_explained():
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["r"], name="noise", seed=1.0),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    model = build(nodes, [info("x", [40])], [info("y", [40])])
    other = clone(model)
    faults.attribute("noise", "seed", 2.0)(other)
    report = find_mismatch(other, (normal(40),), reference=model)
    assert report.first.node.name == "noise"
    assert "is random" in str(report)


def test_a_node_that_cannot_be_run_is_found():
    broken = clone(realistic.decoder())
    faults.attribute("Transpose_q2", "perm", [0, 1])(broken)
    report = find_mismatch(broken, realistic.decoder_inputs(), reference=realistic.decoder())
    assert report.first.node.name == "Transpose_q2"
    assert "cannot be run" in str(report)


def test_progress_is_told_in_nodes():
    told = []
    find_mismatch(
        mlp(layers=4),
        "random",
        reference=mlp(layers=4),
        exhaustive=True,
        memory_limit=1,
        progress=lambda done, total: told.append((done, total)),
    )
    assert told == [(n, 12) for n in range(1, 13)]
