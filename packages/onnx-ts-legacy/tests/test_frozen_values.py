"""Every way in which tracing freezes a Python value is warned about, with the line of the user's program."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from ts_models import exported

import onnx_ts_legacy
from onnx_ts_legacy.errors import CaptureError, StateError

X = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def item(x: Tensor) -> Tensor:
    return x * x.sum().item()


def number_of_tensor(x: Tensor) -> Tensor:
    return x * int(x[0, 0])


def float_of_tensor(x: Tensor) -> Tensor:
    return x * float(x[0, 0])


def truth(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


def array(x: Tensor) -> Tensor:
    return x + torch.from_numpy(np.asarray(x.detach().numpy()) * 2)


def length(x: Tensor) -> Tensor:
    return x + len(x)


def iteration(x: Tensor) -> Tensor:
    total = torch.zeros(3)
    for row in x:
        total = total + row
    return total


def tensor_of_number(x: Tensor) -> Tensor:
    return x + torch.tensor(x.max().item())


def listed(x: Tensor) -> Tensor:
    return x + torch.tensor(x.tolist())


def index(x: Tensor) -> Tensor:
    return x[: int(x[0, 1])]


FUNCTIONS = [
    item,
    number_of_tensor,
    float_of_tensor,
    truth,
    array,
    length,
    iteration,
    tensor_of_number,
    listed,
    index,
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_frozen_value_is_warned_about_with_its_line(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.warns(torch.jit.TracerWarning) as caught:
        onnx_ts_legacy.export(function, (X,))

    first = function.__code__.co_firstlineno
    lines = range(first, first + 6)
    assert any(warning.filename == __file__ and warning.lineno in lines for warning in caught)


def test_sizes_and_plain_arithmetic_are_not_warned_about(recwarn: pytest.WarningsRecorder) -> None:
    onnx_ts_legacy.export(lambda x: x.reshape(x.shape[0] * x.size(1)) + x.dim(), (X,))

    assert [warning for warning in recwarn if issubclass(warning.category, torch.jit.TracerWarning)] == []


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.data * 2,
        lambda x: (x + 1).data.clone().data,
        lambda x: copy.deepcopy(x.detach()) * 2,
        lambda x: torch.stack(torch.atleast_2d(x, x[0], x[0, 0])[:1]),
    ],
    ids=["data", "data of a result", "deepcopy", "atleast_2d"],
)
def test_what_tracing_does_not_record_by_itself_is_no_constant(read: Callable[[Tensor], Tensor]) -> None:
    exported(read, (X,), (-X,), (torch.randn(5, 3),), dynamic_axes={"x": {0: "n"}})


def assigned_data(x: Tensor) -> Tensor:
    y = x.clone()
    y.data = x * 3
    return y


def moved(x: Tensor) -> Tensor:
    y = x.clone()
    y.set_(x * 3)
    return y


def imported(x: Tensor) -> Tensor:
    return torch.from_dlpack(x.detach()) * 2


@pytest.mark.parametrize("function", [assigned_data, moved, imported], ids=lambda function: function.__name__)
def test_what_a_trace_cannot_hold_is_refused_with_its_line(function: Callable[[Tensor], Tensor]) -> None:
    first = function.__code__.co_firstlineno

    with pytest.raises(CaptureError, match=rf"test_frozen_values\.py:({first + 1}|{first + 2})\)"):
        onnx_ts_legacy.export(function, (X,))


def test_a_buffer_that_changes_through_its_data_is_state() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.count.data.add_(1)
            return x + self.count

    with pytest.raises(StateError, match="count"):
        onnx_ts_legacy.export(Counting(), (X,))
