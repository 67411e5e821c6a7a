"""GraphInfo and its family, with a stand-in exporter that can be told to be wrong."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch
from standin_exporter import StandIn

import onnx_verify
from onnx_verify import compare, torchscript
from onnx_verify import torch_graph as _torch_graph
from onnx_verify.torchscript import GraphInfo, VerificationOptions, find_mismatch, verify_aten_graph


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 6), torch.nn.Linear(6, 6)

    def forward(self, x):
        y = torch.relu(self.first(x))
        z = torch.sigmoid(self.second(y)) + y
        n = x.shape[0]
        return torch.tanh(z * y).reshape(n, 2, 3)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval()


X = (torch.randn(5, 4),)


def test_a_right_exporter_has_no_mismatch(net):
    info = find_mismatch(net, X, exporter=StandIn())
    assert not info.has_mismatch()
    assert info.all_mismatch_leaf_graph_info() == []
    assert info.essential_node_kinds() >= {"aten::linear", "aten::relu", "aten::reshape"}


@pytest.mark.parametrize(
    "kind, wrong",
    [
        ("aten::relu", "Abs"),
        ("aten::sigmoid", "Tanh"),
        ("aten::tanh", "Identity"),
        ("aten::mul", "Add"),
        ("aten::add", "Sub"),
    ],
)
def test_the_leaf_is_the_operator_that_is_exported_wrong(net, kind, wrong):
    info = find_mismatch(net, X, exporter=StandIn({kind: wrong}))
    leaves = info.all_mismatch_leaf_graph_info()
    assert [leaf.essential_node_kinds() for leaf in leaves] == [{kind}]
    assert leaves[0].essential_node_count() == 1
    assert info.find_partition(leaves[0].id) is leaves[0]
    assert info.find_partition("0101010101") is None


def test_each_of_two_wrong_operators_is_a_leaf(net):
    info = find_mismatch(net, X, exporter=StandIn({"aten::relu": "Abs", "aten::tanh": "Sin"}))
    kinds = [leaf.essential_node_kinds() for leaf in info.all_mismatch_leaf_graph_info()]
    assert kinds == [{"aten::relu"}, {"aten::tanh"}]


def test_weights_are_inputs_of_the_piece_that_reads_them(net):
    info = find_mismatch(net, X, exporter=StandIn({"aten::linear": "scaled"}))
    leaves = info.all_mismatch_leaf_graph_info()
    assert [leaf.essential_node_kinds() for leaf in leaves] == [{"aten::linear"}] * 2
    assert [len(leaf.input_args) for leaf in leaves] == [3, 3]


def test_halving_takes_a_logarithmic_number_of_exports():
    class Deep(torch.nn.Module):
        def forward(self, x):
            for i in range(64):
                x = torch.sigmoid(x) if i == 40 else torch.tanh(x)
            return x

    exporter = StandIn({"aten::sigmoid": "Relu"})
    info = find_mismatch(Deep(), X, exporter=exporter)
    assert len(info.all_mismatch_leaf_graph_info()) == 1
    assert exporter.calls <= 1 + 2 * 6


def test_a_scripted_module_is_taken_as_it_is(net):
    scripted = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sigmoid(), torch.nn.Tanh()))
    with pytest.raises(onnx_verify.InputError, match="eval"):
        find_mismatch(scripted, X, exporter=StandIn())
    info = find_mismatch(scripted.eval(), X, exporter=StandIn({"aten::sigmoid": "Relu"}))
    assert [leaf.essential_node_kinds() for leaf in info.all_mismatch_leaf_graph_info()] == [{"aten::sigmoid"}]


def test_the_tree_and_a_mismatch_are_printed(net, capsys):
    info = find_mismatch(net, X, exporter=StandIn({"aten::sigmoid": "Tanh"}))
    info.pretty_print_tree()
    tree = capsys.readouterr().out
    assert "MISMATCH id root" in tree
    assert "ok id" in tree
    leaf = info.all_mismatch_leaf_graph_info()[0]
    leaf.pretty_print_mismatch(graph=True)
    text = capsys.readouterr().out
    assert "aten::sigmoid" in text
    assert "elements differ" in text
    assert "graph(" in text


def test_a_repro_is_an_onnx_test_case_and_runs_alone(net, tmp_path):
    info = find_mismatch(net, X, exporter=StandIn({"aten::sigmoid": "Tanh"}))
    folder = Path(info.all_mismatch_leaf_graph_info()[0].export_repro(tmp_path, "wrong_sigmoid"))
    assert folder.name == "test_wrong_sigmoid"
    run = subprocess.run([sys.executable, "-I", folder / "repro.py"], capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stderr
    reference = onnx_verify.inputs.datafiles.read_expected(folder)[0][0][1]
    x = onnx_verify.input_sets(folder)[0].args[0]
    assert np.allclose(reference, 1 / (1 + np.exp(-x)), atol=1e-6)
    assert not compare(lambda x: reference, folder / "model.onnx", (x,))


def test_verify_aten_graph_compares_one_graph(net):
    graph, inputs = _torch_graph.capture(net, X, {})
    weights = {str(i): value for i, value in enumerate(inputs[1:])}
    assert verify_aten_graph(graph, X, params_dict=weights, exporter=StandIn()).error is None
    found = verify_aten_graph(graph, X, params_dict=weights, exporter=StandIn({"aten::relu": "Abs"}))
    assert isinstance(found.error, onnx_verify.MismatchError)
    assert found.torch_outputs[0].shape == (5, 2, 3)


def test_the_options_decide_what_counts(net):
    exporter = StandIn({"aten::sigmoid": "HardSigmoid"})
    assert find_mismatch(net, X, exporter=exporter).has_mismatch()
    loose = VerificationOptions(rtol=0.5, atol=0.5)
    assert not find_mismatch(net, X, exporter=exporter, options=loose).has_mismatch()


def test_a_share_of_the_elements_may_differ():
    exporter, net, x = StandIn({"aten::relu": "Abs"}), torch.nn.ReLU(), (torch.tensor([-1.0, 1, 2, 3]),)
    assert find_mismatch(net, x, exporter=exporter).has_mismatch()
    lenient = VerificationOptions(acceptable_error_percentage=0.25)
    assert not find_mismatch(net, x, exporter=exporter, options=lenient).has_mismatch()


def test_a_piece_that_cannot_be_exported_is_left_unchecked(net):
    calls = []

    def partial(graph, inputs, opset):
        kinds = _torch_graph.node_kinds(graph)
        calls.append(kinds)
        if len(kinds) < 5 and "aten::sigmoid" not in kinds:
            raise NotImplementedError("too small")
        return StandIn({"aten::sigmoid": "Relu"})(graph, inputs, opset)

    info = find_mismatch(net, X, exporter=partial)
    leaves = info.all_mismatch_leaf_graph_info()
    assert any("aten::sigmoid" in leaf.essential_node_kinds() for leaf in leaves)


def test_a_graph_that_cannot_be_exported_at_all_is_an_error():
    with pytest.raises(onnx_verify.SubgraphExportError, match="aten::cos"):
        find_mismatch(Cosine(), X, exporter=StandIn())


class Cosine(torch.nn.Module):
    def forward(self, x):
        return torch.cos(x)


def test_the_exporter_is_found_through_the_entry_point(monkeypatch, net):
    entry = EntryPoint("standin", "standin_exporter:StandIn", torchscript.ENTRY_POINT_GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda self: StandIn({"aten::relu": "Abs"}))
    monkeypatch.setattr(torchscript, "entry_points", lambda group: [entry] if group == entry.group else [])
    assert find_mismatch(net, X).has_mismatch()
    monkeypatch.setattr(torchscript, "entry_points", lambda group: [])
    with pytest.raises(onnx_verify.SubgraphExportError, match="pip install"):
        find_mismatch(net, X)


def test_a_piece_that_was_not_checked_has_no_repro(net):
    graph, inputs = _torch_graph.capture(net, X, {})
    with pytest.raises(onnx_verify.OnnxVerifyError, match="find_mismatch first"):
        GraphInfo(graph, inputs).export_repro()


def test_torch_still_has_what_graphs_are_cut_with():
    graph, inputs = _torch_graph.capture(Net(), X, {})
    assert len(inputs) == 5
    upper, lower = _torch_graph.split(graph, inputs, 3)
    above = _torch_graph.run_graph(upper.graph, [inputs[i] for i in upper.given])
    crossing = dict(zip(upper.names, above, strict=True))
    below = [inputs[i] if isinstance(i, int) else crossing[i] for i in lower.given]
    whole = _torch_graph.run_graph(graph, inputs)
    assert torch.equal(_torch_graph.run_graph(lower.graph, below)[0], whole[0])


def test_plain_and_torch_flattening_agree():
    from onnx_verify.values import pytree as _pytree

    tree = ({"b": 1, "a": [2, None]}, (3, {"c": ()}), 4)
    assert _pytree.flatten(tree) == _pytree._flatten_plain(tree) == [1, 2, 3, 4]


class Stateful(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        return x * self.count


def test_a_scripted_module_that_keeps_state_is_refused():
    scripted = torch.jit.script(Stateful().eval())
    with pytest.raises(onnx_verify.InputError, match="state"):
        find_mismatch(scripted, X, exporter=StandIn())
