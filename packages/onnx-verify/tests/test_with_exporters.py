"""Faults planted in what this project's own exporters produce; skipped where onnx-verify is installed alone."""

import faults
import numpy as np
import pytest
import torch
from models import clone, set_weight, weight

from onnx_verify import InputSet, compare, find_mismatch

fx_export = pytest.importorskip("onnx_fx_export", reason="onnx-fx-export is not installed")


class Net(torch.nn.Module):
    """An embedding, a transformer layer, a convolution and a recurrent head."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(11, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.conv = torch.nn.Conv1d(8, 4, 3, padding=1)
        self.batch_norm = torch.nn.BatchNorm1d(4)

    def forward(self, ids, *, scale):
        x = self.layer(self.norm(self.embed(ids))) * scale
        y = self.batch_norm(self.conv(x.transpose(1, 2)).tanh())  # the tanh keeps it from being folded into the weights
        return {"y": torch.relu(y[:, :, 1:]), "mean": x.mean(1)}


def sample(seed, scale):
    ids = torch.randint(0, 11, (2, 5), generator=torch.Generator().manual_seed(seed))
    return InputSet((ids,), {"scale": torch.tensor(scale)})


SETS = [sample(0, 0.3), sample(1, -2.0)]


@pytest.fixture(scope="module")
def exported():
    torch.manual_seed(0)
    net = Net().eval()
    return net, fx_export.export(net, SETS[0].args, kwargs=dict(SETS[0].kwargs))


def first(model, kind):
    return next(node for node in model.graph.node if node.op_type == kind)


def _axis(kind, value):
    def plant(model):
        node = first(model, kind)
        faults.attribute(node.name, "axis", value)(model)
        return node

    return plant


def _becomes(kind, other):
    def plant(model):
        # The last one: means that come before may be those that a layer norm subtracts for an older ONNX Runtime.
        node = next(node for node in reversed(model.graph.node) if node.op_type == kind)
        node.op_type = other
        return node

    return plant


def _epsilon(kind):
    def plant(model):
        node = first(model, kind)
        faults.attribute(node.name, "epsilon", 0.5)(model)
        return node

    return plant


def _weight(kind, position, change):
    def plant(model):
        node = first(model, kind)
        name = node.input[position]
        set_weight(model, name, np.ascontiguousarray(change(weight(model, name))))
        return node

    return plant


CASES = {
    "embedding rows": _weight("Gather", 0, lambda w: np.roll(w, 1, 0)),
    "layer norm epsilon": _epsilon("LayerNormalization"),
    "layer norm scale": _weight("LayerNormalization", 1, lambda w: w * 1.01),
    "softmax axis": _axis("Softmax", -2),
    "activation": _becomes("Relu", "Abs"),
    "kernel flipped": _weight("Conv", 1, lambda w: w[:, :, ::-1]),
    "convolution bias": _weight("Conv", 2, lambda w: w + 0.1),
    "batch norm epsilon": _epsilon("BatchNormalization"),
    "mean or sum": _becomes("ReduceMean", "ReduceMax"),
    "projection transposed": _weight("Gemm", 1, lambda w: w.T),
}


def test_the_sound_program_agrees_node_by_node(exported):
    net, program = exported
    assert compare(net, program, SETS)
    report = find_mismatch(program, SETS, exhaustive=True)
    assert report.ok
    assert report.checked > 25


@pytest.mark.parametrize("name", CASES)
def test_the_fault_is_found_by_its_fx_node_and_source(exported, name):
    net, program = exported
    model = clone(program.model_proto)
    node = CASES[name](model)
    assert not compare(net, model, SETS)
    report = find_mismatch(model, SETS, reference=program.exported_program)
    found = report.first
    assert found.confirmed
    assert node.name in {each.name for each in found.nodes}
    origin = {entry.key: entry.value for entry in node.metadata_props}
    assert found.node.fx_node == origin["onnxops.fx_node"]
    assert found.node.source == origin["onnxops.source"]
