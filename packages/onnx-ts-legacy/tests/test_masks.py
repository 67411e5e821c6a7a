"""Indexing by several masks, each of which selects some places or one, and by masks of dtype uint8."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from ts_models import exported

import onnx_ts_legacy
from onnx_ts_legacy.errors import OnnxExporterError

FORMS = pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
OPSETS = pytest.mark.parametrize("opset", [11, pytest.param(18, marks=pytest.mark.wide)])
X = torch.arange(36.0).reshape(3, 4, 3)


def mask(*numbers: int, dtype: torch.dtype = torch.bool) -> Tensor:
    return torch.tensor(numbers).to(dtype)


ONE, TWO = mask(1, 0, 0), mask(1, 0, 1, 0)
COUNTS = [(mask(1, 0, 1), mask(0, 1, 0, 0)), (mask(1, 1, 1), mask(1, 1, 0, 1)), (ONE, mask(0, 1, 0, 0))]
NOTHING = (ONE, mask(0, 0, 0, 0))


def beside(x: Tensor, a: Tensor, b: Tensor):
    return x[a, b]


def apart(x: Tensor, a: Tensor, b: Tensor):
    return x.transpose(1, 2)[a, :, b]


def behind(x: Tensor, a: Tensor, b: Tensor):
    return x.permute(2, 0, 1)[:, a, b]


def write(x: Tensor, a: Tensor, b: Tensor):
    x = x.clone()
    x[a, b] = torch.tensor([5.0])
    return x


def add(x: Tensor, a: Tensor, b: Tensor):
    return x.index_put((a, b), torch.arange(3.0), accumulate=True)


@OPSETS
@FORMS
@pytest.mark.parametrize("function", [beside, apart, behind, write, add], ids=lambda function: function.__name__)
def test_masks_that_select_one_place_and_several(function: Callable, scripted: bool, opset: int) -> None:
    examples = [(X, a, b) for a, b in ((ONE, TWO), *COUNTS, NOTHING)]
    exported(torch.jit.script(function) if scripted else function, *examples, opset=opset)


@OPSETS
@FORMS
@pytest.mark.parametrize("places", [torch.tensor([2]), torch.tensor([0, 3]), torch.tensor(1), torch.tensor([[0], [2]])])
def test_a_mask_beside_integers(places: Tensor, scripted: bool, opset: int) -> None:
    examples = [(X, a, places) for a in (ONE, mask(0, 1, 0), mask(1, 0, 1))]
    if places.shape[-1:] == (2,):
        examples = examples[:2]
    exported(torch.jit.script(beside) if scripted else beside, *examples, opset=opset)


def read_old(x: Tensor, a: Tensor):
    return x[a], x[a, 1:], x[a, a.flip(0)] if x.dim() < 2 else x[a]


def choose_old(x: Tensor, a: Tensor):
    return torch.where(a, x, -x), torch.where(a, x, 1.5), torch.where(a, 1.0, 2.0), x.where(a, -x)


def write_old(x: Tensor, a: Tensor):
    y = x.clone()
    y[a] = torch.arange(3.0)
    return y, x.index_put((a,), torch.tensor(2.0), accumulate=True)


@OPSETS
@FORMS
@pytest.mark.parametrize("function", [read_old, choose_old, write_old], ids=lambda function: function.__name__)
@pytest.mark.filterwarnings("ignore:indexing with dtype", "ignore:where received a uint8")
def test_masks_of_uint8_are_as_in_torch(function: Callable, scripted: bool, opset: int) -> None:
    x = X[:, 0]
    examples = [(x, mask(*numbers, dtype=torch.uint8)) for numbers in ((0, 1, 2), (3, 0, 0), (0, 0, 0))]
    exported(torch.jit.script(function) if scripted else function, *examples, opset=opset)


@FORMS
@pytest.mark.parametrize(
    "function",
    [
        lambda x, a: x.masked_select(a),
        lambda x, a: x.masked_fill(a, 2.0),
        lambda x, a: x.masked_scatter(a, torch.arange(9.0)),
    ],
    ids=["masked_select", "masked_fill", "masked_scatter"],
)
def test_masks_of_uint8_are_refused_where_torch_does(function: Callable, scripted: bool) -> None:
    a = mask(0, 1, 2, dtype=torch.uint8)
    model = torch.jit.trace(function, (X[:, 0], a.bool()), check_trace=False) if scripted else function
    with pytest.raises(OnnxExporterError, match=r"(?i)bool"):
        onnx_ts_legacy.export(model, (X[:, 0], a))
