"""Models whose forward asks for gradients of what it computed: forces from an energy, and what is made of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad

from onnx_fx_export import CaptureError, export


class Energy(nn.Module):
    """An energy of positions of shape (n, 3), by a small network."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0]))


class Forces(Energy):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_(True)
        energy = self.layers(x * self.scale).sum()
        (slope,) = torch.autograd.grad(energy, x, create_graph=self.training)
        return energy, -slope


class Curvature(Energy):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x.requires_grad_(True)
        slope = grad([self.layers(x).sum()], [x], create_graph=True)[0]
        return {"slope": slope, "of its square": grad(slope.pow(2).sum(), x)[0]}


class Inside(nn.Module):
    """Holds the model that differentiates, and switches gradients on itself."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = Forces()

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            return self.energy(x * 2)[1] + 1


class Pairs(nn.Module):
    """A potential of the distances of pairs."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.requires_grad_()
        first, second = torch.triu_indices(x.shape[0], x.shape[0], 1)
        distances = (x[first] - x[second]).norm(dim=-1)
        energy = torch.zeros(x.shape[0]).index_add(0, first, torch.exp(-distances)).sum()
        return energy, -torch.autograd.grad(energy, x)[0]


def of_a_function(x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    return grad((x**3).sum(), x)[0]


def leaves(results: Any) -> list[Tensor]:
    return [leaf.detach() for leaf in torch.utils._pytree.tree_leaves(results)]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("model", [Forces, Curvature, Inside, Pairs, lambda: of_a_function])
def test_gradients_are_those_of_the_model_at_every_size(model: Any, training: bool) -> None:
    module = model()
    if isinstance(module, nn.Module):
        module.train(training)
    program = export(module, (torch.randn(4, 3),), dynamic_shapes={"x": {0: "n"}}, verify=True)

    for count in (4, 7, 2):
        x = torch.randn(count, 3)
        for found, expected in zip(leaves(program(x)), leaves(module(x.clone())), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_model_is_left_as_it_was() -> None:
    model = Forces().eval()
    model.layers[0].weight.requires_grad_(False)

    program = export(model, (torch.randn(4, 3),), strategy="transforms")

    assert program.capture_strategy == "transforms"
    assert torch.is_grad_enabled()
    assert [each.requires_grad for each in model.parameters()] == [False, True, True, True]
    assert all(each.grad is None for each in model.parameters())
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


class Backward(Energy):
    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        self.layers(x).sum().backward()
        return x.grad


def test_gradients_that_are_added_to_parameters_are_refused_with_the_line() -> None:
    model = Backward()

    with pytest.raises(CaptureError, match=r"test_models_that_differentiate\.py:\d+"):
        export(model, (torch.randn(4, 3),))

    assert all(each.grad is None for each in model.parameters())
