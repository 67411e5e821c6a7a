"""Tensors that code clamps if one of their elements is infinite are chosen in one graph, however many layers ask."""

from __future__ import annotations

import pytest
import torch

from onnx_fx_export import export

LAYERS = 6


class Clamping(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(LAYERS):
            x = x * 16
            if x.dtype == torch.float16 and torch.isinf(x).any():
                most = torch.finfo(x.dtype).max - 1000
                x = torch.clamp(x, min=-most, max=most)
        return x


class Telling(torch.nn.Module):
    """One that does something else as well, so that both ways have to be captured."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 16
        most = 3.0
        if torch.isinf(x).any():
            most = torch.finfo(x.dtype).max - 1000
            x = torch.clamp(x, min=-most, max=most)
        return x + most


@pytest.mark.parametrize("model", [Clamping(), Telling()])
@pytest.mark.parametrize("largest", [1.0, 1e4])
def test_all_elements_are_clamped_if_one_is_infinite(largest, model):
    program = export(model, (torch.ones(2, 3).half(),), dynamic_shapes=[{0: "batch"}])
    x = torch.tensor([[0.001, -0.5, 4.5], [largest, -largest, 0.25], [3.9, 0.0, -3.9]]).half()

    torch.testing.assert_close(program(x), model(x), rtol=0, atol=0)


def test_clamping_elsewhere_is_clamping():
    class Plain(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.clamp(x, -1, 1) + torch.isinf(x).any()

    program, x = export(Plain(), (torch.ones(3),)), torch.tensor([0.5, -7.0, torch.inf])

    torch.testing.assert_close(program(x), Plain()(x))
