"""Operators that look into their operands are captured whole, and equal eager PyTorch."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from decomp_harness import check

X = torch.randn(3, 6)
COUNTS, WEIGHTS = torch.tensor([1, 2, 0, 3, 1, 1]), torch.rand(6)


@pytest.mark.parametrize("opset", [9, 18])
@pytest.mark.parametrize("correction", [0, 1, 2])
def test_covariance(correction: int, opset: int) -> None:
    check(lambda x: torch.cov(x, correction=correction), X, opset=opset)
    check(lambda x, f, a: torch.cov(x, correction=correction, fweights=f, aweights=a), X, COUNTS, WEIGHTS, opset=opset)
    check(lambda x, f: x.cov(correction=correction, fweights=f), X, COUNTS, opset=opset)


@pytest.mark.parametrize(
    "x",
    [X[0], X[:1], X[:, :1], torch.randint(9, (3, 4)), torch.randn(2, 5, dtype=torch.complex64), X.double()],
    ids=["vector", "one variable", "one observation", "integers", "complex", "double"],
)
@pytest.mark.filterwarnings("ignore:cov")
def test_covariance_and_correlation_of(x: torch.Tensor) -> None:
    check(lambda x: (torch.cov(x), torch.corrcoef(x)), x)


def test_covariance_at_other_sizes() -> None:
    others = [(torch.randn(*shape),) for shape in ((5, 4), (2, 9), (3, 1), (3, 0))]
    check(lambda x: (torch.cov(x), torch.corrcoef(x)), X, others=others)


@pytest.mark.parametrize("r", [1, 2, 3])
@pytest.mark.parametrize("with_replacement", [False, True])
def test_combinations(with_replacement: bool, r: int) -> None:
    check(lambda x: torch.combinations(x, r, with_replacement), torch.randn(5))
    check(lambda x: torch.combinations(x, r, with_replacement), torch.randn(1))


@pytest.mark.parametrize("start", [2, -3])
def test_narrow_from_a_start_in_a_tensor(start: int) -> None:
    check(lambda x, s: x.narrow(1, s, 2), X, torch.tensor(start), others=[(torch.randn(4, 9), torch.tensor(5))])
    check(lambda x, s: torch.narrow(input=x, dim=-1, start=s, length=2), X, torch.tensor(start))


@pytest.mark.parametrize("opset", [9, 18])
def test_one_hot_with_as_many_classes_as_there_are(opset: int) -> None:
    x = torch.tensor([[0, 2, 1], [4, 1, 0]])
    check(lambda x: F.one_hot(x), x, others=[(torch.tensor([[0, 1]]),)], opset=opset)
    check(lambda x: F.one_hot(x, 5), x, opset=opset)


def test_classes_that_the_data_decides_go_on_through_the_graph() -> None:
    check(lambda x: F.one_hot(x).float().sum(0) * 2, torch.tensor([0, 2, 2]), others=[(torch.tensor([3, 5]),)])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_gaussian_nll_loss(reduction: str) -> None:
    def loss(x: torch.Tensor, t: torch.Tensor, v: Any, **options: Any) -> torch.Tensor:
        return F.gaussian_nll_loss(x, t, v, reduction=reduction, **options)

    t = torch.randn(3, 6)
    check(lambda x, t, v: loss(x, t, v), X, t, torch.rand(3, 6))
    check(lambda x, t, v: loss(x, t, v, full=True, eps=0.5), X, t, torch.rand(3))
    check(lambda x, t: loss(x, t, 2.0), X, t)
    other = (torch.randn(4, 5), torch.randn(4, 5), torch.rand(4, 1))
    check(lambda x, t, v: loss(x, t, v), X, t, torch.rand(3, 1), others=[other])


TALL, FLAT = torch.randn(2, 5, 3), torch.randn(2, 3, 5)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("driver", [None, "gels", "gelsy"])
@pytest.mark.parametrize("a", [TALL, FLAT, TALL[:, :3]], ids=["tall", "flat", "square"])
def test_least_squares(a: torch.Tensor, driver: str | None, opset: int) -> None:
    b = torch.randn(2, a.shape[1], 4)
    check(lambda a, b: tuple(torch.linalg.lstsq(a, b, driver=driver)), a, b, opset=opset, tolerance=(1e-3, 1e-4))
    check(lambda a, b: torch.linalg.lstsq(a[0], b[0], driver=driver).solution, a, b, tolerance=(1e-3, 1e-4))


@pytest.mark.parametrize("driver", ["gelsd", "gelss"])
def test_least_squares_by_singular_values(driver: str) -> None:
    a, b = FLAT, torch.randn(2, 3, 4)
    check(lambda a, b: tuple(torch.linalg.lstsq(a, b, driver=driver)), a, b, tolerance=(1e-3, 1e-4))
    with pytest.raises(NotImplementedError, match="only if the rank is full"):
        check(lambda a, b: tuple(torch.linalg.lstsq(a, b, driver=driver)), TALL, torch.randn(2, 5, 4))


@pytest.mark.parametrize("rows", [5, 2])
def test_residuals_of_any_number_of_rows(rows: int) -> None:
    a, b = torch.randn(rows, 3), torch.randn(rows, 7)
    others = [(torch.randn(more, 3), torch.randn(more, 7)) for more in ((4, 6) if rows == 5 else (3, 1))]
    check(lambda a, b: tuple(torch.linalg.lstsq(a, b, driver="gels")), a, b, others=others, tolerance=(1e-3, 1e-4))


def test_least_squares_of_a_matrix_that_lacks_rank() -> None:
    a = torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]])
    check(lambda a, b: tuple(torch.linalg.lstsq(a, b)), a, torch.randn(3, 2), tolerance=(1e-3, 1e-4))
    check(
        lambda a, b: torch.linalg.lstsq(a, b, rcond=0.5).rank, torch.diag(torch.tensor([1.0, 0.4])), torch.randn(2, 1)
    )


def test_least_squares_at_other_sizes() -> None:
    check(
        lambda a, b: torch.linalg.lstsq(a, b).solution,
        TALL,
        torch.randn(2, 5, 4),
        others=[(torch.randn(3, 7, 2), torch.randn(3, 7, 6))],
        tolerance=(1e-3, 1e-4),
    )


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_cross_entropy_of_a_linear_layer_in_chunks(reduction: str) -> None:
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=2)

    def loss(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.linear_cross_entropy(x, w, t, reduction=reduction, options=options)

    check(lambda x, w, t: loss(x, w, t), torch.randn(8, 3), torch.randn(4, 3), torch.randint(0, 4, (8,)))
