"""Special functions equal eager PyTorch, in double precision to many more digits than single precision has."""

from collections.abc import Callable

import pytest
import torch
from decomp_harness import check

from onnxops_decomp.runtimes.onnxruntime.kernel_gaps import is_older

NAN, INF = float("nan"), float("inf")
special = torch.special
Function = Callable[..., torch.Tensor]

EVERYWHERE = torch.cat(
    [torch.linspace(-30, 30, 601), torch.tensor([0.0, 1e-6, -1e-6, 100.0, -100.0, NAN, INF, -INF])]
).double()
POSITIVE = torch.cat([torch.logspace(-6, 2, 400), torch.tensor([0.0, -1.0, NAN])]).double()
UNIT = torch.cat([torch.linspace(-1, 1, 401), torch.tensor([1e-7, 1 - 1e-7, 1.5, NAN])]).double()

FUNCTIONS: dict[str, tuple[Function, torch.Tensor]] = {
    "airy_ai": (special.airy_ai, EVERYWHERE[:601]),
    "bessel_j0": (special.bessel_j0, EVERYWHERE),
    "bessel_j1": (special.bessel_j1, EVERYWHERE),
    "bessel_y0": (special.bessel_y0, POSITIVE),
    "bessel_y1": (special.bessel_y1, POSITIVE),
    "digamma": (torch.digamma, EVERYWHERE),
    "entr": (special.entr, POSITIVE),
    "erf": (torch.erf, EVERYWHERE.float()),
    "erfc": (torch.erfc, EVERYWHERE),
    "erfcx": (special.erfcx, EVERYWHERE),
    "erfinv": (torch.erfinv, UNIT),
    "expm1": (torch.expm1, EVERYWHERE),
    "i0": (torch.i0, EVERYWHERE[:-2]),
    "i0e": (special.i0e, EVERYWHERE),
    "i1": (special.i1, EVERYWHERE[:-2]),
    "i1e": (special.i1e, EVERYWHERE),
    "k0": (special.modified_bessel_k0, POSITIVE),
    "k0e": (special.scaled_modified_bessel_k0, POSITIVE),
    "k1": (special.modified_bessel_k1, POSITIVE),
    "k1e": (special.scaled_modified_bessel_k1, POSITIVE),
    "lgamma": (torch.lgamma, EVERYWHERE),
    "log1p": (torch.log1p, torch.cat([UNIT, POSITIVE])),
    "log_ndtr": (special.log_ndtr, EVERYWHERE),
    "modified_bessel_i0": (special.modified_bessel_i0, EVERYWHERE[:-2]),
    "modified_bessel_i1": (special.modified_bessel_i1, EVERYWHERE[:-2]),
    "ndtr": (special.ndtr, EVERYWHERE.float()),
    "ndtri": (special.ndtri, UNIT),
    "polygamma_1": (lambda x: torch.polygamma(1, x), EVERYWHERE[:601] + 0.05),
    "polygamma_2": (lambda x: torch.polygamma(2, x), torch.cat([POSITIVE, torch.linspace(-5, 0, 78).double()])),
    "polygamma_5": (lambda x: torch.polygamma(5, x), POSITIVE[:-2]),
    "sinc": (torch.sinc, EVERYWHERE),
    "spherical_bessel_j0": (special.spherical_bessel_j0, EVERYWHERE),
}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_special_function_in_double_precision(name: str) -> None:
    function, points = FUNCTIONS[name]
    if name in ("erf", "ndtr") and is_older(1, 28):
        points = points[~points.isnan()]  # Of these ONNX Runtime before 1.28 gives 1.
    if points.dtype == torch.float32:
        check(lambda x: function(x), points)
    else:
        # Near a zero of the function only the absolute error means anything.
        check(lambda x: function(x), points, tolerance=(1e-9, 1e-10))


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
@pytest.mark.parametrize("opset", [9, 13, 18])
def test_special_function_in_single_precision(name: str, opset: int) -> None:
    function, points = FUNCTIONS[name]
    check(lambda x: function(x), points.float()[::7], opset=opset, others=[(points.float()[5:50],)])


@pytest.mark.parametrize("name", ["digamma", "erfc", "erfinv", "i0", "lgamma"])
def test_special_function_of_integers_and_empty_tensors(name: str) -> None:
    function, _ = FUNCTIONS[name]
    check(lambda x: function(x), torch.tensor([[1, 2], [3, 0]]))
    check(lambda x: function(x), torch.ones(2, 0))
    check(lambda x: function(x), torch.tensor(0.25))


@pytest.mark.parametrize("function", [torch.igamma, torch.igammac])
def test_incomplete_gamma_function(function: Function) -> None:
    a = torch.tensor([0.1, 0.5, 1.0, 3.0, 10.0, 50.0, 300.0], dtype=torch.float64)
    x = torch.cat([torch.logspace(-3, 3, 50), torch.tensor([0.0, INF])]).double()
    check(lambda a, x: function(a, x), a[:, None], x, tolerance=(1e-7, 1e-9))
    check(
        lambda a, x: function(a, x), torch.tensor([0.0, 0.0, -1.0, 1.0, NAN]), torch.tensor([0.0, 1.0, 1.0, -1.0, 1.0])
    )


def test_hurwitz_zeta_function() -> None:
    s = torch.tensor([1.5, 2.0, 3.0, 7.25, 1.0, 0.5], dtype=torch.float64)
    q = torch.tensor([0.5, 1.0, 4.0, 30.0, -2.0], dtype=torch.float64)
    check(lambda s, q: special.zeta(s, q), s[:, None], q, tolerance=(1e-9, 1e-10))
    check(lambda q: special.zeta(3, q), torch.tensor([-2.5, -20.5, 0.5]))


POLYNOMIALS = [
    *(f"{shift}chebyshev_polynomial_{kind}" for shift in ("", "shifted_") for kind in "tuvw"),
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
]


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_orthogonal_polynomial(name: str) -> None:
    function = getattr(special, name)
    x = torch.linspace(-1.5, 1.5, 31).double()
    check(lambda x: [function(x, n) for n in (-1, 0, 1, 2, 5, 40)], x, tolerance=(1e-9, 1e-10))
    degrees = torch.tensor([[-1.0], [0.0], [1.0], [2.0], [7.0]], dtype=torch.float64)
    check(lambda x, n: function(x, n), x, degrees, others=[(x[:4], degrees[:3] + 3)], tolerance=(1e-9, 1e-10))
    check(lambda x, n: function(x, n), torch.ones(0, 2), torch.ones(2))


def test_multivariate_gamma_function() -> None:
    check(lambda x: torch.mvlgamma(x, 3), torch.linspace(2, 20, 30))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_infinite_arguments(dtype: torch.dtype) -> None:
    infinite = torch.tensor([INF, -INF, NAN, 2.5], dtype=dtype)
    check(special.airy_ai, infinite)
    check(lambda x: [torch.polygamma(n, x) for n in range(6)], infinite)
    orders = torch.tensor([INF, INF, INF, INF, INF, INF, INF, -INF, 2, NAN], dtype=dtype)
    check(special.zeta, orders, torch.tensor([2, 1, 0.5, INF, -1.5, -1, NAN, 2, INF, 1], dtype=dtype))
