"""Values that are written to parts of tensors are broadcast to the sizes of the call, not to those of the example."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from ts_models import exported, n

import onnx_ts_legacy
from onnx_ts_legacy.errors import DynamicDimensionError

FORMS = pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
X = (2, 5, 3)
OTHERS = ((3, 4, 3), (7, 9, 3), (4, 3, 3))


def row(x: Tensor):
    x[0] = torch.tensor([1.0, 2.0, 3.0])


def last_row(x: Tensor):
    x[-1] = torch.arange(3.0)


def columns(x: Tensor):
    x[:, 1:] = torch.tensor([1.0, 2.0, 3.0])


def everything(x: Tensor):
    x[:] = torch.tensor([[1.0, 2.0, 3.0]])


def every_other(x: Tensor):
    x[:, ::2] = torch.tensor([[[1.0, 2.0, 3.0]]])


def of_another_dtype(x: Tensor):
    x[:, 1:] = torch.arange(3)


def number(x: Tensor):
    x[..., 0] = torch.tensor(5.0)


def slice_of_slice(x: Tensor):
    x[:, 1:][:, ::2] = torch.arange(3.0)


def new_axis(x: Tensor):
    x[:, None, 1:] = torch.arange(3.0)


def own_part(x: Tensor):
    x[:, 1:] = x[:, :1]


def added(x: Tensor):
    x[:, 1:] += torch.arange(3.0)


def copied(x: Tensor):
    x[:, :-1].copy_(torch.tensor([1.0, 2.0, 3.0]))


def filled(x: Tensor):
    x[:, 1:].fill_(torch.tensor(2.0))


def diagonal(x: Tensor):
    torch.diagonal(x, 0, 0, 2)[:] = torch.tensor([3.0])


def masked(x: Tensor):
    x[x > 0] = torch.tensor([7.0])


def masked_rows(x: Tensor):
    x[x.sum((1, 2)) > 0] = torch.tensor([1.0, 2.0, 3.0])


def places(x: Tensor):
    x[:, torch.tensor([0, 1])] = torch.tensor([[[1.0, 2.0, 3.0]]])


def expanded_to_another(x: Tensor):
    x += torch.tensor([1.0, 2.0, 3.0]).expand_as(x)


def broadcast_to_sizes(x: Tensor):
    x *= torch.broadcast_to(torch.tensor([1.0, 2.0, 3.0]), (x.size(0), x.size(1), 3))


WRITES = [
    *(row, last_row, columns, everything, every_other, of_another_dtype, number, slice_of_slice, new_axis, own_part),
    *(added, copied, filled, diagonal, masked, masked_rows, places, expanded_to_another, broadcast_to_sizes),
]


@pytest.mark.parametrize(
    "opset", [11, pytest.param(14, marks=pytest.mark.wide), pytest.param(20, marks=pytest.mark.wide)]
)
@FORMS
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_constants_are_broadcast(write: Callable[[Tensor], None], scripted: bool, opset: int) -> None:
    change = torch.jit.script(write) if scripted else write

    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = x.clone()
            change(x)
            return x

    model = torch.jit.script(Model()) if scripted else Model()
    examples = [(n(*sizes),) for sizes in (X, *OTHERS)]
    exported(model, *examples, opset=opset, input_names=["x"], dynamic_axes={"x": [0, 1]})


def to_columns(x: Tensor, value: Tensor) -> Tensor:
    x = x.clone()
    x[:, 1:] = value
    return x


def to_row(x: Tensor, value: Tensor) -> Tensor:
    x = x.clone()
    x[0] = value
    return x


@FORMS
@pytest.mark.parametrize(
    ("write", "value", "axes", "others"),
    [
        (to_columns, (3,), {}, ((3,), (3,))),
        (to_columns, (1, 1, 3), {}, ((1, 1, 3), (1, 1, 3))),
        (to_columns, (1, 3), {0: "k"}, ((1, 3), (8, 3))),
        (to_columns, (4, 3), {0: "k"}, ((3, 3), (1, 3))),
        (to_columns, (2, 4, 3), {0: "n", 1: "k"}, ((3, 3, 3), (7, 8, 3))),
        (to_row, (5, 3), {0: "m"}, ((4, 3), (9, 3))),
    ],
)
def test_inputs_are_broadcast(write: Callable, value: tuple, axes: dict, others: tuple, scripted: bool) -> None:
    examples = [(n(*X), n(*value)), *((n(*sizes), n(*of)) for sizes, of in zip(OTHERS, others, strict=False))]
    exported(
        torch.jit.script(write) if scripted else write,
        *examples,
        input_names=["x", "value"],
        dynamic_axes={"x": {0: "n", 1: "m"}, "value": axes},
    )


def test_dimensions_of_one_before_those_of_the_place_are_dropped_as_python_does() -> None:
    exported(to_row, (n(*X), n(1, 1, 3)), (n(7, 9, 3), n(1, 1, 3)), input_names=["x"], dynamic_axes={"x": [0, 1]})


@FORMS
def test_a_value_that_fits_one_size_is_refused(scripted: bool) -> None:
    def columns_of_four(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, 1:] = torch.ones(4, 3)
        return x

    with pytest.raises(DynamicDimensionError, match=r"of size m - 1.*only where that is 4.*test_written_values.py"):
        onnx_ts_legacy.export(
            torch.jit.script(columns_of_four) if scripted else columns_of_four,
            (torch.ones(X),),
            input_names=["x"],
            dynamic_axes={"x": {1: "m"}},
        )
