"""Sliding blocks of images equal eager PyTorch."""

import pytest
import torch
from decomp_harness import check
from torch.nn.functional import fold, unfold

X = torch.randn(2, 3, 8, 9)
SETTINGS = [
    {"kernel_size": 3},
    {"kernel_size": (2, 3), "padding": (1, 0), "stride": (2, 1)},
    {"kernel_size": 2, "dilation": (3, 2), "padding": 2},
    {"kernel_size": (8, 9)},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_unfold(settings: dict) -> None:
    check(lambda x: (unfold(x, **settings), unfold(x[0], **settings)), X)


@pytest.mark.parametrize("settings", SETTINGS[:3])
def test_unfold_runs_at_other_sizes(settings: dict) -> None:
    check(lambda x: unfold(x, **settings), X, others=[(torch.randn(3, 4, 11, 10),)])


@pytest.mark.parametrize("settings", SETTINGS)
def test_fold(settings: dict) -> None:
    columns = unfold(X, **settings)
    check(lambda x: (fold(x, (8, 9), **settings), fold(x[0], (8, 9), **settings)), columns)


@pytest.mark.parametrize("opset", [9, 11, 13, 16, 18, 23, 26, 28])
def test_round_trip_at_every_opset(opset: int) -> None:
    check(lambda x: fold(unfold(x, 3, padding=1), (8, 9), 3, padding=1), X, opset=opset)


def test_fold_runs_at_other_sizes() -> None:
    check(
        lambda x: fold(unfold(x, 3, padding=1, stride=2), x.shape[2:], 3, padding=1, stride=2),
        X,
        others=[(torch.randn(1, 3, 12, 7),)],
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_blocks_keep_the_dtype(dtype: torch.dtype) -> None:
    check(lambda x: fold(unfold(x, 2), (8, 9), 2), X.to(dtype))


def test_unfold_costs_five_nodes() -> None:
    lowered = check(lambda x: unfold(x, 3, padding=1), X)
    assert lowered.op_types() == ["Pad", "Gather", "Gather", "Transpose", "Reshape"]
