"""Operators that address memory by strides equal eager PyTorch, or are refused."""

import pytest
import torch
from decomp_harness import check, lower

from onnxops_decomp.errors import LoweringError

X = torch.randn(4, 6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.as_strided((3, 3), (1, 2)),
        lambda x: x.as_strided((2, 2, 2), (8, 4, 1), 3),
        lambda x: x.as_strided((), (), 5),
        lambda x: x.as_strided((0, 3), (1, 1)),
        lambda x: x.as_strided((5,), (0,), 1),
        lambda x: x.t().as_strided((3, 3), (1, 2)),
        lambda x: torch.as_strided_scatter(x, torch.ones(2, 3), (2, 3), (7, 2), 1),
        lambda x: torch.as_strided_scatter(x.t(), torch.ones(2, 3), (2, 3), (7, 2), 1),
        lambda x: torch.as_strided_copy(x, (2, 2), (3, 1)),
    ],
)
def test_strided_view(function) -> None:
    check(lambda x: function(x) * 2, X)


def test_channels_last_memory_is_read_in_its_order() -> None:
    x = torch.randn(1, 2, 3, 4).to(memory_format=torch.channels_last)
    check(lambda x: x.as_strided((5,), (3,)) + 0, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[1:].as_strided((2,), (1,), 0),
        lambda x: x[:3].as_strided((20,), (1,)),
        lambda x: x[:, ::2].as_strided((2,), (1,)),
    ],
)
def test_memory_around_a_view_is_refused(function) -> None:
    with pytest.raises(LoweringError, match="memory"):
        lower(function, (X,))


def test_offset_counts_from_the_start_of_the_memory() -> None:
    check(lambda x: x[1:].as_strided((2, 2), (6, 1), 7) * 1, X)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.as_strided((x.shape[0], 2), (1, 1)),
        lambda x: x.as_strided((x.shape[0] - 1, x.shape[1], 2), (x.shape[1], 1, x.shape[1])),
        lambda x: x.as_strided((2, 2), (x.shape[1], 1), x.shape[1] - 2),
        lambda x: x.view(x.shape[0] // 2, 2 * x.shape[1]).as_strided((x.shape[0] // 2, 2), (2 * x.shape[1], 1)),
        lambda x: x.t().as_strided((x.shape[0], 2), (x.shape[1], 1)),
        lambda x: torch.as_strided_scatter(x, x[1:], (x.shape[0] - 1, x.shape[1]), (x.shape[1], 1)),
    ],
)
def test_dynamic_strides(function) -> None:
    check(lambda x: function(x) * 2, X, others=[(torch.randn(6, 3),), (torch.randn(2, 11),)])


def test_strides_that_the_data_decides_are_refused() -> None:
    with pytest.raises(LoweringError, match="sizes of the inputs"):
        lower(lambda x: x.as_strided((2, x.nonzero().shape[0]), (1, 1)), (X,), dynamic=True)
