"""The values of an ExportedProgram, node by node, against eager torch."""

import numpy as np
import pytest
import torch

import onnx_verify
from onnx_verify import InputSet
from onnx_verify.search.fxstream import FxStream


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x, *, first, second):
        self.count.add_(1)
        y = self.linear(x) * first["a"] - second
        z = y.clone()
        z.add_(self.count)
        values, indices = torch.topk(z, 2)
        return y, values, indices


ARGS = (torch.randn(2, 3),)
KWARGS = {"first": {"a": torch.tensor(2.0)}, "second": torch.tensor(0.5)}


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="module")
def program(net):
    return torch.export.export(net, ARGS, KWARGS)


def stream_of(program, kwargs):
    return FxStream(program, [InputSet(ARGS, kwargs), InputSet((ARGS[0] + 1,), kwargs)])


@pytest.mark.parametrize("order", [["first", "second"], ["second", "first"]])
def test_every_value_is_what_eager_torch_computes_whatever_the_order_of_keywords(net, program, order):
    stream = stream_of(program, {name: KWARGS[name] for name in order})
    found = dict(stream.values(stream.names))
    x = ARGS[0]
    y = net.linear(x) * 2.0 - 0.5
    np.testing.assert_allclose(found["linear"][0], net.linear(x).detach())
    np.testing.assert_allclose(found["sub"][0], y.detach())
    np.testing.assert_allclose(found["sub"][1], (net.linear(x + 1) * 2.0 - 0.5).detach())
    np.testing.assert_allclose(found["getitem"][0], torch.topk(y + 1, 2).values.detach())


def test_a_value_is_what_it_was_when_it_was_computed(program):
    stream = stream_of(program, KWARGS)
    found = dict(stream.values({"sub", "clone", "add__1"}))
    np.testing.assert_array_equal(found["clone"][0], found["sub"][0])
    np.testing.assert_allclose(found["add__1"][0], found["sub"][0] + 1)


def test_the_program_is_left_as_it_was(program):
    stream = stream_of(program, KWARGS)
    list(stream.values(stream.names))
    assert not program.state_dict["count"].any()


def test_missing_inputs_are_an_error(program):
    with pytest.raises(onnx_verify.InputError, match="takes more inputs"):
        list(FxStream(program, [InputSet(ARGS)]).values({"sub"}))


def test_only_what_is_wanted_is_computed(program):
    stream = FxStream(program, [InputSet((torch.zeros(2, 3),), {**KWARGS, "second": torch.zeros(7)})])
    assert list(dict(stream.values({"linear"}))) == ["linear"]
    with pytest.raises(onnx_verify.ModelRunError, match="sub"):
        list(stream.values({"sub"}))
