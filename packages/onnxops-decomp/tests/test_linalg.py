"""Products and functions of matrices equal eager PyTorch."""

import pytest
import torch
from decomp_harness import check


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cross_product(dim: int) -> None:
    check(
        lambda a, b: torch.linalg.cross(a, b, dim=dim),
        torch.randn(3, 3, 3),
        torch.randn(3, 3, 3),
    )


def test_cross_product_broadcasts() -> None:
    check(
        lambda a, b: torch.cross(a, b, dim=-1),
        torch.randn(2, 1, 3),
        torch.randn(1, 4, 3),
        others=[(torch.randn(5, 1, 3), torch.randn(1, 6, 3))],
    )


@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0])
def test_matrix_exponential(scale: float) -> None:
    check(
        torch.linalg.matrix_exp,
        torch.randn(2, 4, 4, dtype=torch.float64) * scale,
        others=[(torch.randn(3, 5, 5, dtype=torch.float64) * 2 * scale,)],
    )


def test_matrix_exponential_of_an_empty_batch() -> None:
    check(torch.linalg.matrix_exp, torch.zeros(0, 3, 3))


@pytest.mark.parametrize("n", [0, 1, 3, 6, -2])
def test_matrix_power(n: int) -> None:
    torch.manual_seed(2)
    check(lambda a: torch.linalg.matrix_power(a, n), torch.randn(2, 3, 3, dtype=torch.float64))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: torch.linalg.vecdot(a, b),
        lambda a, b: torch.tensordot(a, b, dims=([0], [0])),
        lambda a, b: torch.linalg.vander(a),
        lambda a, b: torch.outer(a[0], b[0]),
        lambda a, b: torch.inner(a, b),
    ],
)
def test_product_runs_at_other_sizes(function) -> None:
    check(function, torch.randn(4, 3), torch.randn(4, 3), others=[(torch.randn(5, 6), torch.randn(5, 6))])


def test_products_whose_sizes_torch_fixes() -> None:
    check(lambda a, b: (torch.kron(a, b), torch.linalg.multi_dot((a, b.mT, a))), torch.randn(4, 3), torch.randn(4, 3))
