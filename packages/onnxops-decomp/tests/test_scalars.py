"""Numbers read from tensors behave like Python numbers of the model."""

import pytest
import torch
from decomp_harness import check


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64, torch.float16])
def test_item_promotes_like_a_python_number(dtype: torch.dtype) -> None:
    number = torch.tensor([3]).to(dtype)
    check(lambda x, n: x * torch.ops.aten.scalar_tensor(n.item()) + 1, torch.randn(2, 3), number)


def test_a_number_leaves_the_tensor_it_came_from_a_tensor() -> None:
    """An int64 0-d tensor promotes a bool one; as a number it would, too, but an int32 tensor only over a number."""
    check(
        lambda x, n: (torch.full((2,), n.item()), x + n, n + torch.ones(2, dtype=torch.int32)),
        torch.ones(2, dtype=torch.int32),
        torch.tensor(3),
    )


def test_sizes_enter_arithmetic() -> None:
    check(
        lambda x: x * x.shape[0] + x.numel() / x.shape[1],
        torch.randn(2, 3),
        others=[(torch.randn(5, 7),)],
    )
