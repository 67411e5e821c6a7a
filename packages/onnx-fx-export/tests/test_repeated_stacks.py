"""Stacks of equal blocks, one after another in models made by chance, give what eager PyTorch gives."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from onnx_fx_export import export

WIDTH, FROM, TO = 6, 8, 10


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + self.linear(x).tanh(), y


class Normalized(Linear):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return nn.functional.layer_norm(x + self.linear(y), (WIDTH,)), y


class Crossed(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + self.linear(y).tanh(), self.other(x).sigmoid() * y


class Swapped(Linear):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return y, x + self.linear(x * y).tanh()


class Shifted(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.randn(WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(x) + self.shift, y


class Stacks(nn.Module):
    """Up to four stacks, of one to three classes in turn; some of them read what a stack before gave."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        chance = random.Random(seed)
        torch.manual_seed(seed)
        self.stacks = nn.ModuleList()
        self.reads_memory, self.adds_start = [], []
        for _ in range(chance.randint(2, 4)):
            kinds = chance.choices((Linear, Normalized, Crossed, Swapped, Shifted), k=chance.choice((1, 1, 2, 3)))
            self.stacks.append(nn.ModuleList(kind() for _ in range(chance.randint(FROM, TO)) for kind in kinds))
            self.reads_memory.append(chance.random() < 0.3)
            self.adds_start.append(chance.random() < 0.3)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        memory = y
        for stack, reads_memory, adds_start in zip(self.stacks, self.reads_memory, self.adds_start, strict=True):
            start = x
            for block in stack:
                x, y = block(x, memory) if reads_memory else block(x, y)
            if reads_memory:
                memory = x
            if adds_start:
                x = x + start
        return x, y, memory


@pytest.mark.parametrize("asked", [None, True])
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.wide) for seed in range(3, 60))])
def test_stacks_one_after_another(seed: int, asked: bool | None) -> None:
    model = Stacks(seed).eval()
    example = torch.randn(2, WIDTH), torch.randn(2, WIDTH)
    program = export(model, example, dynamic_shapes=({0: "n"}, {0: "n"}), capture_repeated_blocks=asked)

    assert "copies of blocks" in program.timings
    for rows in (2, 3):
        args = torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)
        for found, expected in zip(program(*args), model(*args), strict=True):
            torch.testing.assert_close(found, expected.detach(), rtol=1e-4, atol=1e-5)
