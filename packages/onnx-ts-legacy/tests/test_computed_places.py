"""Reads and writes at places that the model computes, which may count from the end."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from ts_models import agree, exported, n, over_opsets, refused_below

import onnx_ts_legacy


def row(x: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    y[i[0]] = 1
    y[:, i[1]] += 2
    return y


def from_place(x: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    y[i[0] :] = 1
    return y


def up_to_place(x: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    y[:, : i[0]] *= 3
    return y


def between_places(x: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    y[i[0] : i[1]] *= 2
    return y


def every_second(x: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    y[i[0] : i[1] : 2] *= 2
    return y


def read(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x[i[0] : i[1]], x[:, i[0]], x[i[1]], x[: i[0], ::2]


def with_indices(x: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    y[:, i[0], i] = 2
    return y


def narrowed(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
    y = x.clone()
    y.narrow(0, int(i[0]), 1).mul_(3)
    return y, x.narrow(1, int(i[1]), 1)


def numbers(x: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    y[-1][int(i[0])] = 5
    y[int(i[0]), :, int(i[1])] = 9
    return y


FUNCTIONS = [row, from_place, up_to_place, between_places, every_second, read, with_indices]
PLACES = {
    **{f"{function.__name__}-traced": function for function in FUNCTIONS},
    **{f"{function.__name__}-scripted": torch.jit.script(function) for function in (*FUNCTIONS, narrowed, numbers)},
}
LOWEST = {
    name: 9 if name.startswith(("row", "with_indices")) else 10
    for name in PLACES
    if name != "row-traced" and not name.startswith("numbers")
}


@pytest.mark.parametrize(("model", "lowest", "opset"), over_opsets(PLACES, LOWEST))
def test_places_that_the_model_computes_may_count_from_the_end(
    model: Callable[..., Tensor], lowest: int, opset: int
) -> None:
    axes = {"x": {0: "a", 1: "b", 2: "c"}, "i": {0: "k"}}
    pairs = [(1, 2), (-1, 0), (-2, 1), (0, -1), (-2, -1), (2, 1)]
    with refused_below(lowest, opset):
        exported(
            model,
            (n(4, 4, 4), torch.tensor([0, 2, -1])),
            *((n(3, 5, 6), torch.tensor(pair)) for pair in pairs),
            opset=opset,
            dynamic_axes=axes,
        )


@pytest.mark.parametrize("model", [from_place, between_places, every_second])
def test_slices_that_begin_before_the_start_begin_there(model: Callable[..., Tensor]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = onnx_ts_legacy.export(
            model, (n(4, 4), torch.tensor([0, 2])), opset_version=17, dynamic_axes={"x": {0: "a"}, "i": {0: "k"}}
        )
    agree(program, model, (n(3, 4), torch.tensor([-7, 2])), (n(3, 4), torch.tensor([-7, 9])))
