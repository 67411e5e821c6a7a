"""Sizes that only the data decides are right for other data and other sizes than the example's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from onnx_fx_export import export


def positions(x):
    return (x > 0).nonzero()


def positions_as_tuple(x):
    rows, columns = torch.nonzero(x > 0, as_tuple=True)
    return rows * 10 + columns, x[rows, columns]


def selected(x):
    return torch.masked_select(x, x > 0) * 2


def by_mask(x):
    rows = x[x.sum(1) > 0]
    return rows @ x.T, rows.shape[0]


def distinct(x):
    values, inverse, counts = torch.unique(x.round(), return_inverse=True, return_counts=True)
    return values, inverse, counts


def consecutive(x):
    return torch.unique_consecutive((x > 0).flatten().long(), return_counts=True)


def repeated(x):
    return x[:, 0].repeat_interleave((x > 0).sum(1))


def first_rows(x):
    count = (x[:, 0] > 0).sum().item()
    torch._check(count >= 0)
    torch._check(count <= x.shape[0])
    return x[:count] + 1


def zeros_of_length(x):
    count = (x > 0).sum().item()
    torch._check(count >= 0)
    return torch.zeros(count, 2) + x.max()


def padded(x):
    kept = x[x > 0]
    return torch.nn.functional.pad(kept, (1, 2)), torch.cat([kept, kept])


CASES: list[Callable] = [
    positions,
    positions_as_tuple,
    selected,
    by_mask,
    distinct,
    consecutive,
    repeated,
    first_rows,
    zeros_of_length,
    padded,
]


@pytest.mark.parametrize("opset", [11, 20])
@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_sizes_follow_the_data(function: Callable, opset: int) -> None:
    torch.manual_seed(0)
    program = export(function, (torch.randn(4, 3),), dynamic_shapes={"x": {0: "n", 1: "m"}}, opset_version=opset)
    for x in (torch.randn(4, 3), torch.randn(7, 5), torch.ones(2, 3), torch.randn(3, 6) - 1):
        torch.testing.assert_close(program(x), function(x), check_stride=False)
