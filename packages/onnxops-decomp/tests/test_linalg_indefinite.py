"""LDL factorizations and their solutions equal LAPACK's, as eager PyTorch has them."""

import pytest
import torch
from decomp_harness import check


def symmetric(*shape: int, seed: int = 0, hollow: bool = False, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return a matrix that is not definite; a hollow one has zeros on the diagonal and needs blocks of two columns."""
    a = torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    a = a + a.mT
    return a - torch.diag_embed(a.diagonal(dim1=-2, dim2=-1)) if hollow else a


@pytest.mark.parametrize("hollow", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (9, 9), (3, 6, 6), (2, 3, 4, 4), (70, 70), (0, 0), (0, 3, 3)])
def test_factorization(shape: tuple[int, ...], hollow: bool) -> None:
    check(torch.linalg.ldl_factor_ex, symmetric(*shape, hollow=hollow))


def test_the_matrices_of_a_batch_choose_their_own_blocks() -> None:
    a = torch.stack([symmetric(5, 5, seed=seed, hollow=seed % 2 == 1) for seed in range(8)])
    pivots = torch.linalg.ldl_factor_ex(a).pivots
    assert (pivots < 0).any(1).unique().tolist() == [False, True]
    check(torch.linalg.ldl_factor_ex, a)


@pytest.mark.parametrize("opset", [8, 9, 11, 13, 18, 23, 26])
def test_factorization_at_every_opset(opset: int) -> None:
    check(torch.linalg.ldl_factor, symmetric(2, 5, 5, hollow=True, dtype=torch.float32), opset=opset)


def test_one_triangle_counts() -> None:
    check(torch.linalg.ldl_factor_ex, torch.randn(4, 4, dtype=torch.float64))


def test_a_zero_pivot_is_told() -> None:
    check(torch.linalg.ldl_factor_ex, torch.zeros(3, 3))
    check(torch.linalg.ldl_factor_ex, torch.diag(torch.tensor([1.0, 0.0, 2.0, 0.0])))


def test_factorization_at_other_sizes() -> None:
    check(torch.linalg.ldl_factor, symmetric(2, 4, 4), others=[(symmetric(3, 7, 7, hollow=True),)])


def solved(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.linalg.ldl_solve(*torch.linalg.ldl_factor(a), b)


@pytest.mark.parametrize("hollow", [False, True])
@pytest.mark.parametrize(
    ("shape", "right"), [((6, 6), (6, 2)), ((3, 6, 6), (3, 6, 1)), ((3, 6, 6), (6, 4)), ((8, 8), (2, 8, 3))]
)
def test_solution(shape: tuple[int, ...], right: tuple[int, ...], hollow: bool) -> None:
    check(solved, symmetric(*shape, hollow=hollow), torch.randn(right, dtype=torch.float64))


@pytest.mark.parametrize("opset", [8, 9, 11, 13, 18, 23, 26])
def test_solution_at_every_opset(opset: int) -> None:
    factors = torch.linalg.ldl_factor(symmetric(2, 5, 5, hollow=True))
    b = torch.randn(2, 5, 3, dtype=torch.float64)
    check(lambda ld, pivots, b: torch.linalg.ldl_solve(ld, pivots, b), *factors, b, opset=opset)


def test_solution_at_other_sizes() -> None:
    def example(n: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return symmetric(n, n, hollow=True), torch.randn(n, count, dtype=torch.float64)

    check(solved, *example(6, 2), others=[example(9, 4), example(2, 3)])
