"""Python numbers that the data decides: what code computes of them is computed by the exported model."""

from __future__ import annotations

import math

import pytest
import torch

from onnx_fx_export import export
from onnx_fx_export.inputs.arguments import FunctionModule

X = torch.tensor([[0.5, 1.75, -2.25], [1.0, 2.0, 3.0]])
OTHER = torch.tensor([[2.5, 0.625, -1.5], [3.0, 1.0, 2.0]])


def arithmetic(x):
    a, b = x[0, 1].item(), x[0, 2].item()
    return a + b, a * 2, 1 - a, a / 3, 3 / a, a // 0.5, a % 0.5, a**2, 2**a, -a, abs(b), a * 0.5 + b * b


def roundings(x):
    a, b = x[0, 1].item(), x[0, 2].item()
    return math.floor(a), math.ceil(b), math.trunc(b), round(a), max(a, b, 1.5), min(a, 2.5)


def lists(x):
    numbers = x[0].tolist()
    return sum(numbers) / 3, max(numbers), sum(n * n for n in numbers) ** 0.5


def mixed(x):
    a, whole = x[0, 1].item(), x.long()[1, 1].item()
    return whole * 2 + 1, whole * a, x.shape[0] * 0.5 + a


def as_operands(x):
    a = x[0, 1].item()
    return (
        x * (a * 2),
        x.clamp(max=a * 0.5),
        torch.add(x, x, alpha=a + 0.25),
        torch.full((2,), a * 2),
        torch.tensor([a, a * 2]),
        torch.where(x > a * 0.5, x, 0.0),
        torch.arange(0, x[1, 1].item() * 2, 0.5),
    )


@pytest.mark.parametrize("function", [arithmetic, roundings, lists, mixed, as_operands])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_arithmetic_of_numbers_from_data(function, dtype) -> None:
    program = export(FunctionModule(function), (X.to(dtype),))

    for x in (X.to(dtype), OTHER.to(dtype)):
        for actual, expected in zip(program(x), function(x), strict=True):
            # Numbers are doubles in Python and in the model.
            torch.testing.assert_close(torch.as_tensor(actual), torch.as_tensor(expected), check_dtype=False)
