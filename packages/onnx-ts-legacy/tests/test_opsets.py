"""Small models, one behaviour each, traced and scripted, over the opsets, at sizes other than the example's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from ts_models import exported

DEFAULT = (7, 8, 9, 11, 13, 15, 17, 18, 20, 21, 23, 24, 25, 26)
ALL = tuple(range(7, 27))
X, Y = torch.randn(2, 4), torch.randn(5, 4)
AXES = {"x": {0: "n"}}


def arithmetic(x: Tensor) -> Tensor:
    return torch.clamp(x * 2 - 0.5, -1.0, 1.0) / (x.abs() + 1) + torch.where(x > 0, x, -x)


def reductions(x: Tensor) -> Tensor:
    return x.sum(1) + x.mean(-1) + x.max(1)[0] + x.pow(2).sum(1).sqrt() + x.argmax(1)


def reshaping(x: Tensor) -> Tensor:
    return x.reshape(x.size(0), 2, 2).transpose(1, 2).flatten(1).unsqueeze(1).squeeze(1)


def joining(x: Tensor) -> Tensor:
    a, b = torch.split(x, [1, 3], 1)
    return torch.cat([b, a], 1) + torch.stack([x, x * 2], 0).sum(0)


def slicing(x: Tensor) -> Tensor:
    return x[:, 1:3] + x[:, -2:] + x[:, 0:1]


def assigning(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1] = 5.0
    y[:, 2:] *= 2
    return y


def looking_up(x: Tensor) -> Tensor:
    return torch.index_select(x, 1, torch.tensor([3, 0, 0])) + torch.gather(x, 1, torch.zeros_like(x).long())[:, :3]


def activations(x: Tensor) -> Tensor:
    return F.gelu(x) + F.elu(x) + F.softplus(x) + F.hardtanh(x) + torch.softmax(x, 1) + F.leaky_relu(x, 0.2)


def integers(x: Tensor) -> Tensor:
    n = (x * 10).to(torch.int64)
    return n // 3 + n % 3


def padding(x: Tensor) -> Tensor:
    return F.pad(x, [1, 2], value=0.5)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


class Deciding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            x = x * 2
        else:
            x = x - 1
        return x


class Repeating(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x[0])
        for i in range(x.size(0)):
            total = total * 0.5 + x[i]
        return total


FUNCTIONS: list[Callable[[Tensor], Tensor]] = [
    *(arithmetic, reductions, reshaping, joining, slicing, assigning, looking_up, activations, integers, padding),
]


def cases() -> list[Any]:
    found = []
    for opset in ALL:
        marks = [] if opset in DEFAULT else [pytest.mark.wide]
        for function in FUNCTIONS:
            for scripted in (False, True):
                # By default every opset is met by each function in one of the two ways.
                other = (opset + scripted + FUNCTIONS.index(function)) % 2
                found.append(
                    pytest.param(
                        function,
                        scripted,
                        opset,
                        marks=[pytest.mark.wide] if other and not marks else marks,
                        id=f"{function.__name__}-{'scripted' if scripted else 'traced'}-{opset}",
                    )
                )
    return found


@pytest.mark.parametrize(("function", "scripted", "opset"), cases())
def test_a_function_agrees(function: Callable[[Tensor], Tensor], scripted: bool, opset: int) -> None:
    model = torch.jit.script(function) if scripted else function

    exported(model, (X,), (Y,), dynamic_axes=AXES, opset=opset)


@pytest.mark.parametrize("opset", [pytest.param(n, marks=[] if n in DEFAULT else [pytest.mark.wide]) for n in ALL])
def test_layers_and_control_flow_agree(opset: int) -> None:
    for model in (Layers(), torch.jit.script(Layers()), torch.jit.script(Deciding()), torch.jit.script(Repeating())):
        exported(model, (X,), (Y,), (-Y.abs(),), dynamic_axes=AXES, opset=opset)
