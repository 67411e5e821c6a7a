"""LU, Cholesky and QR equal LAPACK's, as eager PyTorch has them."""

import pytest
import torch
from decomp_harness import check

SHAPES = [(3, 3), (5, 3), (3, 5), (2, 4, 4), (2, 2, 3, 4), (1, 1)]


def example(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def positive(*batch: int, n: int) -> torch.Tensor:
    a = example(*batch, n, n)
    return a @ a.mT + torch.eye(n)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.lu_factor_ex,
        torch.linalg.lu,
        lambda a: torch.lu_unpack(*torch.linalg.lu_factor(a)),
        torch.geqrf,
        torch.linalg.qr,
        lambda a: torch.linalg.qr(a, mode="complete"),
        lambda a: torch.linalg.qr(a, mode="r"),
    ],
)
def test_factorization(function, shape: tuple[int, ...]) -> None:
    check(function, example(*shape))


@pytest.mark.parametrize("opset", [8, 9, 11, 13, 18, 23, 26, 28])
def test_factorizations_at_every_opset(opset: int) -> None:
    check(lambda a: (*torch.linalg.lu_factor(a), *torch.linalg.qr(a)), example(2, 4, 3), opset=opset)


@pytest.mark.parametrize(
    "function", [torch.linalg.lu, torch.linalg.qr, lambda a: torch.linalg.cholesky(a.mT @ a + torch.eye(a.shape[-1]))]
)
def test_factorization_runs_at_other_sizes(function) -> None:
    check(function, example(2, 5, 3), others=[(example(4, 7, 6),)])


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_cholesky_reads_one_triangle(batch: tuple[int, ...], upper: bool) -> None:
    a = positive(*batch, n=4)
    half = a.triu() if upper else a.tril()
    check(lambda a: torch.linalg.cholesky(a, upper=upper), half)
    if hasattr(torch.ops.aten, "cholesky"):  # until torch 2.13
        check(lambda a: torch.cholesky(a, upper), half)


def test_info_counts_the_first_failing_column_from_one() -> None:
    singular = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 7.0], [1.0, 2.0, 5.0]])
    indefinite = torch.diag(torch.tensor([1.0, -1.0, 2.0]))
    check(
        lambda a, b: (torch.linalg.lu_factor_ex(a)[2], torch.linalg.cholesky_ex(b)[1], torch.linalg.inv_ex(a)[1]),
        singular,
        indefinite,
    )


def test_lu_of_a_singular_matrix() -> None:
    check(torch.linalg.lu, torch.tensor([[0.0, 0.0], [0.0, 3.0]]))


def test_qr_of_columns_of_zeros_and_units() -> None:
    check(torch.linalg.qr, torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 3.0], [0.0, 0.0, -4.0], [0.0, 0.0, 0.0]]))


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_ormqr(left: bool, transpose: bool) -> None:
    check(
        lambda a, b: torch.ormqr(*torch.geqrf(a), b if left else b.mT, left=left, transpose=transpose),
        example(5, 3),
        example(5, 2),
    )


def test_householder_product() -> None:
    check(lambda a: torch.linalg.householder_product(*torch.geqrf(a)), example(2, 5, 3))


def test_double_precision_is_kept() -> None:
    check(torch.linalg.qr, example(6, 6, dtype=torch.float64), tolerance=(1e-12, 1e-12))


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.det,
        torch.linalg.slogdet,
        torch.linalg.cholesky,
        torch.linalg.lu_factor,
        torch.linalg.qr,
        torch.linalg.inv,
        torch.linalg.svdvals,
        torch.linalg.eigvalsh,
    ],
)
@pytest.mark.parametrize("shape", [(3, 0, 0), (3, 2, 0, 0)])
def test_batches_of_matrices_without_elements(function, shape: tuple[int, ...]) -> None:
    check(function, torch.zeros(shape), others=[(torch.zeros(n, *shape[1:]),) for n in (5, 1)])
