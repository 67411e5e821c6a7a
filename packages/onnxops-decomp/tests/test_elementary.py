"""Exponentials, logarithms and trigonometric functions equal eager PyTorch."""

from collections.abc import Callable

import onnx_ir as ir
import pytest
import torch
from decomp_harness import check, compare, run

from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.files.model import build_model
from onnxops_decomp.lowerings import builtin_table

NAN, INF = float("nan"), float("inf")
Function = Callable[..., torch.Tensor]

WIDE = torch.tensor([-20.0, -1.5, -1e-6, -0.0, 0.0, 1e-6, 0.7, 3.0, 20.0, NAN])
UNIT = torch.tensor([-0.9, -0.25, 0.0, 1e-6, 0.5, 0.99])
POSITIVE = torch.tensor([1e-6, 0.3, 1.0, 2.5, 1e6, INF, NAN])

FUNCTIONS: dict[str, tuple[Function, torch.Tensor]] = {
    "acos": (torch.acos, UNIT),
    "acosh": (torch.acosh, POSITIVE[2:5]),
    "asin": (torch.asin, UNIT),
    "asinh": (torch.asinh, WIDE),
    "atan": (torch.atan, WIDE),
    "atanh": (torch.atanh, UNIT),
    "cos": (torch.cos, WIDE),
    "cosh": (torch.cosh, WIDE),
    "deg2rad": (torch.deg2rad, WIDE),
    "exp": (torch.exp, WIDE),
    "exp2": (torch.exp2, WIDE),
    "expm1": (torch.expm1, WIDE),
    "log": (torch.log, POSITIVE),
    "log10": (torch.log10, POSITIVE),
    "log1p": (torch.log1p, POSITIVE),
    "log2": (torch.log2, POSITIVE),
    "logit": (lambda x: torch.logit(x, eps=1e-3), UNIT),
    "rad2deg": (torch.rad2deg, WIDE),
    "reciprocal": (torch.reciprocal, WIDE),
    "rsqrt": (torch.rsqrt, POSITIVE),
    "sigmoid": (torch.sigmoid, WIDE),
    "sin": (torch.sin, WIDE),
    "sinc": (torch.sinc, WIDE),
    "sinh": (torch.sinh, WIDE),
    "sqrt": (torch.sqrt, POSITIVE),
    "tan": (torch.tan, WIDE),
    "tanh": (torch.tanh, WIDE),
}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
@pytest.mark.parametrize("opset", [9, 13, 18, 26])
def test_function(name: str, opset: int) -> None:
    function, points = FUNCTIONS[name]
    check(lambda x: function(x), points, opset=opset, others=[(points[1:3],)])


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_function_of_other_dtypes(name: str) -> None:
    function, points = FUNCTIONS[name]
    check(lambda x: function(x), points.half())
    check(lambda x: function(x), torch.tensor([[0, 1]], dtype=torch.int32))
    check(lambda x: function(x), torch.tensor([True, False]))
    check(lambda x: function(x), torch.tensor(0.5))


@pytest.mark.parametrize("function", [torch.expm1, torch.log1p])
def test_small_arguments_keep_their_digits(function: Function) -> None:
    check(lambda x: function(x), torch.tensor([1e-12, -1e-9, 1e-7, -1e-4, 0.49, -0.49]), tolerance=(1e-6, 0))


def test_angle_of_two_legs_in_every_quadrant() -> None:
    legs = torch.tensor([0.0, -0.0, 1.0, -1.0, 3e30, -2e-30, INF, -INF, NAN])
    check(lambda y, x: torch.atan2(y, x), legs[:, None], legs)
    check(lambda y, x: torch.atan2(y, x), torch.tensor([1, -2]), torch.tensor([3, 0]))


@pytest.mark.parametrize("function", [torch.logaddexp, torch.logaddexp2])
def test_log_of_sum_of_exponentials(function: Function) -> None:
    points = torch.tensor([-INF, -1000.0, 0.0, 1.0, 1000.0, INF, NAN])
    check(lambda a, b: function(a, b), points[:, None], points)


def test_products_with_logarithms() -> None:
    x = torch.tensor([0.0, 1.0, 2.0, NAN])
    check(lambda x, y: (torch.xlogy(x, y), torch.special.xlog1py(x, y)), x[:, None], torch.tensor([0.0, 0.5, 3.0, INF]))
    check(lambda x: (torch.xlogy(x, 2), torch.xlogy(0, x), torch.xlogy(x, NAN)), x)


def test_mantissa_and_exponent() -> None:
    x = torch.tensor([1.0, 0.5, -3.7, 0.0, 2.0**-126, 1e-45, 3.4e38, -1e10, 2.0**-149, INF, NAN])
    check(lambda x: torch.frexp(x), x)
    check(lambda x: torch.frexp(x), torch.tensor([5e-324, 1.79e308, -1.0], dtype=torch.float64))
    check(lambda x: torch.frexp(x), torch.tensor([6e-8, 65504.0, -1.0], dtype=torch.float16))
    check(lambda x, n: torch.ldexp(x, n), torch.tensor([1.5, -2.0]), torch.tensor([3, -2]))


def test_next_float_is_exact() -> None:
    x = torch.tensor([1.0, 0.5, -3.7, 0.0, 2.0**-126, 1e-45, 3.4e38, -1e10, 2.0**-149, INF, -INF, NAN])
    check(lambda x, y: torch.nextafter(x, y), x[:, None], x, tolerance=(0, 0))
    half = torch.tensor([1.0, -3.7, 0.0, 6e-8, 65504.0, 6.1e-5, INF, NAN], dtype=torch.float16)
    check(lambda x, y: torch.nextafter(x, y), half[:, None], half, tolerance=(0, 0))


@pytest.mark.parametrize("opset", [9, 13, 23])
@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([2**k for k in range(62)] + [10**k for k in range(19)] + [0, 7, 999, 1001]),
        torch.tensor([2.0**k for k in range(-40, 60)] + [10.0**k for k in range(20)] + [0, 0.3, -1, INF, NAN]).double(),
        torch.tensor([1, 4, 128, 10, 100], dtype=torch.uint8),
        torch.tensor(8192.0),
        torch.tensor(1000.0),
    ],
)
def test_logarithms_of_powers_are_whole(x: torch.Tensor, opset: int) -> None:
    check(lambda x: (torch.log2(x), torch.log2(x).floor(), torch.log10(x), torch.log10(x).floor()), x, opset=opset)


def test_a_logarithm_needs_no_rank() -> None:
    op = OpBuilder(18)
    x = op.input("x", ir.DataType.FLOAT, None)
    proto = ir.to_proto(build_model(op, [builtin_table()["aten::log2"].function(op, x)], name="test"))
    compare(run(proto, [POSITIVE]), [POSITIVE.log2()])
