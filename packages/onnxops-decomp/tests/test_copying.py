"""Functional forms of overwriting operators equal eager PyTorch."""

import torch
from decomp_harness import check

aten = torch.ops.aten


def test_copy_broadcasts_and_converts() -> None:
    check(
        lambda x, y: (aten.copy(x, y), aten.copy(x, x), aten.copy(y, y.half())),
        torch.zeros(2, 3, dtype=torch.int32),
        torch.tensor([1.0, 2.0, -3.0]),
        others=[(torch.zeros(4, 6, dtype=torch.int32), torch.arange(6.0))],
    )


def test_fill_keeps_dtype_and_size() -> None:
    check(
        lambda x, v: (aten.fill(x, 2.5), aten.fill(x, v), aten.zero(x), x.clone().fill_(3)),
        torch.randn(2, 3),
        torch.tensor(7),
        others=[(torch.randn(4, 6), torch.tensor(-1))],
    )
