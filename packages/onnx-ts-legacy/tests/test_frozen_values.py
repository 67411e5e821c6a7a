"""Every way in which tracing freezes a Python value is warned about, with the line of the user's program."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from ts_models import exported

import onnx_ts_legacy
from onnx_ts_legacy.errors import CaptureError, OnnxExporterError, StateError

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


def formatted(x: Tensor) -> Tensor:
    return x * len(f"{x.sum():.3f}")


def printed(x: Tensor) -> Tensor:
    return x * len(str(x))


def membership(x: Tensor) -> Tensor:
    return x * (2.0 in x)


def item_of_list(x: Tensor) -> Tensor:
    return [x, x * 2, x * 3][x.argmax(dim=1)[0]]


def same(x: Tensor) -> Tensor:
    return x + 1 if torch.equal(x, x.abs()) else x


def close(x: Tensor) -> Tensor:
    return x + 1 if x.allclose(x.abs()) else x


def nonzero(x: Tensor) -> Tensor:
    return x + 1 if torch.is_nonzero(x.sum()) else x


def strides(x: Tensor) -> Tensor:
    return x + x.stride(0)


def key(x: Tensor) -> Tensor:
    return x * {2: 1.5, 3: 2.5}.get(x.shape[0], 3.5)


OF_SIZES = [strides, key]
FUNCTIONS = [
    formatted,
    printed,
    membership,
    item_of_list,
    same,
    close,
    nonzero,
    item,
    number_of_tensor,
    float_of_tensor,
    truth,
    array,
    tensor_of_number,
    listed,
    index,
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_frozen_value_is_warned_about_with_its_line(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.warns(torch.jit.TracerWarning) as caught:
        onnx_ts_legacy.export(function, (X,))

    first = function.__code__.co_firstlineno
    lines = range(first + 1, first + 5)
    frozen = [warning for warning in caught if issubclass(warning.category, torch.jit.TracerWarning)]
    assert [warning for warning in frozen if warning.filename != __file__ or warning.lineno not in lines] == []


def test_a_loop_over_rows_is_recorded_where_their_number_is_static_and_refused_elsewhere() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        program = onnx_ts_legacy.export(iteration, (X,))
        with pytest.raises(OnnxExporterError, match=r"unbind(.|\n)*test_frozen_values.py:\d+"):
            onnx_ts_legacy.export(iteration, (X,), input_names=["x"], dynamic_axes={"x": {0: "n"}})
    torch.testing.assert_close(program(2 * X)[0], iteration(2 * X))


def test_a_line_of_a_function_that_a_nested_module_calls_is_named() -> None:
    class Calling(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return number_of_tensor(item(x))

    with pytest.warns(torch.jit.TracerWarning) as caught:
        onnx_ts_legacy.export(torch.nn.Sequential(torch.nn.Sequential(Calling())), (X,))

    lines = [function.__code__.co_firstlineno + 1 for function in (item, number_of_tensor)]
    assert [warning.lineno for warning in caught] == lines


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[: x.size(0)] + x[x.size(0) - 2 :],
        lambda x: torch.nn.functional.one_hot(x.long(), x.size(1) + 9),
        lambda x: torch.linspace(0, 1, x.size(0)) + x.sum(),
        lambda x: x.clone().index_fill_(0, torch.arange(x.size(0)), 1.0)[..., x.size(1) - 2 :],
        lambda x: x.narrow(0, 0, x.size(0)).select(1, x.size(1) - 1) + x[x.size(0) - 1, 0],
        lambda x: {"x": x, x.size: 1}["x"] + 1,
    ],
    ids=["slices", "one_hot", "linspace", "ellipsis", "narrow", "other keys"],
)
def test_what_is_recorded_is_not_warned_about(
    function: Callable[[Tensor], Tensor], recwarn: pytest.WarningsRecorder
) -> None:
    onnx_ts_legacy.export(function, (X,), dynamic_axes={"x": {0: "n"}})

    assert [str(warning.message) for warning in recwarn] == []


def many_bytes(x: Tensor) -> Tensor:
    return x + 1 if x.nbytes > 24 else x


def test_bytes_follow_the_sizes_or_are_a_condition() -> None:
    axes = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}}
    program = onnx_ts_legacy.export(lambda x: x * x.nbytes, (X,), **axes)
    larger = torch.cat([X, X, X])
    torch.testing.assert_close(program(larger)[0], larger * larger.nbytes)

    with pytest.warns(UserWarning, match="only some of the declared sizes"):
        program = onnx_ts_legacy.export(many_bytes, (X,), **axes)
    with pytest.raises(OnnxExporterError, match="n"):
        program(larger)


def test_bytes_follow_the_data_that_decides_a_size() -> None:
    def found(x: Tensor) -> Tensor:
        return x * x[x > 2].nbytes

    program = onnx_ts_legacy.export(found, (X,), frozen_values="error")
    for other in (X + 2, X - 9, -X):
        torch.testing.assert_close(program(other)[0], found(other))


def test_the_place_of_a_part_in_memory_is_warned_of() -> None:
    with pytest.warns(torch.jit.TracerWarning, match="storage_offset"):
        onnx_ts_legacy.export(lambda x: x * x[1:].storage_offset(), (X,))


def test_functions_of_torch_are_its_own_again_after_a_trace() -> None:
    before = [torch.equal, torch.Tensor.stride, torch.Tensor.nbytes, torch.Tensor.__hash__]

    with pytest.warns(torch.jit.TracerWarning):
        onnx_ts_legacy.export(same, (X,))

    assert before == [torch.equal, torch.Tensor.stride, torch.Tensor.nbytes, torch.Tensor.__hash__]
    assert "__index__" not in vars(torch.Tensor)


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


def resized(x: Tensor) -> Tensor:
    y = x.clone()
    y.resize_(2, 3).add_(x)
    return y


def imported(x: Tensor) -> Tensor:
    return torch.from_dlpack(x.detach()) * 2


@pytest.mark.parametrize("function", [assigned_data, moved, resized, imported], ids=lambda function: function.__name__)
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
