"""Sizes are of the classes of Python's numbers in traces too; where that cannot be, the trace is refused."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import numbers
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from ts_models import exported

import onnx_ts_legacy
from onnx_ts_legacy.capture.number_classes import functions_of_numbers
from onnx_ts_legacy.errors import CaptureError, InvalidArgumentError

X = torch.arange(8.0).reshape(4, 2) + 1


def size_given(x: Tensor) -> Tensor:
    n = torch.as_tensor(x.shape[0])
    return x * 2 if isinstance(n, Tensor) and n.dim() == 0 else x


RIGHT: dict[str, Callable[[Tensor], Tensor]] = {
    "int": lambda x: x * 2 if isinstance(x.shape[0], int) else x,
    "no tensor": lambda x: x if isinstance(x.size(0), Tensor) else x * 2,
    "is_tensor": lambda x: x if torch.is_tensor(x.shape[0]) else x * 2,
    "abstract class": lambda x: x * 2 if isinstance(x.shape[0], numbers.Integral) else x,
    "arithmetic": lambda x: x * 2 if isinstance(3 * x.shape[0] + x.shape[1], int) else x,
    "quotient": lambda x: x * 2 if isinstance(x.shape[0] / 2, float) else x,
    "comparison": lambda x: x * 2 if isinstance(x.shape[0] > 0, bool) else x,
    "reciprocal": lambda x: x * 2 if isinstance(1 / x.shape[0], float) else x,
    "rounded": lambda x: x * 2 if isinstance(round(x.shape[0] / 3), int) else x,
    "root": lambda x: x * 2 if isinstance(math.sqrt(x.shape[0]), float) else x,
    "number of elements": lambda x: x * 2 if isinstance(x.numel(), int) else x,
    "shape": lambda x: x * 2 if all(isinstance(n, int) for n in x.shape) else x,
    "numpy": lambda x: x * 2 if np.isscalar(x.shape[0]) else x,
    "tensor of a size": lambda x: x * 2 if isinstance(torch.tensor(x.shape[0]), Tensor) else x,
    "size as a tensor": size_given,
    "tensor that follows from a size": lambda x: x * 2 if isinstance(torch.ones(()) * x.shape[0], Tensor) else x,
    "element": lambda x: x * 2 if isinstance(x[0, 0], Tensor) else x,
}


@pytest.mark.parametrize("case", RIGHT)
@pytest.mark.filterwarnings("ignore")
def test_a_size_is_a_number_and_a_tensor_is_none(case: str) -> None:
    exported(RIGHT[case], (X,), (torch.randn(5, 2),), (torch.randn(1, 2),), dynamic_axes={"x": {0: "n"}})


def test_numbers_that_the_data_computes_are_kept_in_tensors_made_of_them() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        truths = torch.tensor([[x[0, 0] > 1], [True]])
        return torch.tensor([x.sum().double(), 2]), x.new_tensor([x.max(), x.shape[0]]), truths

    exported(function, (X,), (torch.randn(5, 2),), dynamic_axes={"x": {0: "n"}})


def with_numbers(x: Tensor, t: Tensor) -> tuple[Tensor, ...]:
    n = x.shape[0]
    whole = (t * n, n * t, t + n // 2, t - 2 * n, t.add(n), torch.where(t > 0, n, t), t * round(n / 3), t.clamp(min=n))
    real = (t * (n / 2), t / n, t * (1 / n), n / 2 - t, t * math.sqrt(n), t.clip(-1, n - 0.5), t + x.numel(), t**n)
    others = (torch.fmod(t, n / 3), t.new_full((2,), n / 3), torch.full((2,), n / 7), t > n / 3)
    return (*whole, *real, *others, t * max(n / 3, 0.5), t + math.log(n), torch.arange(n / 2), torch.tensor([n / 3]))


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.float16, torch.float32, torch.bool], ids=str)
def test_sizes_leave_tensors_their_dtype(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    one = torch.ones(shape, dtype=dtype)
    if dtype == torch.bool:
        exported(lambda x, t: (t * x.shape[0], t + x.shape[0] / 2), (X, one))
        return
    exported(with_numbers, (X, one), (torch.randn(3, 2), one), dynamic_axes={"x": {0: "n"}}, opset=18)


def test_numbers_have_the_precision_of_doubles() -> None:
    def function(x: Tensor, t: Tensor) -> tuple[Tensor, ...]:
        n = x.shape[0]
        return t / 3 * (n / 7), t + math.sqrt(n), t - math.log(n) / 3, t * max(n / 3, 0.1), t.new_full((2,), 1 / n)

    x, t = torch.randn(6, 2), torch.rand(3, dtype=torch.float64)
    program = onnx_ts_legacy.export(function, (x, t), dynamic_shapes=({0: "n"}, None), opset_version=18)
    for rows in (3, 10):
        given = torch.randn(rows, 2), t
        torch.testing.assert_close(program(*given), list(function(*given)), rtol=1e-14, atol=0)


def test_comparisons_with_truth_values_are_recorded() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x >= True, x == False, y != True, torch.gt(x, False), y.le(True)  # noqa: E712

    exported(function, (X, X > 3), (X - 4, X > 5))


@functools.singledispatch
def by_class(n: Any) -> float:
    return 3.0


@by_class.register
def _(n: int) -> float:
    return 2.0


def matched(x: Tensor) -> Tensor:
    match x.shape[0]:
        case int():
            return x * 2
        case _:
            return x


SIX = 6

IDENTITIES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "number": (lambda x: x * 2 if x.shape[0] is SIX else x, "n != 6"),
    "no number": (lambda x: x * 2 if x.shape[0] + 1 is not SIX else x, "n != 5"),
    "another size": (lambda x: x * 2 if x.shape[0] is x.shape[1] else x, "n != 2"),
    "truth value": (lambda x: x * 2 if (x.shape[0] < 6) is True else x, "n <= 5"),
}


@pytest.mark.parametrize("case", IDENTITIES)
def test_the_identity_of_a_size_is_a_condition(case: str) -> None:
    function, condition = IDENTITIES[case]
    with pytest.warns(UserWarning, match=condition):
        program = onnx_ts_legacy.export(function, (X,), dynamic_axes={"x": {0: "n"}}, input_names=["x"])
    taken = 0
    for rows in range(1, 8):
        x = torch.randn(rows, 2)
        with contextlib.suppress(InvalidArgumentError):
            torch.testing.assert_close(program(x)[0], function(x))
            taken += 1
    assert 5 <= taken < 7


def test_identities_of_other_objects_are_left_alone() -> None:
    def function(x: Tensor, y: Tensor, scale: Any = X) -> Tensor:
        return x + y if scale is X and x is not y else x

    exported(function, (X, X + 1), (torch.randn(5, 2), torch.randn(5, 2)), dynamic_axes={"x": {0: "n"}, "y": {0: "n"}})
    assert not any(callable(constant) for constant in function.__code__.co_consts)


REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "type": lambda x: x * 2 if type(x.shape[0]) is int else x,
    "class": lambda x: x * 2 if x.shape[0].__class__ in (int, float) else x,
    "attribute": lambda x: x if hasattr(x.shape[0], "item") else x * 2,
    "types of a shape": lambda x: x * 2 if int in map(type, x.shape) else x,
    "generic function": lambda x: x * by_class(x.shape[0]),
    "match": matched,
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("axes", [None, {"x": {0: "n"}}], ids=["static", "dynamic"])
def test_what_a_trace_gets_wrong_is_refused_with_the_lines(case: str, axes: Any) -> None:
    function = matched if case == "match" else by_class if case == "generic function" else REFUSED[case]
    line = inspect.unwrap(function).__code__.co_firstlineno + (2 if case == "match" else 0)
    with pytest.raises(CaptureError, match=rf"the model.s values[^$]*{__file__}:{line}"):
        onnx_ts_legacy.export(REFUSED[case], (X,), dynamic_axes=axes, input_names=["x"])


def test_code_that_asks_for_types_and_is_right_is_exported() -> None:
    exported(lambda x: x * 2 if type(x) is Tensor else x, (X,), (torch.randn(5, 2),), dynamic_axes={"x": {0: "n"}})


def test_random_numbers_are_the_same_where_a_trace_is_compared() -> None:
    def noisy(x: Tensor) -> Tensor:
        return x + torch.rand_like(x) if type(x) is Tensor else x

    onnx_ts_legacy.export(noisy, (X,))
    state = torch.get_rng_state()
    onnx_ts_legacy.export(lambda x: x * 2 if type(x) is Tensor else x, (X,))
    assert torch.equal(torch.get_rng_state(), state)


def test_isinstance_is_pythons_again_after_a_trace() -> None:
    before = isinstance
    onnx_ts_legacy.export(lambda x: x * x.shape[0], (X,))
    assert isinstance is before


def test_a_number_stays_one_beside_the_largest_of_it_and_others():
    """As images are brought into a square, whichever side is the longer one."""

    def into_a_square(x):
        height, width = x.shape[-2:]
        ratio = 64 / max(height, width)
        sizes = round(height * ratio), round(width * ratio)
        x = torch.nn.functional.interpolate(x, size=sizes, mode="nearest")
        return torch.nn.functional.pad(x, (0, 64 - sizes[1], 0, 64 - sizes[0]))

    examples = [(torch.randn(1, 2, *sizes),) for sizes in ((48, 36), (20, 40), (64, 64))]
    exported(into_a_square, *examples, dynamic_axes={"x": {2: "height", 3: "width"}}, input_names=["x"])


@pytest.mark.parametrize("name", ["floor", "sqrt", "isqrt"])
def test_functions_by_other_names_stay_replaced_when_another_trace_ends(name):
    usual = getattr(math, name)
    home = ModuleType("home")
    home.other_name = usual
    first, second = functions_of_numbers([home]), functions_of_numbers([home])
    first.__enter__()
    second.__enter__()

    first.__exit__(None, None, None)
    during = home.other_name
    second.__exit__(None, None, None)

    assert during is not usual
    assert home.other_name is usual
