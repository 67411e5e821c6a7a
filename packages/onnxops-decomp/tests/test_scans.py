"""Running sums, products and extrema equal eager PyTorch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from decomp_harness import check

NAN, INF = float("nan"), float("inf")
OPSETS = [7, 11, 13, 18, 26]

torch.manual_seed(0)
X = torch.randn(3, 5)
OTHERS = [(torch.randn(2, 7),), (torch.randn(4, 2),)]


@pytest.mark.parametrize("opset", OPSETS)
def test_running_sum_and_product(opset: int) -> None:
    check(lambda x: (x.cumsum(0), x.cumsum(-1), x.cumprod(1)), X, opset=opset)


@pytest.mark.parametrize("opset", OPSETS)
def test_running_extrema_and_where_they_are(opset: int) -> None:
    x = torch.tensor([[1.0, 1.0, 3.0, 2.0, 3.0], [5.0, 4.0, 4.0, 4.0, 9.0]])
    check(lambda x: (*x.cummax(1), *x.cummin(-1), *x.cummax(0)), x, opset=max(opset, 9))


@pytest.mark.parametrize("opset", [9, 13, 18])
def test_running_log_of_sum_of_exponentials(opset: int) -> None:
    x = torch.tensor([[-1000.0, -1000.0, 1.0, 1000.0], [-INF, -INF, 0.0, INF]])
    check(lambda x: (x.logcumsumexp(1), x.logcumsumexp(0)), x, opset=opset)


def test_scans_at_other_sizes() -> None:
    check(lambda x: (x.cumsum(0), x.cumprod(1), *x.cummax(1), *x.cummin(0), x.logcumsumexp(1)), X, others=OTHERS)


def test_nan_stays_in_running_extrema() -> None:
    check(lambda x: (*x.cummax(0), *x.cummin(0)), torch.tensor([-INF, 1.0, NAN, 7.0, INF, NAN, 0.0]))


def test_scans_of_integers_bools_and_other_floats() -> None:
    x = torch.tensor([[3, 1, 2], [2, 2, 5]])
    check(lambda x: (x.cumsum(0), x.cumprod(1), *x.cummax(1), *x.cummin(1)), x)
    check(lambda x: (x.cumsum(0), *x.cummax(1)), x.to(torch.int32))
    check(lambda x: (x.cumsum(0), *x.cummax(1)), x > 2)
    check(lambda x: (x.cumsum(1), x.cumprod(1), *x.cummax(1)), X.half())
    check(lambda x: x.cumsum(0, dtype=torch.float64), x)


def test_scans_of_a_number_and_of_nothing() -> None:
    check(lambda x: (x.cumsum(0), x.cumprod(-1), *x.cummax(0), x.logcumsumexp(0)), torch.tensor(2.0))
    check(lambda x: (x.cumsum(1), x.cumprod(1), x.logcumsumexp(0)), torch.ones(2, 0))


@pytest.mark.parametrize("opset", [9, 13, 20])
@pytest.mark.parametrize("function", [torch.cummax, torch.cummin, torch.logcumsumexp])
def test_walking_along_nothing(function: Any, opset: int) -> None:
    empty = [(torch.ones(sizes),) for sizes in ((0, 4, 5), (2, 0, 5), (3, 4, 0), (0, 0, 2))]
    check(lambda x: (function(x, 0), function(x, 1)), torch.randn(2, 3, 4), others=empty, opset=opset)


@pytest.mark.parametrize("opset", [8, 9, 11, 18, 26])
@pytest.mark.parametrize("function", [torch.cumsum, torch.cumprod, torch.cummax, torch.logcumsumexp])
def test_dimensions_that_turn_out_to_be_empty(function: Callable[..., Any], opset: int) -> None:
    others = [(torch.randn(shape),) for shape in ((0, 3, 4), (2, 0, 4), (5, 1, 7))]
    check(lambda x: (function(x, 0), function(x, 1)), torch.randn(2, 3, 4), others=others, opset=opset)
