"""Operators that torch's TorchScript exporter has: of old models, and with counts of dynamic length."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from ts_models import exported, n

import onnx_ts_legacy
from onnx_ts_legacy.errors import DynamicDimensionError

FORMS = pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
X = torch.tensor([[1, 2, 4], [3, 4, 7]])


def columns(x: Tensor, r: Tensor):
    return torch.repeat_interleave(x, r, dim=1)


def flat(x: Tensor, r: Tensor):
    return torch.repeat_interleave(x, r)


def so_many(x: Tensor, r: Tensor):
    return torch.repeat_interleave(x, r, dim=0, output_size=5)


@FORMS
@pytest.mark.parametrize("axes", [{"r": {0: "r"}}, {"x": {0: "m", 1: "n"}, "r": {0: "r"}}], ids=["counts", "both"])
@pytest.mark.parametrize(
    ("function", "counts"),
    [(columns, [[2], [2, 3, 4], [1, 0, 2]]), (flat, [[2], [1, 2, 3, 0, 1, 2]]), (so_many, [[2, 3], [4, 1]])],
    ids=["columns", "flat", "so_many"],
)
def test_counts_of_a_declared_length(function: Callable, counts: list, axes: dict, scripted: bool) -> None:
    model = torch.jit.script(function) if scripted else function
    for first in counts:
        examples = [(X, torch.tensor(given)) for given in (first, *counts)]
        exported(model, *examples, opset=14, input_names=["x", "r"], dynamic_axes=axes)


@pytest.mark.parametrize("opset", [11, 18])
def test_time_batch_channel_convolution(opset: int) -> None:
    examples = [(n(time, batch, 3), n(5, 3, 4), n(4)) for time, batch in ((10, 7), (6, 2))]
    function = lambda x, w, b: torch.conv_tbc(x, w, b, 1)  # noqa: E731
    exported(function, *examples, opset=opset, input_names=["x", "w", "b"], dynamic_axes={"x": [0, 1]})


@pytest.mark.parametrize("opset", [11, 18])
def test_positions_along_a_dynamic_dimension(opset: int) -> None:
    examples = [(n(5, 6),), (n(2, 9),)]
    exported(lambda x: torch._dim_arange(x, 1), *examples, opset=opset, input_names=["x"], dynamic_axes={"x": [0, 1]})


@pytest.mark.parametrize(
    "function",
    [
        lambda e: torch.arange(e, out=torch.tensor([1])),
        lambda e: torch.arange(1, e, 2, out=torch.empty(0)),
        lambda e: torch.zeros(3, out=torch.empty(3)) + e,
        lambda e: torch.linspace(0, 1, 4, out=torch.empty(4)) + e,
        lambda e: torch.full((2,), 2.0, out=torch.empty(2)) + e,
    ],
    ids=["arange", "arange_start", "zeros", "linspace", "full"],
)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_what_fills_a_given_tensor(function: Callable) -> None:
    exported(function, (torch.tensor(8),), (torch.tensor(5),))


def test_chunks_by_a_dynamic_size_are_refused_in_words() -> None:
    with pytest.raises(DynamicDimensionError, match="has to be known at export, and this one follows from a dynamic"):
        onnx_ts_legacy.export(
            lambda x: torch.chunk(x, x.size(0), 1), (n(3, 18),), input_names=["x"], dynamic_axes={"x": [0, 1]}
        )
