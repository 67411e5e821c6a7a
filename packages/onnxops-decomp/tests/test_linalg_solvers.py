"""Linear systems, inverses and determinants equal eager PyTorch."""

import pytest
import torch
from decomp_harness import check, example, lower, session

A = example(2, 4, 4)
B = example(2, 4, 3)
LARGER = [(example(3, 6, 6), example(3, 6, 5))]

SOLVERS = [
    lambda a, b: torch.linalg.solve(a, b),
    lambda a, b: torch.linalg.solve(a, b[..., 0]),
    lambda a, b: torch.linalg.solve(a, b.mT, left=False),
    lambda a, b: torch.linalg.solve(a[0], b),
    lambda a, b: torch.linalg.inv(a),
    lambda a, b: torch.linalg.det(a),
    lambda a, b: torch.linalg.slogdet(a),
    lambda a, b: torch.logdet(a @ a.mT),
    lambda a, b: torch.linalg.solve_triangular(a, b, upper=True),
    lambda a, b: torch.linalg.solve_triangular(a, b, upper=False, unitriangular=True),
    lambda a, b: torch.linalg.solve_triangular(a, b.mT, upper=False, left=False),
    lambda a, b: torch.linalg.solve_triangular(a[0], b, upper=True),
    lambda a, b: torch.triangular_solve(b, a, upper=False, transpose=True),
    lambda a, b: torch.cholesky_solve(b, a),
    lambda a, b: torch.cholesky_solve(b, a, upper=True),
    lambda a, b: torch.cholesky_inverse(a),
    lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b),
    lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b.mT, left=False),
    lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b, adjoint=True),
    lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b.mT, left=False, adjoint=True),
]


@pytest.mark.parametrize("function", SOLVERS)
def test_solver(function) -> None:
    check(function, A, B)


@pytest.mark.parametrize("function", SOLVERS)
def test_solver_runs_at_other_sizes(function) -> None:
    check(function, A, B, others=LARGER)


@pytest.mark.parametrize("opset", [8, 9, 11, 13, 18, 23, 26, 28])
def test_solvers_at_every_opset(opset: int) -> None:
    check(lambda a, b: (torch.linalg.solve(a, b), torch.linalg.det(a)), A.float(), B.float(), opset=opset)


def test_elimination_needs_row_exchanges() -> None:
    a = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [4.0, -3.0, 8.0]])
    check(lambda a: (torch.linalg.inv(a), torch.linalg.det(a), torch.linalg.slogdet(a)), a)


def test_determinant_of_a_singular_matrix_is_zero() -> None:
    check(lambda a: (torch.linalg.det(a), torch.linalg.slogdet(a)), torch.tensor([[1.0, 2.0], [2.0, 4.0]]))


def test_vector_right_hand_side() -> None:
    check(torch.linalg.solve, A[0], B[0, :, 0])


def test_empty_systems() -> None:
    check(lambda a: (torch.linalg.det(a), torch.linalg.inv(a)), torch.zeros(2, 0, 0))


def test_solution_of_a_large_system_is_accurate() -> None:
    a = example(40, 40)
    check(lambda a, b: torch.linalg.solve(a, b), a, example(40, 2), tolerance=(1e-8, 1e-8))


EMPTY = {
    "det": torch.linalg.det,
    "slogdet": lambda a: tuple(torch.linalg.slogdet(a)),
    "inv_ex": lambda a: tuple(torch.linalg.inv_ex(a)),
    "lu_factor_ex": lambda a: tuple(torch.linalg.lu_factor_ex(a)),
    "cholesky_ex": lambda a: tuple(torch.linalg.cholesky_ex(a @ a.mH)),
    "qr": lambda a: tuple(torch.linalg.qr(a)),
}


@pytest.mark.parametrize("opset", [11, 13, 18, 26])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("name", EMPTY)
def test_matrices_that_turn_out_to_be_empty(name: str, dtype: torch.dtype, opset: int) -> None:
    others = [(torch.randn(shape, dtype=dtype),) for shape in ((3, 0, 0), (0, 4, 4), (0, 0, 0), (5, 3, 3))]
    check(EMPTY[name], torch.randn(2, 4, 4, dtype=dtype), others=others, opset=opset)


def test_indefinite_matrices_that_turn_out_to_be_empty() -> None:
    others = [(torch.zeros(shape),) for shape in ((3, 0, 0), (0, 4, 4))]
    check(lambda a: tuple(torch.linalg.ldl_factor_ex(a)), torch.randn(2, 4, 4), others=others)


def test_every_matrix_has_its_own_info_where_stacks_broadcast() -> None:
    a, b = torch.randn(2, 1, 3, 3), torch.randn(4, 3, 2)
    check(lambda a, b: tuple(torch.linalg.solve_ex(a, b)), a, b)


def almost_singular(seed: int) -> torch.Tensor:
    """Return a matrix of four quarters that are equal but for a twentieth; its condition number is some thousands."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(5, 5, generator=generator).repeat(2, 2)
    return whole * (1 + 0.05 * torch.rand(10, 10, generator=generator))


EXACT = [torch.linalg.inv, torch.linalg.pinv, torch.linalg.matrix_exp, lambda a: torch.linalg.solve(a, a.mT + 1)]


@pytest.mark.parametrize("function", EXACT)
def test_almost_singular_matrices_are_nearer_to_the_truth_than_in_eager(function) -> None:
    """For a fifth of them, an inverse in eager's float32 differs from the truth by more than tolerances allow."""
    model = session(lower(function, [torch.eye(6) + almost_singular(0)[:6, :6]], dynamic=True).proto)
    for seed in range(20):
        matrix = almost_singular(seed)
        truth = function(matrix.double())
        found, eager = ((result.double() - truth).abs().max() for result in (model([matrix])[0], function(matrix)))
        assert found <= eager
