"""Linear systems, inverses and determinants equal eager PyTorch."""

import pytest
import torch
from decomp_harness import check, example

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
