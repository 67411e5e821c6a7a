"""Padding in every mode equals eager PyTorch."""

import pytest
import torch
from decomp_harness import check
from torch.nn.functional import pad

X = torch.randn(2, 3, 5, 6)
LARGER = [(torch.randn(3, 3, 7, 8),)]


@pytest.mark.parametrize("opset", [7, 10, 11, 13, 18, 19, 23, 26, 28])
@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_pad_at_every_opset(mode: str, opset: int) -> None:
    check(lambda x: pad(x, (1, 2, 0, 3), mode=mode), X, opset=opset)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("amounts", [(2, 1), (1, -1, 2, 1), (-2, -1, -1, 2), (0, 0, 0, 0)])
def test_pad_runs_at_other_sizes(mode: str, amounts: tuple[int, ...]) -> None:
    example = X[0] if len(amounts) == 2 else X
    others = [(x[0],) if len(amounts) == 2 else (x,) for (x,) in LARGER]
    check(lambda x: pad(x, amounts, mode=mode), example, others=others)


def test_pad_by_dynamic_amounts() -> None:
    check(lambda x: pad(x, (x.shape[1], 1, 0, 8 - x.shape[2])), X, others=LARGER)


@pytest.mark.parametrize("value", [2.5, float("-inf"), 0])
def test_pad_with_a_value(value: float) -> None:
    check(lambda x: pad(x, (1, 1), value=value), X)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float16, torch.int32, torch.uint8, torch.float64])
def test_constant_padding_keeps_the_dtype(dtype: torch.dtype) -> None:
    check(lambda x: pad(x, (1, 2), value=1), torch.ones(2, 3).to(dtype))


@pytest.mark.parametrize("opset", [18, 24])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_pad_of_an_empty_batch(mode: str, opset: int) -> None:
    check(lambda x: pad(x, (1, 2), mode=mode), torch.zeros(0, 3, 4), opset=opset)


def test_pad_of_an_empty_tensor() -> None:
    check(lambda x: pad(x, (1, 2, 2, 0), value=3.0), torch.zeros(0, 3))


def test_padding_layers() -> None:
    layers = [torch.nn.ReflectionPad2d(2), torch.nn.ReplicationPad2d((1, 0, 2, 3)), torch.nn.ZeroPad2d(1)]
    check(lambda x: [layer(x) for layer in layers], X, others=LARGER)
