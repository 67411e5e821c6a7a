"""Functions that are scripted while a model is traced call torch's functions, although the trace replaces some."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from ts_models import exported, n


def with_a_constant(x: Tensor) -> Tensor:
    return x + torch.tensor(1.5).to(x)


def with_math(x: Tensor) -> Tensor:
    return x * math.sqrt(float(x.shape[0])) + math.floor(2.5) + round(2.6)


def with_layers(x: Tensor) -> Tensor:
    return F.gelu(F.linear(x, x)) + F.softplus(x).sum() + F.cosine_similarity(x, x, 0).mean()


def with_a_loop(x: Tensor) -> Tensor:
    for i in range(len(x)):
        x = x + x[i] * max(i, 1)
    return x


def with_branches(x: Tensor) -> Tensor:
    if bool(x.sum() > 0) and not torch.equal(x, x.abs()):
        return x * int(x.abs().sum().item())
    return with_a_constant(x)


FUNCTIONS = [with_a_constant, with_math, with_layers, with_a_loop, with_branches]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_that_is_scripted_when_traced(function: Callable[[Tensor], Tensor]) -> None:
    scripted = torch.jit.script_if_tracing(function)

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return scripted(x) * 2

    examples = [(n(4, 4),), (n(4, 4).abs(),), (n(6, 4),), (-n(5, 4).abs(),)]
    exported(Model().eval(), *examples, input_names=["x"], dynamic_axes={"x": {0: "rows"}})


@pytest.mark.parametrize("function", FUNCTIONS[:3])
def test_a_function_that_the_model_scripts(function: Callable[[Tensor], Tensor]) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.jit.script(function)(x)

    exported(Model().eval(), (n(4, 4),), (-n(4, 4),))
