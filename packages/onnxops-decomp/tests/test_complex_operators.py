"""Inverse functions, writes, products and new tensors of complex numbers equal eager PyTorch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from decomp_harness import check, lower, run
from opset_sweep import swept

from onnxops_decomp.errors import LoweringError

torch.manual_seed(0)
Z = torch.randn(3, 4, dtype=torch.complex64)
W = torch.randn(3, 4, dtype=torch.complex64)
# Both sides of every branch cut, signed zeros included, and numbers around 0 and 1.
CUTS = torch.tensor(
    [complex(x, y) for x in (-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0) for y in (-2.0, -1e-3, -0.0, 0.0, 1e-3, 2.0)]
)
INVERSES = [torch.acos, torch.asin, torch.acosh, torch.asinh]
# Infinite at 1 and -1, or at i and -i, where what is left of the imaginary part has no meaning.
POLES = {torch.atan: CUTS[CUTS.real != 0], torch.atanh: CUTS[CUTS.imag != 0]}


@pytest.mark.parametrize("opset", swept(9, 13, 18))
@pytest.mark.parametrize("function", INVERSES)
def test_inverse_function_at_its_branch_cuts(function: Callable[..., torch.Tensor], opset: int) -> None:
    check(lambda z: function(z), CUTS, opset=opset)


@pytest.mark.parametrize("function", POLES)
def test_inverse_function_away_from_its_poles(function: Callable[..., torch.Tensor]) -> None:
    check(lambda z: function(z), POLES[function])


def test_root_of_negative_numbers_follows_the_sign_of_zero() -> None:
    check(lambda z: z.sqrt(), CUTS)


@pytest.mark.parametrize("opset", [9, 18])
@pytest.mark.parametrize("factor", [1.0, 1e-5, 5.0])
def test_functions_that_keep_their_digits(factor: float, opset: int) -> None:
    check(lambda z: (z.expm1(), z.log1p(), z.exp2()), Z * factor, opset=opset)


def test_logarithm_of_a_sum() -> None:
    check(lambda a, b: torch.logaddexp(a, b), Z * 3, W * 3)


def test_powers_of_every_kind() -> None:
    check(lambda a, b: (a**b, a**b.real, a.real**b, a**-1, a**3, a**0.5, a**0, 0**a, 1.5**a, (1j) ** a), Z, W)
    zeros = torch.tensor([0j, 0j, 1 + 0j])
    check(lambda a, b: a**b, zeros, torch.tensor([0j, 2 + 0j, 0j]))
    check(lambda a: (torch.float_power(a, 2), torch.float_power(a, 1.5)), Z)


INDEX, ROWS, FLAT = torch.tensor([2, 0]), torch.tensor([[1, 0, 2, 2], [0, 1, 1, 0]]), torch.tensor([3, -1])
WRITES: dict[str, Callable[..., Any]] = {
    "index_put": lambda z, w, i, r, f: z.index_put((i,), w[:2]),
    "index_put accumulate": lambda z, w, i, r, f: z.index_put((f[:2] * 0 + 1,), w[:2], accumulate=True),
    "index_put of a number": lambda z, w, i, r, f: z.index_put((i, i), w[0, 0]),
    "scatter": lambda z, w, i, r, f: z.scatter(0, r, w),
    "scatter of a number": lambda z, w, i, r, f: (z.scatter(0, r, 2 + 1j), z.scatter(-2, r, 3.0)),
    "scatter with reduce": lambda z, w, i, r, f: (z.scatter(0, r, w, reduce="add"), z.scatter(-1, r, 2j, reduce="add")),
    "scatter_reduce": lambda z, w, i, r, f: (
        z.scatter_reduce(0, r, w, "sum"),
        z.scatter_reduce(0, r, w, "mean", include_self=False),
    ),
    "scatter_add": lambda z, w, i, r, f: z.scatter_add(0, r, w),
    "index_add": lambda z, w, i, r, f: z.index_add(0, i, w[:2]),
    "index_copy": lambda z, w, i, r, f: z.index_copy(0, i, w[:2]),
    "index_fill": lambda z, w, i, r, f: (z.index_fill(1, i, 1 - 2j), z.index_fill(1, i, 4.0)),
    "masked_scatter": lambda z, w, i, r, f: z.masked_scatter(z.real > 0, w),
    "masked_select": lambda z, w, i, r, f: z.masked_select(z.real > 0),
    "take": lambda z, w, i, r, f: z.take(f),
    "put": lambda z, w, i, r, f: z.put(f, w[0, :2]),
    "select_scatter": lambda z, w, i, r, f: z.select_scatter(w[0], 0, -1),
    "slice_scatter": lambda z, w, i, r, f: z.slice_scatter(w[:, :2], 1, 1, 3),
    "diagonal_scatter": lambda z, w, i, r, f: z.diagonal_scatter(w[:, 0]),
    "as_strided": lambda z, w, i, r, f: (z.as_strided((2, 3), (4, 1)), z.as_strided((2, 2), (1, 2), 1)),
    "nonzero": lambda z, w, i, r, f: (z * (z.real > 0)).nonzero(),
    "logical": lambda z, w, i, r, f: (z.logical_or(w), (z * 0).logical_and(w), (z * 0).any(), z.all(1)),
    "count_nonzero": lambda z, w, i, r, f: (z * (z.real > 0)).count_nonzero(0),
    "to bool": lambda z, w, i, r, f: (z * 1j * (z.real > 0)).to(torch.bool),
}


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_write_or_choice(name: str, opset: int) -> None:
    function = WRITES[name]
    check(lambda z, w, i, r, f: function(z, w, i, r, f), Z, W, INDEX, ROWS, FLAT, opset=opset)


OTHERS: dict[str, Callable[..., Any]] = {
    "cumprod": lambda z, w: (z.cumprod(0), z.cumprod(-1)),
    "prod": lambda z, w: (z.prod(), z.prod(1, keepdim=True)),
    "logcumsumexp": lambda z, w: z.logcumsumexp(1),
    "diff": lambda z, w: torch.diff(z),
    "var_mean": lambda z, w: (*torch.var_mean(z), *torch.std_mean(z, dim=1), *torch.var_mean(z, dim=0, correction=0)),
    "addbmm": lambda z, w: torch.addbmm(w[:, :3], z[None], w.mT[None], beta=2, alpha=1j),
    "baddbmm": lambda z, w: torch.baddbmm(w[None, :, :3], z[None], w.mT[None], alpha=0.5),
    "meshgrid": lambda z, w: torch.meshgrid(z[0], w[:, 0], indexing="ij"),
    "tensor_split": lambda z, w: torch.tensor_split(z, 3, dim=1),
    "combinations": lambda z, w: torch.combinations(z[0]),
    "circular pad": lambda z, w: torch.nn.functional.pad(z[None], (1, 2), mode="circular"),
    "linspace": lambda z, w: torch.linspace(1 + 2j, 3 - 1j, 5) + z[0, 0],
    "logspace": lambda z, w: torch.logspace(0.1 + 0.2j, 1 - 1j, 4) + z[0, 0],
    "eye": lambda z, w: torch.eye(3, 4, dtype=torch.complex64) * z,
    "chain": lambda z, w: torch.fft.ifft(torch.fft.fft(z * w).cumprod(1).atan().expm1()).abs(),
}


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("name", OTHERS)
def test_other_operator(name: str, opset: int) -> None:
    function = OTHERS[name]
    check(lambda z, w: function(z, w), Z, W, opset=opset)


@pytest.mark.parametrize("name", ["cumprod", "prod", "diff", "logcumsumexp"])
def test_operator_at_other_sizes(name: str) -> None:
    function = OTHERS[name]
    check(lambda z: function(z, z), Z, others=[(torch.randn(5, 7, dtype=torch.complex64),)])


@pytest.mark.parametrize("name", ["scatter", "masked_scatter", "take"])
def test_write_at_other_sizes(name: str) -> None:
    function = WRITES[name]
    others = [
        (*(torch.randn(5, 7, dtype=torch.complex64) for _ in range(2)), INDEX, torch.arange(14).view(2, 7) % 5, FLAT)
    ]
    check(lambda z, w, i, r, f: function(z, w, i, r, f) + 0 * w[0, 0], Z, W, INDEX, ROWS, FLAT, others=others)


def test_products_of_nothing_and_of_many() -> None:
    check(lambda z: (z.prod(1), z.prod(), z.sum(1)), Z[:, :0])
    check(lambda z: z.prod(), torch.randn(20, dtype=torch.complex64))


def test_random_numbers_have_parts_of_their_own() -> None:
    check(lambda z: (torch.randn_like(z), torch.rand(2, dtype=torch.complex64)), Z, values=False)
    (drawn,) = (check(lambda z: torch.randn_like(z).var(), torch.zeros(4000, dtype=torch.complex64), values=False),)
    assert "RandomNormal" in "".join(drawn.op_types())


@pytest.mark.parametrize("opset", [17, 20])
def test_inverse_transform_of_frames_gives_complex_signals(opset: int) -> None:
    frames = torch.randn(2, 16, 9, dtype=torch.complex64)
    window = torch.hann_window(16)
    check(
        lambda s, w: torch.istft(s, 16, 4, window=w, onesided=False, return_complex=True),
        frames,
        window,
        opset=opset,
        tolerance=(1e-3, 1e-4),
    )


@pytest.mark.parametrize(
    "function",
    [lambda z, r: z.scatter(0, r, z, reduce="multiply"), lambda z, r: z.scatter_reduce(0, r, z, "prod")],
)
def test_products_of_complex_elements_at_one_place_are_refused(function: Any) -> None:
    with pytest.raises(LoweringError, match="one place"):
        lower(function, (torch.ones(2, 3, dtype=torch.complex64), torch.zeros(2, 3, dtype=torch.int64)))


@pytest.mark.parametrize("function", [torch.sin, torch.cos, torch.tan, torch.sinh, torch.cosh, torch.tanh])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_small_numbers_keep_their_digits(function, dtype) -> None:
    z = torch.tensor([1e-5 + 1e-5j, 1e-3 - 1e-4j, 1e-6j, -1e-7 + 0j], dtype=dtype)
    proto = lower(lambda x: torch.view_as_real(function(x)), (z,)).proto
    torch.testing.assert_close(run(proto, (z,))[0], torch.view_as_real(function(z)), rtol=1e-5, atol=0)
