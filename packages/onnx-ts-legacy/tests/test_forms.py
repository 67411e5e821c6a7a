"""Dtypes and sizes that are found without running an operator, against the operator itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onnx_ts_legacy.shapes.simple_calls import known_form, known_view

aten = torch.ops.aten
X, W = torch.randn(3, 4, 5), torch.randn(7, 5)
N = torch.arange(6).reshape(2, 3)

CALLS: list[tuple[Any, list[Any], dict[str, Any]]] = [
    (aten.add.Tensor, [X, N[0, 0]], {}),
    (aten.mul.Scalar, [N, 2.0], {}),
    (aten.div.Tensor, [N, 2], {}),
    (aten.floor_divide.default, [N, torch.tensor([2, 3, 4])], {}),
    (aten.floor_divide.Scalar, [X, 2], {}),
    (aten.linear.default, [X, W, None], {}),
    (aten.softmax.int, [X, -1], {}),
    (aten.layer_norm.default, [X, [5]], {}),
    (aten.batch_norm.default, [X, None, None, torch.zeros(4), torch.ones(4), False, 0.1, 1e-5, False], {}),
    (aten.zeros_like.default, [N], {"dtype": torch.float64}),
    (aten.ones_like.default, [N], {}),
    (aten.sum.default, [N > 2], {}),
    (aten.sum.default, [N], {"dtype": torch.float32}),
    (aten.select_scatter.default, [X, X[:, 0], 1, 2], {}),
    (aten.slice_scatter.default, [X, X[:, 1:3], 1, 1, 3], {}),
    (aten.index_put.default, [X, [torch.tensor([0, 1])], torch.tensor(1.0)], {}),
]
VIEWS: list[tuple[Any, list[Any]]] = [
    (aten.select.int, [X, 1, -1]),
    (aten.slice.Tensor, [X]),
    (aten.slice.Tensor, [X, 1, 0, 2**63 - 1, 1]),
    (aten.slice.Tensor, [X.transpose(0, 2), -1, 1, -1, 2]),
    (aten.slice.Tensor, [X, 0, 2, 1]),
]


@pytest.mark.parametrize(("function", "args", "kwargs"), CALLS, ids=lambda part: getattr(part, "name", lambda: "")())
def test_a_known_form_is_that_of_the_result(function: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    expected = function(*args, **kwargs)

    form = known_form(function, args, kwargs, torch.Tensor.is_contiguous)

    assert form == (expected.dtype, tuple(expected.shape))
    assert expected.is_contiguous()


@pytest.mark.parametrize(("function", "args"), VIEWS, ids=lambda part: getattr(part, "name", lambda: "")())
def test_a_known_view_is_that_of_the_result(function: Any, args: list[Any]) -> None:
    expected = function(*args)

    assert known_view(function, args, {}) == (tuple(expected.shape), expected.stride())


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (aten.linear.default, [X, torch.randn(7, 4)]),
        (aten.softmax.int, [N, 0]),
        (aten.mul.Tensor, [X, torch.randn(3)]),
        (aten.mul.Tensor, [X.transpose(0, 1), 2.0]),
    ],
)
def test_calls_that_are_not_simple_are_left_to_torch(function: Any, args: list[Any]) -> None:
    assert known_form(function, args, {}, torch.Tensor.is_contiguous) is None
    assert known_view(aten.select.int, [X, 0, 3], {}) is None
