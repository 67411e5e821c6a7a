"""Sizes that a tensor of one path tells first, and others have afterwards: they are computed of what is there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import onnx_ts_legacy


class InATriedLoop(nn.Module):
    """Repeats a body that asks a new tensor for a size of an older one, after a loop that leaves it unknown."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for _ in range(x.size(0)):
            y = x + x
        if bool((x < 5).all()):
            for _ in range(3):
                y = y + torch.full_like(y, 2.0).size(0)
        return y - x


class InABranch(nn.Module):
    """Asks in one branch, and reads the size in the other one and behind both."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, int, Tensor]:
        chosen = x[x[:, 0] > 0]
        z = y + (chosen * 2).size(0) if bool((y > 0).any()) else y * chosen.size(0)
        return z, chosen.size(0), chosen.new_zeros(chosen.size(0), 2)


class InBothBranches(nn.Module):
    """Leaves as a number what another tensor of each branch tells."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        chosen = x[x[:, 0] > 0]
        n = (chosen * 2).size(0) if bool((y > 0).any()) else (chosen * 3).size(0)
        return torch.zeros(n, 2), chosen + torch.ones(n, 1)


class InALoop(nn.Module):
    """Asks in the body of a loop, and makes a tensor of that size behind it."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        chosen = x[x[:, 0] > 0]
        i = 0
        while i < x.size(0):
            i += 1
            y = y + (chosen + 1).size(0)
            if bool((y > 100).any()):
                y = y - chosen.view(-1).size(0)
        return y, torch.zeros(chosen.size(0), 2)


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize("model", [InATriedLoop, InABranch, InBothBranches, InALoop])
def test_sizes_are_told_by_what_is_there(model: Any, opset: int) -> None:
    scripted = torch.jit.script(model())
    axes = {"x": [0], "y": [0]}
    example = (torch.randn(2, 3), torch.randn(2, 3))
    program = onnx_ts_legacy.export(scripted, example, opset_version=opset, input_names=["x", "y"], dynamic_axes=axes)

    for rows in (1, 2, 5):
        inputs = torch.randn(rows, 3), torch.randn(rows, 3)
        expected = scripted(*inputs)
        results = program(*inputs)
        for actual, wanted in zip(results, expected if isinstance(expected, tuple) else [expected], strict=True):
            torch.testing.assert_close(torch.as_tensor(actual), torch.as_tensor(wanted))
