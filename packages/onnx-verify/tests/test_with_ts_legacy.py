"""GraphInfo with the exporter that onnx-ts-legacy registers; skipped where onnx-verify is installed alone."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from onnx_verify.torchscript import find_exporter, find_mismatch

pytest.importorskip("onnx_ts_legacy", reason="onnx-ts-legacy is not installed")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.linear = torch.nn.Linear(4, 5)

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x)))
        n = y.shape[0]
        z = torch.nn.functional.adaptive_avg_pool2d(y, 1).reshape(n, -1)
        return torch.softmax(self.linear(z), -1)


X = (torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0)),)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval()


def wrong(kind, other):
    """The registered exporter with one ONNX operator replaced in what it returns."""
    export = find_exporter()

    def exporter(graph, inputs, opset_version):
        model = export(graph, inputs, opset_version)
        for node in model.graph.node:
            if node.op_type == kind:
                node.op_type = other
        return model

    return exporter


@pytest.mark.parametrize("opset_version", [13, 18, 20])
def test_a_traced_module_agrees(net, opset_version):
    assert not find_mismatch(net, X, opset_version=opset_version).has_mismatch()


def test_a_scripted_module_agrees(net):
    assert not find_mismatch(torch.jit.script(net), X).has_mismatch()


@pytest.mark.parametrize(
    "kind, other, operator", [("Relu", "Abs", "aten::relu"), ("Softmax", "LogSoftmax", "aten::softmax")]
)
@pytest.mark.parametrize("form", ["traced", "scripted"])
def test_an_operator_that_is_exported_wrong_is_the_leaf(net, kind, other, operator, form):
    module = torch.jit.script(net) if form == "scripted" else net
    info = find_mismatch(module, X, exporter=wrong(kind, other))
    assert [leaf.essential_node_kinds() for leaf in info.all_mismatch_leaf_graph_info()] == [{operator}]


def test_the_repro_of_a_leaf_runs_alone(net, tmp_path):
    info = find_mismatch(net, X, exporter=wrong("Relu", "Abs"))
    folder = Path(info.all_mismatch_leaf_graph_info()[0].export_repro(tmp_path))
    run = subprocess.run([sys.executable, "-I", folder / "repro.py"], capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stderr
    assert "MISMATCH" in run.stdout
