"""What programs ask of whole tensors is answered for each input, the sizes of the tensors included."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from ts_models import exported

AXES = {"x": {0: "n", 1: "k"}, "y": {0: "m", 1: "l"}}


@torch.jit.script
def equal(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 if torch.equal(x, y) else y


@torch.jit.script
def equal_in_a_loop(x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    count = 0
    while not x.equal(y) and count < 3:
        x = x - 1
        count += 1
    return x, count


@torch.jit.script
def equal_of_other_ranks(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 if x.equal(y[None]) or torch.equal(x.int(), y) else y


@torch.jit.script
def close(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 if torch.allclose(x, y[:1], rtol=1e-3) else y


@torch.jit.script
def nonzero(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 if torch.is_nonzero(x.sum() - y.sum()) and y.sum()[None].is_nonzero() else y


def calls() -> Iterator[Sequence[Tensor]]:
    ones = torch.ones
    for rows, more, width, other in itertools.product((1, 3), (1, 3, 4), (1, 2), (0, 2)):
        yield ones(rows, width), ones(more, other)
    yield from ((ones(3, 2), y) for y in (ones(3, 2) + 1e-4, torch.zeros(3, 2), -ones(3, 2)))
    yield from ((ones(0, 2), ones(0, width)) for width in (2, 3))


@pytest.mark.parametrize("program", [equal, equal_in_a_loop, equal_of_other_ranks, nonzero])
def test_tensors_of_any_sizes_are_compared(program: Callable[..., Any]) -> None:
    exported(program, (torch.ones(3, 2), torch.ones(3, 2)), *calls(), input_names=["x", "y"], dynamic_axes=AXES)


@pytest.mark.parametrize("program", [equal, equal_in_a_loop, equal_of_other_ranks, close, nonzero])
def test_tensors_of_fixed_sizes_are_compared(program: Callable[..., Any]) -> None:
    ones = torch.ones(3, 2)
    exported(program, (ones, ones), *((ones, y) for y in (ones + 1e-4, ones - 2, ones * 2)), opset=13)
