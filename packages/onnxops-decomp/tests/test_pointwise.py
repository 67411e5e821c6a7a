"""Arithmetic and elementary functions equal eager PyTorch."""

import pytest
import torch
from decomp_harness import check


@pytest.mark.parametrize("opset", [7, 13, 18, 26])
def test_add_scales_the_second_operand(opset: int) -> None:
    check(lambda a, b: torch.add(a, b, alpha=3), torch.randn(2, 3), torch.randn(3), opset=opset)


def test_add_of_mixed_dtypes_promotes() -> None:
    check(lambda a, b: a + b, torch.arange(3, dtype=torch.int32), torch.tensor(2.5, dtype=torch.float64))


def test_add_runs_at_other_sizes() -> None:
    check(
        lambda a, b: a + b,
        torch.randn(2, 3),
        torch.randn(2, 3),
        others=[(torch.randn(5, 7), torch.randn(5, 7))],
    )


def test_linear_of_rank_three() -> None:
    check(torch.nn.functional.linear, torch.randn(2, 3, 4), torch.randn(5, 4), torch.randn(5))
