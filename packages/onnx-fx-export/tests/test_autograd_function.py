"""The symbolic method of an autograd.Function decides what the function is in ONNX."""

from __future__ import annotations

import collections

import pytest
import torch

import onnx_fx_export
from onnx_fx_export import export
from onnx_fx_export.capture.autograd_function import _unbound


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, low):
        ctx.save_for_backward(x)
        return x.clamp(min=low)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x > 0), None

    @staticmethod
    def symbolic(g, x, low):
        return g.op("Max", x, g.op("Constant", value_t=torch.tensor(low)))


class Pair(torch.autograd.Function):
    @staticmethod
    def forward(x, y):
        return x + y, x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def symbolic(g, x, y):
        return g.op("com.example::Pair", x, y, outputs=2, gain_f=0.5, modes_s=["a", "b"], sizes_i=[1, 2])


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def symbolic(g, x):
        return g.op("Mul", x, x.nonsense())


class Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2


def model_of(function, *extra):
    class Model(torch.nn.Module):
        def forward(self, *args):
            return function.apply(*args, *extra)

    return Model()


@pytest.mark.parametrize("opset", [13, 20])
def test_symbolic_is_honoured(opset: int) -> None:
    model = model_of(Clamp, 0.5)
    program = export(model, (torch.randn(3, 4),), opset_version=opset, dynamic_shapes={"args": [{0: "n"}]}, verify=True)
    assert [node.op_type for node in program.model.graph] == ["Max"]
    x = torch.randn(5, 4)
    torch.testing.assert_close(program(x), model(x))


def test_several_outputs_and_attributes_of_a_custom_operator() -> None:
    program = export(model_of(Pair), (torch.ones(2), torch.ones(2)))
    (node,) = program.model.graph
    assert (node.domain, node.op_type, len(node.outputs)) == ("com.example", "Pair", 2)
    assert node.attributes["gain"].as_float() == 0.5
    assert list(node.attributes["modes"].as_strings()) == ["a", "b"]
    assert list(node.attributes["sizes"].as_ints()) == [1, 2]


def test_a_failing_symbolic_fails_the_export() -> None:
    with pytest.raises(onnx_fx_export.ConversionError, match=r"Broken\.symbolic"):
        export(model_of(Broken), (torch.ones(2),))


def test_a_function_without_symbolic_is_its_forward() -> None:
    program = export(model_of(Plain), (torch.ones(2),))
    assert [node.op_type for node in program.model.graph] == ["Mul"]


def test_autograd_functions_work_as_before_afterwards() -> None:
    export(model_of(Clamp, 0.5), (torch.randn(3),))
    x = torch.tensor([1.0, -1.0], requires_grad=True)
    Clamp.apply(x, 0.0).sum().backward()
    assert x.grad.tolist() == [1.0, 0.0]


class AddsInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, number):
        x.view(-1).add_(number)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def symbolic(g, x, number):
        return g.op("Add", x, g.op("Constant", value_t=torch.tensor(number)))


class ChangesSilently(AddsInPlace):
    @staticmethod
    def forward(ctx, x, number):
        return x.add_(number) * 2


def test_what_a_function_changes_in_place_is_read_later() -> None:
    def function(x):
        y = x * 2
        z = y[1:]
        return AddsInPlace.apply(y, 3.0) * 2, y + 1, z

    x = torch.randn(5, 3)
    torch.testing.assert_close(export(function, (torch.randn(4, 3),), dynamic_shapes=({0: "n"},))(x), function(x))


def test_a_change_that_symbolic_cannot_tell_of_is_refused() -> None:
    with pytest.raises(onnx_fx_export.MutationError, match=r"ChangesSilently\.forward changes its argument in place"):
        export(lambda x: ChangesSilently.apply(x * 1, 3.0), (torch.randn(4, 3),))


def test_a_class_method_in_c_is_called_for_the_class_that_is_given() -> None:
    """As ``apply`` is in torch 2.15."""
    of_dict = _unbound(dict, vars(dict)["fromkeys"])
    made = of_dict(collections.OrderedDict, "ab")
    assert type(made) is collections.OrderedDict
    assert [*made] == ["a", "b"]
