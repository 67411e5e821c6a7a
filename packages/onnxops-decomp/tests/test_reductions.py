"""Sums, means, extrema, spreads and norms equal eager PyTorch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from decomp_harness import check

NAN, INF = float("nan"), float("inf")
Function = Callable[..., torch.Tensor]
OPSETS = [7, 11, 13, 18, 20, 26]

torch.manual_seed(0)
X = torch.randn(2, 3, 4)
OTHER = [(torch.randn(5, 2, 3),)]

REDUCTIONS: dict[str, Callable[[torch.Tensor], object]] = {
    "sum": lambda x: (x.sum(), x.sum(1), x.sum((0, -1), keepdim=True)),
    "mean": lambda x: (x.mean(), x.mean(-1), x.mean((0, 1), keepdim=True)),
    "prod": lambda x: (x.prod(), x.prod(1), x.prod(-1, keepdim=True)),
    "amax": lambda x: (x.amax(), x.amax(-1), x.amax((0, 2), keepdim=True), x.max()),
    "amin": lambda x: (x.amin(), x.amin(-1), x.amin((0, 2), keepdim=True), x.min()),
    "max": lambda x: (*x.max(1), *x.max(-1, keepdim=True)),
    "min": lambda x: (*x.min(1), *x.min(-1, keepdim=True)),
    "aminmax": lambda x: (*x.aminmax(), *x.aminmax(dim=1), *x.aminmax(keepdim=True)),
    "argmax": lambda x: (x.argmax(), x.argmax(1), x.argmax(-1, keepdim=True), x.argmax(keepdim=True)),
    "argmin": lambda x: (x.argmin(), x.argmin(1), x.argmin(-1, keepdim=True)),
    "any": lambda x: ((x > 1).any(), (x > 1).any(1), (x > 1).any(-1, keepdim=True), (x > 1).any((0, 1))),
    "all": lambda x: ((x < 1).all(), (x < 1).all(1), (x < 1).all(-1, keepdim=True), (x < 1).all((0, 1))),
    "var": lambda x: (x.var(), x.var(1), x.var((0, 2), correction=0), x.var(-1, correction=2, keepdim=True)),
    "std": lambda x: (x.std(), x.std(1), x.std((0, 2), correction=0), x.std(-1, unbiased=False)),
    "var_mean": lambda x: (*torch.var_mean(x), *torch.var_mean(x, 1), *torch.std_mean(x, (0, 2), keepdim=True)),
    "norm": lambda x: (x.norm(), x.norm(1, dim=1), x.norm(3, dim=-1), x.norm(INF, dim=0), x.norm(0.5, dim=(0, 1))),
    "vector_norm": lambda x: (
        torch.linalg.vector_norm(x),
        torch.linalg.vector_norm(x, 0, dim=1),
        torch.linalg.vector_norm(x, -INF, dim=-1, keepdim=True),
        torch.linalg.vector_norm(x, dtype=torch.float64),
    ),
    "logsumexp": lambda x: (x.logsumexp(1), x.logsumexp((0, -1), keepdim=True)),
    "count_nonzero": lambda x: ((x > 0).count_nonzero(), (x > 0).count_nonzero(1), x.count_nonzero((0, 2))),
    "nansum": lambda x: (torch.where(x > 0, x, NAN).nansum(), torch.where(x > 0, x, NAN).nansum(1)),
    "nanmean": lambda x: (torch.where(x > 0, x, NAN).nanmean(), torch.where(x > 0, x, NAN).nanmean(0)),
}


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
@pytest.mark.parametrize("opset", OPSETS)
def test_reduction_over_any_dimensions(name: str, opset: int) -> None:
    opset = max(opset, 9) if name.startswith("nan") else opset
    check(lambda x: REDUCTIONS[name](x), X, opset=opset)


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
@pytest.mark.parametrize("opset", [13, 20])
def test_reduction_at_other_sizes(name: str, opset: int) -> None:
    check(lambda x: REDUCTIONS[name](x), X, opset=opset, others=OTHER)


def test_number_without_dimensions() -> None:
    check(
        lambda x: (x.sum(), x.sum(0), x.mean(-1, keepdim=True), x.amax(), *x.max(0), x.argmin(), x.norm(), x.prod(0)),
        torch.tensor(2.5),
    )
    check(lambda x: (x.var(correction=0), x.logsumexp(0), x.any(), x.all(0), x.count_nonzero()), torch.tensor(2.5))


def test_integers_and_bools_sum_to_int64() -> None:
    check(lambda x: (x.sum(), x.sum(0), x.prod(1)), torch.arange(6, dtype=torch.int32).reshape(2, 3) + 1)
    check(lambda x: (x.sum(), x.sum(0), x.any(0), x.all(1)), torch.tensor([[True, False], [True, True]]))
    check(lambda x: (x.amax(0), x.amin(), x.argmax(0)), torch.tensor([[1, 5], [3, -2]], dtype=torch.int8))
    check(lambda x: (x.amax(0), x.any(0), x.all(0)), torch.tensor([[0, 5], [3, 2]], dtype=torch.uint8))


def test_extrema_of_bools() -> None:
    check(lambda x: (x.amax(0), x.amin(1), x.max(), *x.min(0)), torch.tensor([[True, False], [True, True]]))


def test_dtype_asked_for() -> None:
    check(
        lambda x: (x.sum(dtype=torch.float64), x.mean(0, dtype=torch.float32), x.prod(0, dtype=torch.int64)),
        torch.arange(6, dtype=torch.int32).reshape(2, 3),
    )
    check(lambda x: x.logsumexp(0), torch.arange(3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_float_dtypes(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    check(lambda x: (x.sum(1), x.mean(), x.amax(0), x.var(1), x.norm(dim=0), x.logsumexp(1), x.argmax(0)), x)


@pytest.mark.parametrize("opset", [13, 20])
def test_reduction_of_nothing(opset: int) -> None:
    empty = torch.ones(2, 0)
    check(
        lambda x: (x.sum(1), x.sum(), x.mean(1), x.prod(1), x.logsumexp(1), x.norm(dim=1), x.var(1), x.count_nonzero()),
        empty,
        opset=opset,
    )
    check(lambda x: ((x > 0).any(1), (x > 0).all(1), (x > 0).any(), (x > 0).all()), empty, opset=opset)
    check(lambda x: (x.amax(0), x.sum(0), x.argmax(0)), empty, opset=opset)


def test_variance_of_one_element_is_nan() -> None:
    check(lambda x: (x.var(1), x.var(1, correction=0), x.std(1)), torch.ones(2, 1))
    check(lambda x: x.var(1), torch.randn(2, 3), others=[(torch.ones(3, 5),)])


def test_infinities_and_nan_sum_as_in_torch() -> None:
    x = torch.tensor([[INF, 1.0], [-INF, INF], [-INF, -INF], [NAN, 1.0]])
    check(lambda x: (x.sum(1), x.mean(1), x.logsumexp(1), x.nansum(1), x.any(1), x.count_nonzero(1)), x)


def test_of_equal_elements_the_first_is_found() -> None:
    check(lambda x: (x.argmax(1), x.argmin(1), x.max(1).indices), torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]))


@pytest.mark.parametrize("opset", [9, 13, 18, 20])
def test_nan_is_largest_and_smallest(opset: int) -> None:
    x = torch.tensor([[1.0, NAN, INF, NAN], [-INF, 2.0, NAN, 0.0], [3.0, 1.0, 2.0, 0.0]])
    check(lambda x: (x.amax(1), x.amin(0), x.max(), *x.max(1), *x.min(0), *x.aminmax(dim=1)), x, opset=opset)
    check(lambda x: (x.argmax(1), x.argmin(1, keepdim=True), x.argmax(), x.norm(INF, dim=1)), x, opset=opset)


@pytest.mark.parametrize("opset", [9, 13, 18, 20])
def test_reducing_empty_tensors_over_negative_axes(opset: int) -> None:
    check(lambda x: x.sum(-1), torch.randn(0, 4, 5), opset=opset)
    check(lambda x: x.mean((-1, -2)), torch.randn(0, 4, 5), opset=opset)
    check(lambda x, y: torch.cdist(x, y), torch.randn(0, 4, 5), torch.randn(0, 3, 5), opset=opset)


@pytest.mark.parametrize("opset", [9, 13, 18])
@pytest.mark.parametrize(
    "function",
    [
        torch.mean,
        lambda x: x.mean(1),
        lambda x: x.mean((0, 2), keepdim=True),
        lambda x: x.half().mean((0, 1, 2), keepdim=True),
        lambda x: x.var((1, 2), correction=0),
        lambda x: torch.std_mean(x, 0),
        lambda x: torch.nn.functional.mse_loss(x, 2 * x),
        lambda x: x[x > 100].mean(),
    ],
)
def test_the_mean_of_nothing_at_run_time_is_nan(function: Any, opset: int) -> None:
    sizes = ((0, 4, 5), (2, 0, 5), (3, 4, 0), (5, 2, 3))
    check(function, torch.randn(2, 3, 4), others=[(torch.ones(size),) for size in sizes], opset=opset)


def test_the_mean_over_a_static_axis_is_one_node() -> None:
    x = torch.randn(2, 1, 4)
    assert check(lambda x: x.mean(1), x, others=[(torch.randn(3, 1, 7),)]).op_types() == ["ReduceMean"]


def test_the_mean_of_half_precision_numbers_does_not_overflow_on_its_way() -> None:
    check(lambda x: x.mean(), torch.full((4, 3000), 30.0).half(), others=[(torch.full((9, 5000), 30.0).half(),)])


@pytest.mark.parametrize("opset", [7, 11, 13, 18, 26])
def test_logsumexp_passes_nan_on_beside_infinity(opset: int) -> None:
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[nan, inf, 1.0], [inf, -inf, 1.0], [-inf, -inf, -inf], [nan, -inf, 2.0], [inf, inf, 0.0]])
    check(lambda x: (x.logsumexp(1), x.logsumexp((0, 1), keepdim=True)), x, opset=opset)


@pytest.mark.parametrize("opset", [7, 13, 20])
@pytest.mark.parametrize("p", [0.3, 1.7, 3, -2.1])
def test_norms_and_distances_of_doubles_have_their_digits(p: float, opset: int) -> None:
    x, y = torch.randn(4, 5).double(), torch.randn(3, 5).double()
    check(lambda x: torch.linalg.vector_norm(x, p, 1), x, opset=opset, tolerance=(1e-12, 0.0))
    if p > 0:
        check(lambda x, y: torch.cdist(x, y, p), x, y, opset=opset, tolerance=(1e-12, 0.0))
