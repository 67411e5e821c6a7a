"""Diagonals and triangles equal eager PyTorch."""

import pytest
import torch
from decomp_harness import check

X = torch.randn(3, 4, 5)
LARGER = [(torch.randn(2, 7, 6),)]


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 14, 18, 23, 26, 28])
@pytest.mark.parametrize("function", [torch.tril, torch.triu])
def test_triangle_at_every_opset(function, opset: int) -> None:
    check(lambda x: function(x, 1), X, opset=opset)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.tril(-2),
        lambda x: x.triu(x.shape[0]),
        lambda x: torch.ones(x.shape[1], x.shape[2]).tril(),
        lambda x: x.diagonal(),
        lambda x: x.diagonal(1, -1, 0),
        lambda x: x.diagonal(-2, 1, 2),
        lambda x: x[0].diagonal(100),
        lambda x: x[0].diagonal(1),
        lambda x: x[0].trace(),
        lambda x: x[0, 0].diag(-1),
        lambda x: x[0].diag(1),
        lambda x: torch.diag_embed(x, 1),
        lambda x: torch.diag_embed(x, -2, 0, 2),
        lambda x: torch.diagflat(x[0], 1),
        lambda x: torch.diagonal_scatter(x, x.diagonal(1, 1, 2) * 2, 1, 1, 2),
        lambda x: torch.diagonal_scatter(x, x.diagonal(-1, 0, 2) * 2, -1, 0, 2),
    ],
)
def test_diagonal_runs_at_other_sizes(function) -> None:
    check(function, X)
    check(function, X, others=LARGER)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float16, torch.int32, torch.uint8, torch.float64])
def test_triangles_and_diagonals_keep_the_dtype(dtype: torch.dtype) -> None:
    check(lambda x: (x.tril(), x.triu(1), x.diagonal(), x[0].diag()), torch.ones(3, 3).to(dtype))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float16])
def test_trace_promotes_integers(dtype: torch.dtype) -> None:
    check(torch.trace, torch.ones(3, 2).to(dtype))


@pytest.mark.parametrize("offset", [-3, 0, 2, 9])
def test_triangle_indices(offset: int) -> None:
    check(
        lambda x: (
            torch.tril_indices(3, 5, offset),
            torch.triu_indices(4, 2, offset, dtype=torch.int32),
            torch.triu_indices(x.shape[0], x.shape[1], offset),
        ),
        torch.randn(3, 4),
    )


def test_triangle_of_an_empty_matrix() -> None:
    check(lambda x: (x.tril(), x.diagonal(), x.trace()), torch.zeros(0, 3))
