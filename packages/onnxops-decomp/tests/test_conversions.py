"""Conversions between dtypes equal eager PyTorch."""

import pytest
import torch
from decomp_harness import check

DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool]


@pytest.mark.parametrize("source", DTYPES)
def test_conversion_to_every_dtype(source: torch.dtype) -> None:
    x = torch.tensor([[0, 1, 3], [100, 7, 2]]).to(source)
    check(lambda x: [x.to(dtype) for dtype in DTYPES], x, opset=13, others=[(x[:, :2],)])


def test_floats_round_towards_zero() -> None:
    check(lambda x: (x.to(torch.int64), x.int(), x.bool()), torch.tensor([2.7, -2.7, 0.3, -0.0]))
    check(lambda x: x.bool(), torch.tensor([float("nan"), float("inf"), 0.0]))


def test_integers_wrap() -> None:
    check(lambda x: (x.to(torch.int8), x.to(torch.uint8)), torch.tensor([300, -1, 128]))


def test_every_way_to_ask() -> None:
    other = torch.tensor([1], dtype=torch.int32)
    check(
        lambda x, y: (x.to(y), x.type_as(y), x.to("cpu", torch.float64), x.half(), x.to(x.dtype)), torch.randn(3), other
    )


def test_conversion_to_the_same_dtype_leaves_no_node() -> None:
    lowered = check(lambda x: x.to(torch.float32).float().to("cpu") + 1, torch.randn(3))
    assert lowered.op_types() == ["Add"]
