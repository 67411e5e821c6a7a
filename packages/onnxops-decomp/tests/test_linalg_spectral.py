"""Eigenvalues and singular values equal eager PyTorch; vectors do up to what is not unique about them."""

import pytest
import torch
from decomp_harness import check, example, lower

from onnxops_decomp.errors import LoweringError


def rebuilt_from_eigen(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    values, vectors = torch.linalg.eigh(a)
    return values, vectors @ torch.diag_embed(values) @ vectors.mT, vectors.mT @ vectors, vectors.abs()


def rebuilt_from_svd(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    u, s, vh = torch.linalg.svd(a, full_matrices=False)
    return s, u @ torch.diag_embed(s) @ vh, u.mT @ u, vh @ vh.mT


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 12])
def test_symmetric_eigenvalues(n: int) -> None:
    a = example(2, n, n)
    check(rebuilt_from_eigen, a + a.mT)


@pytest.mark.parametrize("uplo", ["L", "U"])
def test_one_triangle_counts(uplo: str) -> None:
    check(lambda a: torch.linalg.eigvalsh(a, UPLO=uplo), example(4, 4))


def test_eigenvalues_run_at_other_sizes() -> None:
    check(torch.linalg.eigvalsh, example(2, 4, 4), others=[(example(3, 7, 7),)])


@pytest.mark.parametrize(
    "matrix",
    [
        torch.zeros(3, 3),
        torch.eye(4),
        torch.ones(5, 5),
        torch.diag(torch.tensor([3.0, -1.0, 3.0])),
        1e-20 * torch.eye(2),
    ],
)
def test_repeated_eigenvalues(matrix: torch.Tensor) -> None:
    check(torch.linalg.eigvalsh, matrix.double())


@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5), (2, 4, 6), (1, 1), (7, 1), (1, 7)])
def test_singular_values(shape: tuple[int, ...]) -> None:
    check(lambda a: (*rebuilt_from_svd(a), torch.linalg.svdvals(a)), example(*shape))


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)])
def test_full_matrices_are_orthogonal(shape: tuple[int, ...]) -> None:
    def gram(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        u, s, vh = torch.linalg.svd(a)
        return u.mT @ u, vh @ vh.mT, s, (u.mT @ a @ vh.mT).abs()

    check(gram, example(*shape))


def test_singular_values_run_at_other_sizes() -> None:
    check(rebuilt_from_svd, example(2, 5, 3), others=[(example(3, 7, 4),)])


def test_singular_vectors_of_a_matrix_of_low_rank() -> None:
    check(rebuilt_from_svd, example(5, 2) @ example(2, 4))


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.pinv,
        lambda a: torch.linalg.pinv(a, rtol=0.4),
        lambda a: torch.linalg.pinv(a, atol=0.5),
        lambda a: torch.linalg.pinv(a @ a.mT, hermitian=True),
        torch.linalg.matrix_rank,
        lambda a: torch.linalg.matrix_rank(a @ a.mT, hermitian=True),
        torch.linalg.cond,
        lambda a: torch.linalg.matrix_norm(a, 2),
        lambda a: torch.linalg.matrix_norm(a, "nuc"),
    ],
)
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (2, 3, 5)])
def test_what_follows_from_singular_values(function, shape: tuple[int, ...]) -> None:
    check(function, example(*shape))


def test_pseudoinverse_of_a_matrix_of_low_rank() -> None:
    check(lambda a: (torch.linalg.pinv(a), torch.linalg.matrix_rank(a)), example(5, 2) @ example(2, 4))


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (0, 3), (0, 2, 2)])
def test_spectra_of_nothing(shape: tuple[int, ...]) -> None:
    check(lambda a: (torch.linalg.svdvals(a), torch.linalg.pinv(a, rtol=0.1)), torch.zeros(shape), opset=9)
    check(lambda a: torch.linalg.svd(a, full_matrices=False), torch.zeros(shape))


@pytest.mark.parametrize("opset", [8, 9, 11, 13, 18, 23, 26])
def test_spectra_at_every_opset(opset: int) -> None:
    check(lambda a: (torch.linalg.eigvalsh(a), torch.linalg.svdvals(a)), example(3, 3).float(), opset=opset)


@pytest.mark.parametrize("function", [torch.linalg.eig, torch.linalg.eigvals])
def test_general_eigenvalues_are_refused_with_the_way_out(function) -> None:
    with pytest.raises(LoweringError, match=r"torch\.linalg\.eigh"):
        lower(function, (example(3, 3),))


def test_eigenvalues_that_occur_twice_are_as_precise_as_others() -> None:
    z = torch.randn(3, 3, 3, dtype=torch.complex128)
    z = z @ z.mH
    doubled = torch.cat([torch.cat([z.real, -z.imag], -1), torch.cat([z.imag, z.real], -1)], -2)
    check(lambda a: torch.linalg.eigvalsh(a), doubled, tolerance=(1e-12, 1e-12))
    check(lambda a: torch.linalg.svdvals(a), doubled, tolerance=(1e-12, 1e-12))


NEW = pytest.mark.skipif(torch.__version__ < "2.15", reason="torch has it from 2.15 on")


@NEW
@pytest.mark.parametrize("shape", [(2, 2), (3, 3), (2, 4, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_square_root_of_a_hermitian_matrix(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = example(*shape).to(dtype)
    check(torch.linalg.matrix_sqrth, a @ a.mH + a, others=[(example(*(size + 2 for size in shape)).to(dtype),)])


@NEW
@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (2, 4, 2)])
def test_polar_decomposition(shape: tuple[int, ...]) -> None:
    check(torch.linalg.polar, example(*shape), others=[(example(*(size + 1 for size in shape)),)])
