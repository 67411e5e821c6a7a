"""Modules of equal blocks, for the tests of what is done about repetition."""

from __future__ import annotations

import torch


class Block(torch.nn.Module):
    """A layer with a residual; it reads a size and writes in place, as layers do."""

    def __init__(self, size: int = 4, scale: float = 1.0) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(size)
        self.up = torch.nn.Linear(size, 2 * size)
        self.down = torch.nn.Linear(2 * size, size)
        self.scale = scale

    def forward(self, x):
        y = self.down(torch.relu(self.up(self.norm(x)))).reshape(x.shape[0], -1, x.shape[-1])
        y += 1
        return x + self.scale * y


class Stack(torch.nn.Module):
    """Its blocks one after the other."""

    def __init__(self, *blocks: torch.nn.Module) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(blocks)

    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x
