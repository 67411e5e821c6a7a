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
        (torch.linalg.qr, "no form for complex matrices"),
        (torch.linalg.eig, "QR algorithm"),
        (torch.linalg.svd, "up to a phase"),
    ],
)
def test_what_has_no_form_says_so(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        lower(lambda a: tuple(function(a)), (A,))
