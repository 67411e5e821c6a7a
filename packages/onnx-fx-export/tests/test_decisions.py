"""What torch decides for sizes of 2 and more is not taken for granted at size 1."""

import warnings

import pytest
import torch
from torch.nn import functional as F

from onnx_fx_export import InvalidArgumentError, export
from onnx_fx_export.inputs.arguments import FunctionModule

ROW = torch.arange(6.0)


def written(x, end):
    v = x.new_zeros(3, 2) + x.sum()
    v[:, :end] = 1.5
    return v


CASES = {
    "write up to a size": lambda x, n: written(x, n),
    "write up to the smaller size": lambda x, n: written(x, min(n, 2)),
    "write from the end": lambda x, n: written(x, -n),
    "slice": lambda x, n: (x.new_ones(3, 2) + x.sum())[:, :n].sum(1),
    "slice from the end": lambda x, n: (x.new_ones(3, 2) + x.sum())[:, -n:].sum(1),
    "slice that leaves nothing": lambda x, n: x[:, 2 * n :].sum(1),
    "split": lambda x, n: (ROW[:2] + x.sum()).split(n)[-1],
    "chunk": lambda x, n: (ROW + x.sum()).chunk(min(n, 2))[-1],
    "unfold": lambda x, n: (ROW + x.sum()).unfold(0, min(n, 2), 1).sum(1),
    "diagonal": lambda x, n: (ROW.view(2, 3) + x.sum()).diagonal(min(n, 2)).sum(),
    "axis": lambda x, n: x.cumsum(min(n, 2) - 1),
    "repeated list": lambda x, n: torch.stack([x.sum()] * min(n, 2)).sum(),
    "padding": lambda x, n: F.avg_pool1d(x[None], 2, 1, min(n, 2) - 1).sum(),
    "power": lambda x, n: x * 2 ** (n - 2),
    "smaller size": lambda x, n: x * min(n, 2),
    "distance": lambda x, n: x * abs(n - 2),
}


@pytest.mark.parametrize("name", CASES)
def test_size_one_is_right_or_refused(name) -> None:
    model = FunctionModule(lambda x: CASES[name](x, x.shape[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = export(model, (torch.randn(4, 3),), dynamic_shapes=({0: "n"},))
    for rows in (2, 3, 4, 7):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(program(x), model(x))
    x = torch.randn(1, 3)
    try:
        result = program(x)
    except InvalidArgumentError:
        assert name not in {"smaller size", "distance"}
        return
    torch.testing.assert_close(result, model(x))
