"""Arithmetic equals eager PyTorch."""

from collections.abc import Callable

import pytest
import torch
from decomp_harness import check

NAN, INF = float("nan"), float("inf")
Function = Callable[..., torch.Tensor]
OPSETS = [7, 9, 11, 13, 15, 17, 18, 20, 21, 23, 24, 25, 26]

A = torch.tensor([[5.0, -5.0, 2.5, -0.0], [0.3, -7.25, 1e8, 3.0]])
B = torch.tensor([2.0, -3.0, 0.1, 0.7])
SPECIAL = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.5, -2.5, 1e-40])


@pytest.mark.parametrize("opset", OPSETS)
def test_add_and_sub_scale_the_second_operand(opset: int) -> None:
    check(
        lambda a, b: (torch.add(a, b, alpha=3), torch.sub(a, b, alpha=0.5), torch.rsub(a, b, alpha=2)),
        torch.randn(2, 3),
        torch.randn(3),
        opset=opset,
    )


def test_arithmetic_of_mixed_dtypes_promotes() -> None:
    whole = torch.arange(3, dtype=torch.int32)
    check(lambda a, b: (a + b, a * b, a - b, a / b), whole, torch.tensor(2.5, dtype=torch.float64))
    check(lambda a: (a + 1.5, a * 2, 3 - a, a / 2, a / 2.0), whole)
    check(lambda a, b: (a + b, a * b), torch.tensor([True, False]), torch.tensor([3, 4]))
    check(lambda a, b: (a + b, a * b), torch.tensor([True, False]), torch.tensor([True, True]))
    check(lambda a, b: a + b, torch.randn(3, dtype=torch.float16), torch.randn(3))


def test_arithmetic_runs_at_other_sizes() -> None:
    check(
        lambda a, b: (a + b, a * b, a // b, a % b, torch.hypot(a, b)),
        torch.randn(2, 3),
        torch.rand(2, 3) + 0.5,
        others=[(torch.randn(5, 7), torch.rand(5, 7) + 0.5)],
    )


def test_arithmetic_with_a_size() -> None:
    check(lambda x: (x + x.shape[0], x * x.shape[1], x / x.shape[0]), torch.randn(2, 3), others=[(torch.randn(5, 4),)])


@pytest.mark.parametrize("opset", [7, 13, 18, 26])
def test_addcmul_addcdiv_and_lerp(opset: int) -> None:
    x, y, z = torch.randn(2, 3), torch.randn(3), torch.rand(2, 1) + 0.5
    check(lambda x, y, z: (x.addcmul(y, z, value=2), x.addcdiv(y, z, value=-1)), x, y, z, opset=opset)
    check(lambda x, y, z: (x.lerp(y, 0.3), x.lerp(y, 0.8), x.lerp(y, z)), x, y.expand(2, 3), z, opset=opset)


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
@pytest.mark.parametrize("opset", [7, 10, 13, 18, 26])
def test_division_rounds_as_asked(mode: str | None, opset: int) -> None:
    if mode == "floor":
        # An exact remainder of floats came with opset 10.
        opset = max(opset, 10)
    check(lambda a, b: torch.div(a, b, rounding_mode=mode), A, B, opset=opset)
    check(lambda a: (torch.div(a, 0.1, rounding_mode=mode), torch.div(a, -4, rounding_mode=mode)), A, opset=opset)


def test_division_of_integers() -> None:
    a, b = torch.tensor([7, -7, 7, -7, 0]), torch.tensor([2, 2, -2, -2, 3])
    check(
        lambda a, b: (a / b, a // b, a % b, a.fmod(b), torch.div(a, b, rounding_mode="trunc"), a // 2, -3 % b),
        a,
        b,
    )
    check(lambda a, b: (a // b, a % b), a.to(torch.int8), b.to(torch.int8))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_floor_division_reaches_the_limits_of_a_dtype(dtype: torch.dtype) -> None:
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.tensor([least, least + 1, least + 6, least + 7, -8, -7, -1, 0, 6, 7, most - 1, most], dtype=dtype)
    check(lambda x: (x // 7, x // 1, x // most), x)
    if dtype != torch.int64:
        check(lambda x, y: (x // -7, x // y), x, torch.tensor([3, -3, 5, 2] * 3, dtype=dtype))


def test_what_cannot_be_negative_is_divided_at_once() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.topk(3).indices // 2, x.argmax() // x.shape[0]

    found = check(function, torch.randn(4, 9), others=[[torch.randn(5, 9)]])

    assert found.op_types().count("Div") == 2
    assert not {"Mod", "Clip"} & set(found.op_types())


def test_floor_division_of_floats_is_that_of_python() -> None:
    check(lambda a, b: (a // b, a // 0.1, a // 2.0), torch.tensor([1.0, -1.0, 0.3, 6.0]), torch.tensor([0.1]))
    check(lambda a: (a // 2.0, a // -0.25, a // 3.0), torch.tensor([INF, -INF, NAN, -0.0, -0.5, 5.0]))
    zeros = torch.tensor([0.0, INF, -INF, 2.0])
    check(lambda a, b: a // b, torch.tensor([1.0, 5.0, 5.0, NAN]), zeros)


@pytest.mark.parametrize("opset", [10, 13, 18, 26])
def test_remainders_have_the_sign_of_divisor_or_dividend(opset: int) -> None:
    check(lambda a, b: (a.remainder(b), a.fmod(b), a % 0.7, a % -3, a.fmod(3)), A[:, :4], B, opset=opset)


def test_powers() -> None:
    x = torch.rand(2, 3) + 0.5
    check(lambda x: (x**2, x**3, x**0.5, x**-1, x**-0.5, x**2.5, 2**x, x**x, x**0, x**1), x)
    check(lambda x: (x**2, x**3, x**2.0, x**4, 2**x), torch.tensor([1, -2, 3]))
    check(lambda x: (torch.float_power(x, 2), x.square(), x.reciprocal(), x.rsqrt()), torch.tensor([1, 2, 3]))
    check(lambda x: (x**2, x**0.5, x**0), SPECIAL)


def test_hypotenuse_neither_overflows_nor_vanishes() -> None:
    check(
        lambda a, b: torch.hypot(a, b),
        torch.tensor([3e30, 1e-30, 0.0, INF, 3.0, NAN]),
        torch.tensor([4e30, 1e-30, 0.0, -1.0, -4.0, 1.0]),
        tolerance=(1e-5, 0),
    )


@pytest.mark.parametrize("opset", [9, 13, 18, 26])
def test_signs_and_rounding(opset: int) -> None:
    x = torch.tensor([2.5, -2.5, 0.5, -0.5, 1.5, -3.75, 0.0])
    check(lambda x: (x.neg(), x.abs(), x.sign(), x.sgn(), +x), x, opset=opset)
    check(lambda x: (x.floor(), x.ceil(), x.round(), x.trunc(), x.frac()), x, opset=max(opset, 11))
    check(lambda x: (x.round(decimals=1), x.round(decimals=-1)), x * 7.77, opset=max(opset, 11))
    check(
        lambda x: (x.abs(), x.neg(), x.sign(), x.floor(), x.round(), x.trunc()), torch.tensor([3, -2, 0]), opset=opset
    )


def test_signs_of_special_numbers() -> None:
    check(lambda x: (x.sign(), x.abs(), x.neg(), x.floor(), x.trunc(), x.frac()), SPECIAL)
    check(
        lambda x, y: (x.copysign(y), x.copysign(-2.0)),
        SPECIAL[1:],
        torch.tensor([1.0, -1.0, 0.0, -0.0, -INF, 3.0, -2.0]),
    )
    check(lambda x, v: torch.heaviside(x, v), SPECIAL[1:], torch.tensor(0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_nan_to_num(dtype: torch.dtype) -> None:
    x = SPECIAL.to(dtype)
    check(lambda x: (x.nan_to_num(), x.nan_to_num(nan=1.0, posinf=2.0), x.nan_to_num(neginf=-3.0)), x)
    check(lambda x: x.nan_to_num(), torch.tensor([1, 2]))


def test_arithmetic_of_numbers_and_of_nothing() -> None:
    check(lambda a, b: (a + b, a // b, a % b, a**b), torch.tensor(5.0), torch.tensor(3.0))
    check(lambda a, b: (a + b, a // b, a % b, a.lerp(b, 0.5)), torch.ones(0, 2), torch.ones(2))


POWERS = [(3, 39), (3, 41), (7, 25), (-3, 39), (0, -2), (0, 0), (1, -5), (-1, -3), (-1, -4), (2, -1), (-2, 63), (5, 27)]


@pytest.mark.parametrize("opset", [7, 9, 13, 18, 26])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_powers_of_integers_are_exact_and_wrap(dtype: torch.dtype, opset: int) -> None:
    base, exponent = torch.tensor(POWERS).to(dtype).unbind(1)
    exponent = exponent.abs() if dtype == torch.uint8 else exponent
    check(lambda a, b: (a**b, a**41, a**0, a.unsqueeze(1) ** b), base, exponent, opset=opset)
    check(lambda a, b: a**b, base, exponent, opset=opset, others=[(base[:5], exponent[:5])])


def test_an_integer_to_the_power_of_integers() -> None:
    check(lambda b: 3**b, torch.tensor([-2, 0, 1, 39, 41]))
