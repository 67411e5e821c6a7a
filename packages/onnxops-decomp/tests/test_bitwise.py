"""Operations on bits, and common divisors, equal eager PyTorch."""

import pytest
import torch
from decomp_harness import check

OPSETS = [7, 11, 13, 18, 26]


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_logic_of_bits(opset: int, dtype: torch.dtype) -> None:
    a, b = torch.tensor([12, 5, 0, 127], dtype=dtype), torch.tensor([[10], [3]], dtype=dtype)
    check(lambda a, b: (a & b, a | b, a ^ b, ~a, a & 6, a | 1), a, b, opset=opset)


def test_logic_of_bits_of_negative_numbers_and_bools() -> None:
    check(lambda a, b: (a & b, a | b, a ^ b, ~a), torch.tensor([-1, -8, 7]), torch.tensor([6, 3, -2]))
    check(lambda a, b: (a & b, a | b, a ^ b, ~a), torch.tensor([True, False]), torch.tensor([[True], [False]]))
    check(lambda a, b: (a & b, a | b), torch.tensor([True, False]), torch.tensor([3, 4]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
@pytest.mark.parametrize("opset", [11, 13, 18])
def test_shifts(dtype: torch.dtype, opset: int) -> None:
    a = torch.tensor([1, 5, 100, -7 if dtype.is_signed else 7], dtype=dtype)
    check(lambda a, b: (a << b, a >> b, a << 1, a >> 2), a, torch.tensor([0, 1, 2, 3], dtype=dtype), opset=opset)


def test_shifts_by_all_bits() -> None:
    a, b = torch.tensor([5, -5, -1, 1]), torch.tensor([[62], [63], [64]])
    check(lambda a, b: (a << b, a >> b), a, b)


@pytest.mark.parametrize("opset", [10, 13, 18])
def test_common_divisors_and_multiples(opset: int) -> None:
    a, b = torch.tensor([12, -18, 0, 0, 7, 2**40, -1]), torch.tensor([18, 12, 5, 0, -3, 2**35, 64])
    check(lambda a, b: (torch.gcd(a, b), torch.lcm(a, b)), a, b, opset=opset)
    small = a.int()[:5]
    check(lambda a, b: torch.gcd(a, b), small, torch.tensor([[4], [6]], dtype=torch.int32), opset=opset)


def hashes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    # The runtime's numpy and torch compare unsigned numbers as signed ones.
    found = [torch.hash_tensor(x), torch.hash_tensor(x, 1), torch.hash_tensor(x, (0, 2), keepdim=True)]
    return tuple(part.to(torch.int64) for part in found)


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 18, 26])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool])
def test_hash_of_integers(dtype: torch.dtype, opset: int) -> None:
    x = torch.randint(-(2**62), 2**62, (3, 4, 5)).to(dtype)
    check(hashes, x, opset=opset)


@pytest.mark.parametrize("opset", [7, 13, 18, 26])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_hash_of_floats(dtype: torch.dtype, opset: int) -> None:
    x = torch.randn(3, 4, 5).to(dtype)
    x[0, 0] = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan")])
    check(hashes, x, opset=opset)


def test_hash_of_a_number() -> None:
    check(lambda x: torch.hash_tensor(x).to(torch.int64), torch.tensor(-7))
