"""Complex tensors, whose last dimension in ONNX holds real and imaginary part, behave as in eager PyTorch."""

from collections.abc import Callable

import pytest
import torch
from decomp_harness import check

Function = Callable[..., torch.Tensor]

torch.manual_seed(0)
Z = torch.randn(3, 4, dtype=torch.complex64)
W = torch.randn(4, dtype=torch.complex64)
EDGES = torch.tensor([0j, 1 + 0j, -1 + 0j, 1j, -1j, -2 + 1e-3j, 3e18 + 4e18j, 1e-18 - 1e-18j], dtype=torch.complex64)


def test_arithmetic_of_complex_tensors() -> None:
    check(lambda a, b: (a + b, a - b, a * b, a / b, -a, a.square(), a.reciprocal()), Z, W, opset=13)


def test_arithmetic_of_complex_and_real() -> None:
    real = torch.randn(3, 1)
    check(lambda a, b: (a + b, b - a, a * b, b * a, a / b, b / a), Z, real)
    check(lambda a: (a + 1, 2 - a, a * 3, a / 2, 1 / a, a + 2j, a * (1 - 1j), (1 + 2j) / a), Z)
    check(lambda x: (x * 1j, x + (1 + 2j)), real)


def test_promotion_with_double_precision() -> None:
    check(lambda a, b: (a * b, a + b), Z, torch.randn(4, dtype=torch.float64))
    check(lambda a, b: a * b, Z, torch.tensor(2, dtype=torch.int64))


def test_add_scales_the_second_operand() -> None:
    check(lambda a, b: (torch.add(a, b, alpha=2), torch.sub(a, b, alpha=1j)), Z, W)


def test_division_neither_overflows_nor_vanishes() -> None:
    check(lambda a: (a / a, 1 / a), EDGES[1:])


def test_comparisons() -> None:
    check(lambda a, b: (a == b, a != b, a == 1), torch.tensor([1 + 1j, 1 + 0j]), torch.tensor([1 + 1j, 1 - 1j]))
    special = torch.tensor([complex("nan"), complex("inf"), complex(0, float("-inf")), 0j, 1 + 1j])
    check(lambda a: (a.isnan(), a.isinf(), a.isfinite(), a.isreal(), a.logical_not()), special)


@pytest.mark.parametrize("opset", [9, 13, 18, 26])
def test_views_and_parts(opset: int) -> None:
    check(
        lambda a: (a.real, a.imag, torch.view_as_real(a), a.conj(), a.conj().imag, a.abs(), a.angle(), a.sgn()),
        Z,
        opset=opset,
    )


def test_making_complex_numbers() -> None:
    check(lambda a, b: (torch.complex(a, b), torch.polar(a, b)), torch.rand(3, 1), torch.rand(3, 1))
    check(lambda a, b: torch.complex(a, b), torch.rand(3, 1), torch.rand(4))
    check(lambda a: torch.view_as_complex(a) * 2 + a[..., 0], torch.randn(3, 2))
    check(lambda a: (a.to(torch.complex64), a.to(torch.complex128)), torch.randn(3))
    check(lambda a: a.to(torch.float64), Z)


def test_angle_of_real_numbers() -> None:
    check(lambda a: a.angle(), torch.tensor([1.0, -1.0, 0.0, float("nan"), float("-inf")]))
    check(lambda a: a.angle(), torch.tensor([1, -1]))


@pytest.mark.parametrize(
    "function",
    [
        torch.exp,
        torch.log,
        torch.log2,
        torch.log10,
        torch.sqrt,
        torch.rsqrt,
        torch.sin,
        torch.cos,
        torch.tan,
        torch.sinh,
        torch.cosh,
        torch.tanh,
        torch.sigmoid,
    ],
)
def test_elementary_function(function: Function) -> None:
    check(lambda a: function(a), Z)


def test_root_and_logarithm_at_the_branch_cut() -> None:
    check(lambda a: a.sqrt(), EDGES)
    check(lambda a: (a.log(), a.angle()), EDGES[:6])


def test_powers() -> None:
    check(lambda a, b: (a**2, a**3.5, a**b, 2**a, a ** (1 - 2j)), Z, W)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a.reshape(2, -1),
        lambda a: a.flatten(),
        lambda a: a.T,
        lambda a: a.permute(1, 0),
        lambda a: a.transpose(-1, -2),
        lambda a: a.unsqueeze(-1),
        lambda a: a.unsqueeze(0).squeeze(0),
        lambda a: a[1],
        lambda a: a[:, 1:3],
        lambda a: a[:, -1],
        lambda a: a[torch.tensor([2, 0])],
        lambda a: a.expand(2, -1, -1),
        lambda a: torch.cat([a, a.real], dim=-1),
        lambda a: torch.stack([a, a], dim=-1),
        lambda a: a.split(2, dim=-1)[1],
        lambda a: a.chunk(2, dim=1)[0],
        lambda a: a.unbind(-1)[2],
        lambda a: a.flip(-1),
        lambda a: a.roll(1, -1),
        lambda a: a.repeat(2, 1),
        lambda a: a.tril(),
        lambda a: a.diagonal(),
        lambda a: a.sum(),
        lambda a: a.sum(-1, keepdim=True),
        lambda a: a.mean(0),
        lambda a: a.cumsum(-1),
        lambda a: a.prod(),
        lambda a: a.prod(-1),
        lambda a: torch.where(a.real > 0, a, 1j),
        lambda a: a.masked_fill(a.real > 0, 2 - 1j),
        lambda a: torch.nn.functional.pad(a, (1, 2)),
        lambda a: torch.nn.functional.pad(a, (1, 0), value=3.0),
        lambda a: a.clone().detach().contiguous(),
    ],
)
def test_structure(function: Function) -> None:
    check(function, Z)


def test_reduction_of_a_number_without_dimensions() -> None:
    check(lambda a: (a.sum(0), a.prod(-1), a.squeeze(0), a.unsqueeze(0), a.abs()), torch.tensor(1 + 2j))


def test_matrix_products() -> None:
    a, b = torch.randn(2, 3, 4, dtype=torch.complex64), torch.randn(2, 4, 5, dtype=torch.complex64)
    check(lambda a, b: (a @ b, a.bmm(b), a[0] @ b[0, :, 0], a[0, 0].dot(b[0, :, 1])), a, b)
    check(lambda a, b: (torch.vdot(a, b), a.dot(b)), W, Z[0])
    check(lambda a, b: a @ b.to(torch.complex64), Z, torch.randn(4, 2))


def test_rotary_embedding_by_complex_products_at_other_sizes() -> None:
    def rotate(x: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turned = pairs * torch.polar(torch.ones_like(frequencies), frequencies)
        return torch.view_as_real(turned).flatten(-2)

    check(rotate, torch.randn(2, 5, 8), torch.randn(5, 4), others=[(torch.randn(3, 7, 8), torch.randn(7, 4))])


def test_new_complex_tensors() -> None:
    check(lambda a: (torch.zeros_like(a), torch.ones_like(a), torch.full_like(a, 2 - 1j), torch.full_like(a, 3.0)), Z)
    check(lambda a: (a.new_zeros(2), a.new_full((2,), 1j), torch.zeros_like(a, dtype=torch.float32)), Z)
    check(lambda x: torch.full((2, 3), 1 + 2j) + torch.zeros(3, dtype=torch.complex64) + x, torch.randn(3))


def test_size_of_large_and_small_numbers() -> None:
    check(lambda a: a.abs(), EDGES * 1e8, tolerance=(1e-6, 0))


def test_spread_of_complex_numbers() -> None:
    check(lambda a: (a.var(), a.std(1), a.var(0, correction=0), a.std(unbiased=False)), Z)


def test_sum_of_real_numbers_to_a_complex_dtype() -> None:
    check(lambda x: x.sum(0, dtype=torch.complex64), torch.randn(3, 2))
