"""Programs whose buffers are inputs and outputs of the graph."""

from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest
import torch
from models import build, clone, info, node_named
from onnx import TensorProto, helper

import onnx_verify
from onnx_verify import compare, find_mismatch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.total += x.sum(0)
        self.steps += 1
        return x * self.total + self.steps


def graph():
    """The model of the net, its state first among the inputs and in the middle of the outputs."""
    nodes = [
        helper.make_node("ReduceSum", ["x", "axis"], ["sum_1"], name="sum", keepdims=0),
        helper.make_node("Add", ["total", "sum_1"], ["total.next"], name="total"),
        helper.make_node("Add", ["steps", "one"], ["steps.next"], name="steps"),
        helper.make_node("Mul", ["x", "total.next"], ["mul"], name="mul"),
        helper.make_node("Cast", ["steps.next"], ["wide"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Add", ["mul", "wide"], ["output"], name="add"),
    ]
    origin = {"total": "add_", "steps": "add__1", "add": "add"}
    for node in nodes:
        node.metadata_props.add(key="onnxops.fx_node", value=origin.get(node.name, node.output[0]))
    steps = info("steps", [], TensorProto.INT64)
    inputs = [info("total", [3]), steps, info("x", ["n", 3])]
    outputs = [info("total.next", [3]), info("output", ["n", 3]), info("steps.next", [], TensorProto.INT64)]
    return build(nodes, inputs, outputs, {"axis": np.array([0]), "one": np.asarray(1)})


X = torch.arange(6.0).reshape(2, 3)


def program(model):
    """What an exporter returns, as far as it matters here."""
    return SimpleNamespace(
        model=ir.from_proto(model),
        exported_program=torch.export.export(Net(), (X,)),
        state={"total": "total.next", "steps": "steps.next"},
        initial_state={"total": torch.zeros(3), "steps": torch.zeros((), dtype=torch.int64)},
    )


def test_a_call_without_state_is_compared_with_its_state():
    verdict = compare(Net(), program(graph()), [(X,), (X * 2,)])
    assert verdict
    assert [output.name for output in verdict.cases[0].outputs] == ["output", "total.next", "steps.next"]


def test_the_state_starts_from_what_the_buffers_hold_now():
    net = Net()
    net(X)
    verdict = compare(net, program(graph()), (X,))
    assert verdict
    assert verdict.cases[0].outputs[2].metrics.worst_reference == 2
    assert net.steps.item() == 1


def test_a_stale_state_is_a_mismatch_although_the_outputs_agree():
    stale = clone(graph())
    stale.graph.node.append(helper.make_node("Identity", ["total"], ["stale"], name="stale"))
    stale.graph.output[0].name = "stale"
    broken = program(stale)
    broken.state = {"total": "stale", "steps": "steps.next"}
    verdict = compare(Net(), broken, (X,))
    assert [output.ok for output in verdict.cases[0].outputs] == [True, False, True]


def test_random_inputs_leave_the_state_alone():
    verdict = compare(Net(), program(graph()), "random")
    assert verdict
    assert len(verdict.cases) > 3


@pytest.mark.parametrize("name, kind", [("total", "Sub"), ("mul", "Add"), ("sum", "ReduceMax"), ("steps", "Sub")])
def test_a_fault_in_a_stateful_program_is_found_by_its_fx_node(name, kind):
    model = clone(graph())
    node_named(model, name).op_type = kind
    report = find_mismatch(program(model), [(X,), (X - 3,)])
    assert report.first.confirmed
    assert report.first.node.name == name
    assert find_mismatch(program(graph()), (X,), exhaustive=True).ok


def test_a_function_that_does_not_return_the_state_cannot_prove_it():
    verdict = compare(lambda x: Net()(x), program(graph()), (X,))
    assert not verdict
    assert "the reference has 1 outputs, the candidate 3" in str(verdict)
    both = compare(lambda x: (x * x.sum(0) + 1, x.sum(0), torch.tensor(1)), program(graph()), (X,))
    assert both


def test_a_plain_model_is_compared_with_a_program_by_names():
    inputs = {"x": X, "total": torch.ones(3), "steps": torch.tensor(4)}
    reordered = clone(graph())
    outputs = [reordered.graph.output[position] for position in (1, 0, 2)]
    del reordered.graph.output[:]
    reordered.graph.output.extend(outputs)
    assert compare(reordered, program(graph()), inputs)
    node_named(reordered, "mul").op_type = "Add"
    assert not compare(reordered, program(graph()), inputs)


def test_state_can_be_given_by_name():
    feeds = {"x": X, "total": torch.ones(3), "steps": torch.tensor(4)}
    inputs = onnx_verify.InputSet((X,), feeds=feeds)
    assert not compare(Net(), program(graph()), inputs)
    net = Net()
    net.total += 1
    net.steps += 4
    assert compare(net, program(graph()), inputs)
