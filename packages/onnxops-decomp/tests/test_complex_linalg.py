"""Linear algebra of complex matrices equals eager PyTorch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from decomp_harness import check, lower

from onnxops_decomp import LoweringError

torch.manual_seed(0)
A = torch.randn(2, 3, 3, dtype=torch.complex64) + 2 * torch.eye(3)
B = torch.randn(2, 3, 4, dtype=torch.complex64)
WIDE = torch.randn(3, 5, dtype=torch.complex64)
HERMITIAN = A @ A.mH + torch.eye(3)

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "inv": lambda a, b: torch.linalg.inv(a),
    "solve": torch.linalg.solve,
    "solve a vector": lambda a, b: torch.linalg.solve(a, b[..., 0]),
    "solve from the right": lambda a, b: torch.linalg.solve(a, b.mT, left=False),
    "det": lambda a, b: torch.linalg.det(a),
    "slogdet": lambda a, b: tuple(torch.linalg.slogdet(a)),
    "lu": lambda a, b: tuple(torch.linalg.lu(a)),
    "lu_factor": lambda a, b: tuple(torch.linalg.lu_factor(a)),
    "lu_solve": lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b),
    "lu_solve adjoint": lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b, adjoint=True),
    "matrix_exp": lambda a, b: torch.linalg.matrix_exp(a),
    "matrix_power": lambda a, b: torch.linalg.matrix_power(a, -3),
    "pinv": lambda a, b: torch.linalg.pinv(b),
    "svdvals": lambda a, b: torch.linalg.svdvals(b),
    "triangular": lambda a, b: torch.linalg.solve_triangular(a, b, upper=True),
    "unitriangular": lambda a, b: torch.linalg.solve_triangular(a, b, upper=False, unitriangular=True),
    "triangular from the right": lambda a, b: torch.linalg.solve_triangular(a, b.mT, upper=True, left=False),
}


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_of_a_complex_matrix(name: str, opset: int) -> None:
    function = FUNCTIONS[name]
    check(lambda a, b: function(a, b), A, B, opset=opset, tolerance=(1e-4, 1e-4))


@pytest.mark.parametrize("name", ["inv", "solve", "det", "lu", "pinv", "svdvals"])
def test_function_of_a_complex_matrix_at_other_sizes(name: str) -> None:
    function = FUNCTIONS[name]
    a, b = torch.randn(5, 4, 4, dtype=torch.complex64), torch.randn(5, 4, 2, dtype=torch.complex64)
    check(lambda a, b: function(a, b), A, B, others=[(a, b)], tolerance=(1e-3, 1e-4))


@pytest.mark.parametrize("upper", [False, True])
def test_hermitian_matrices(upper: bool) -> None:
    check(lambda h: torch.linalg.cholesky(h, upper=upper), HERMITIAN, tolerance=(1e-4, 1e-4))
    factor = torch.linalg.cholesky(HERMITIAN, upper=upper)
    check(lambda f, b: torch.cholesky_solve(b, f, upper=upper), factor, B, tolerance=(1e-3, 1e-4))
    check(lambda f: torch.cholesky_inverse(f, upper=upper), factor[0], tolerance=(1e-3, 1e-4))
    check(lambda h: torch.linalg.eigvalsh(h, UPLO="U" if upper else "L"), HERMITIAN, tolerance=(1e-4, 1e-4))
    check(lambda h: torch.linalg.pinv(h, hermitian=True), HERMITIAN, tolerance=(1e-3, 1e-4))


def test_rectangular_and_singular_matrices() -> None:
    check(lambda a: tuple(torch.linalg.lu(a)), WIDE, tolerance=(1e-4, 1e-4))
    check(lambda a: tuple(torch.linalg.lu(a)), WIDE.mT, tolerance=(1e-4, 1e-4))
    check(lambda a: torch.linalg.pinv(a), WIDE, tolerance=(1e-3, 1e-4))
    singular = torch.zeros(2, 2, dtype=torch.complex64)
    check(lambda a: (torch.linalg.det(a), *torch.linalg.slogdet(a), torch.linalg.pinv(a)), singular)
    check(lambda a: torch.linalg.inv_ex(a)[1], singular)


def test_double_precision() -> None:
    check(lambda a: (torch.linalg.inv(a), torch.linalg.det(a)), A.to(torch.complex128), tolerance=(1e-9, 1e-12))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (torch.linalg.ldl_factor, "lu_factor"),
        (torch.linalg.eig, "QR algorithm"),
    ],
)
def test_what_has_no_form_says_so(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        lower(lambda a: tuple(function(a)), (A,))


def rebuilt_from_svd(a: torch.Tensor, full: bool = False) -> tuple[torch.Tensor, ...]:
    u, s, vh = torch.linalg.svd(a, full_matrices=full)
    k = s.shape[-1]
    return s, (u[..., :k] * s.unsqueeze(-2).to(u.dtype)) @ vh[..., :k, :], u.mH @ u, vh @ vh.mH


def rebuilt_from_eigen(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    values, vectors = torch.linalg.eigh(a @ a.mH)
    return values, (vectors * values.unsqueeze(-2).to(vectors.dtype)) @ vectors.mH, vectors.mH @ vectors


def reflected(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    packed, tau = torch.geqrf(a)
    b = a.flip(-1)
    sides = [torch.ormqr(packed, tau, b if left else b.mH, left, t) for left in (True, False) for t in (True, False)]
    return packed, tau, torch.linalg.householder_product(packed[..., : tau.shape[-1]], tau), *sides


FACTORIZATIONS: dict[str, Callable[..., Any]] = {
    "qr": torch.linalg.qr,
    "complete qr": lambda a: torch.linalg.qr(a, mode="complete"),
    "r of qr": lambda a: torch.linalg.qr(a, mode="r")[1],
    "geqrf and ormqr": reflected,
    "svd": lambda a: rebuilt_from_svd(a),
    "full svd": lambda a: rebuilt_from_svd(a, True),
    "eigh": rebuilt_from_eigen,
    "nuclear norm": lambda a: torch.linalg.matrix_norm(a, "nuc"),
    "spectral norm": lambda a: (torch.linalg.matrix_norm(a, 2), torch.linalg.matrix_norm(a, -2)),
    "cond": torch.linalg.cond,
    "matrix_rank": lambda a: (torch.linalg.matrix_rank(a), torch.linalg.matrix_rank(a @ a.mH, hermitian=True)),
    "pinv": lambda a: (torch.linalg.pinv(a), torch.linalg.pinv(a, rtol=0.4)),
    "lstsq": lambda a: torch.linalg.lstsq(a, a.flip(-1) + 1j).solution,
}
SHAPES = [(4, 4), (5, 3), (2, 3, 5), (2, 1, 4, 3), (1, 1)]


def complex_example(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.complex128, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FACTORIZATIONS)
def test_factorization_and_what_follows_from_it(name: str, shape: tuple[int, ...]) -> None:
    check(FACTORIZATIONS[name], complex_example(*shape), tolerance=(1e-9, 1e-9))


@pytest.mark.parametrize("opset", [8, 9, 11, 13, 18, 23, 26, 28])
def test_factorizations_at_every_opset(opset: int) -> None:
    a = complex_example(4, 3).to(torch.complex64)
    check(lambda a: (*torch.linalg.qr(a), *rebuilt_from_svd(a)), a, opset=opset, tolerance=(1e-4, 1e-5))


# torch has no fake kernel of geqrf, and its own of a spectral norm fixes the size of the batch.
@pytest.mark.parametrize("name", sorted({*FACTORIZATIONS} - {"geqrf and ormqr", "spectral norm"}))
def test_factorization_at_other_sizes(name: str) -> None:
    others = [(complex_example(*shape),) for shape in ((4, 7, 6), (3, 6, 5))]
    check(FACTORIZATIONS[name], complex_example(2, 5, 3), others=others, tolerance=(1e-9, 1e-9))


@pytest.mark.parametrize(
    "matrix",
    [
        torch.eye(4),
        torch.zeros(3, 3),
        torch.diag(torch.tensor([3j, -3.0, 2.0])),
        torch.tensor([[0, 1j], [-1j, 0]]),
        torch.tensor([[1j, 2j, 3j], [0, 0, 0], [0, 0, 5]]),
        torch.ones(4, 3) * (1 + 1j),
        torch.linalg.qr(complex_example(5, 5))[0],
    ],
)
def test_vectors_of_values_that_repeat(matrix: torch.Tensor) -> None:
    matrix = matrix.to(torch.complex128)
    check(lambda a: (*rebuilt_from_svd(a), *rebuilt_from_eigen(a)), matrix, tolerance=(1e-9, 1e-9))
    check(lambda a: (torch.matmul(*torch.linalg.qr(a)), torch.linalg.qr(a)[1].tril(-1)), matrix, tolerance=(1e-9, 1e-9))


def test_least_squares_of_vectors_and_of_several_right_sides() -> None:
    a, b = complex_example(2, 5, 3), complex_example(2, 5, 2)
    check(lambda a, b: torch.linalg.lstsq(a, b).solution, a, b, tolerance=(1e-9, 1e-9))
    check(lambda a, b: torch.linalg.lstsq(a, b[..., 0]).solution, a, b, tolerance=(1e-9, 1e-9))
    check(lambda a, b: torch.linalg.lstsq(a, b, driver="gels")[1], a, b, tolerance=(1e-9, 1e-9))


@pytest.mark.parametrize("uplo", ["L", "U"])
def test_only_one_triangle_and_the_real_diagonal_of_a_hermitian_matrix_count(uplo: str) -> None:
    a = complex_example(3, 4, 4) + 8 * torch.eye(4)
    check(lambda a: torch.linalg.eigvalsh(a, UPLO=uplo), a, tolerance=(1e-9, 1e-9))
    check(lambda a: torch.linalg.cholesky(a, upper=uplo == "U"), a, tolerance=(1e-9, 1e-9))
    check(lambda a: torch.linalg.pinv(a, hermitian=True), a, tolerance=(1e-9, 1e-9))


def test_stacks_broadcast_against_each_other() -> None:
    a, b = complex_example(2, 1, 3, 3), complex_example(4, 3, 2)
    check(lambda a, b: torch.linalg.solve(a, b), a, b, tolerance=(1e-9, 1e-9))
    check(lambda a, b: torch.linalg.solve_triangular(a, b, upper=True), a, b, tolerance=(1e-9, 1e-9))
