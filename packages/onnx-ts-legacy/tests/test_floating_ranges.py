"""Ranges and fillings of numbers that 0-d tensors hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from ts_models import exported

DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64]


def ends(n: Tensor):
    return torch.arange(n), torch.arange(n, dtype=torch.int64), torch.arange(n, dtype=torch.float64)


def starts(n: Tensor):
    return torch.arange(n, 9.5), torch.arange(n, 9), torch.arange(n, 20)


def steps(n: Tensor):
    return torch.arange(0, 9, n), torch.arange(1.5, 20, n), torch.arange(n, 0, -1)


def spaced(n: Tensor):
    return torch.linspace(0, n, 5), torch.linspace(n, n * 2, 4), torch.logspace(0, n / 4, 3)


def filled(n: Tensor):
    one = torch.ones(2)
    return torch.full((2, 3), n), torch.full_like(one, n), one.new_full((3,), n), torch.zeros(3).fill_(n)


@pytest.mark.parametrize("opset", [11, pytest.param(18, marks=pytest.mark.wide)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("function", [ends, starts, steps, spaced, filled], ids=lambda function: function.__name__)
def test_numbers_in_tensors(function: Callable, dtype: torch.dtype, opset: int) -> None:
    numbers = (6, 3, 7) if dtype == torch.int64 else (6.25, 3.0, 7.75)
    exported(function, *((torch.tensor(number, dtype=dtype),) for number in numbers), opset=opset)


def scripted_ends(n: Tensor):
    return torch.arange(n), torch.arange(n.item()), torch.arange(0.5, float(n), 0.75)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_numbers_in_tensors_of_scripts(dtype: torch.dtype) -> None:
    examples = [(torch.tensor(number, dtype=dtype),) for number in (6.25, 3.0, 7.75)]
    exported(torch.jit.script(scripted_ends), *examples)
