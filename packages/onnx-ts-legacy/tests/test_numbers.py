"""Arithmetic and functions of scripted programs on numbers known only at run time: values and types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from ts_models import scripted_program

import onnx_ts_legacy
from onnx_ts_legacy.errors import UnsupportedOperatorsError

AXES = {"x": {0: "n"}, "y": {0: "k"}}
EXAMPLE = torch.tensor([0.5, 1.0, 2.0, 0.2, 1.0]), torch.tensor([0.3, 0.4])
OTHER = torch.tensor([1.5, 2.25, 2.0, 0.2, 1.0, 4, 7]), torch.tensor([1.3, 0.4, 6.0])
SMALL = torch.tensor([0.5, -2.0]), torch.tensor([-4.5, 0.4, 6.0, 7.0])

# n and k are sizes, f and g floats of tensors.
ARITHMETIC = [
    *("n + k", "n - f", "n * f", "n / k", "n // k", "n % k", "-n // k", "-n % k", "f // g", "f % g", "-f % g", "n % f"),
    *("n ** 2", "2 ** n", "n ** k", "f ** 2", "f ** k", "abs(-n)", "abs(-f)", "min(n, k)", "max(n, f)", "min(f, g)"),
    *("divmod(n, k)[0]", "divmod(-n, k)[1]", "divmod(f, g)[0]", "divmod(n, f)[1]", "n - k * f / g", "f // 1"),
    *("round(f)", "round(n)", "int(f)", "int(-f)", "float(n)", "bool(n)", "bool(f)", "int(n / k)", "True + n"),
    *("n & k", "n | k", "n ^ k", "n << k", "n >> 1", "n == k", "n < f", "f >= g", "n != f", "n < k < 9"),
    *("n if f > 2 else k", "f if n > 3 else g", "not n", "n > 2 and k > 2", "bool(n) == bool(k)", "n * (f > 2)"),
    *("sum([n, k])", "sum([f, g])", "max([n, k])", "min([f, g])", "sorted([n, k, 3])[1]", "[n, k, 1][k % 3]"),
    *("list(range(n))[-1]", "any([n > 3, k > 3])", "all([n > 3, k > 3])", "x.numel() * k"),
    *(
        "x.stride(0) * n",
        "torch.ones(2, 3).expand(4, 2, 3).stride()[1] * n",
        "torch.stack([x, y[:1].expand(n)], 1).stride(-2)",
    ),
]
FUNCTIONS = [
    *("floor(f)", "ceil(f)", "floor(n)", "ceil(-f)", "sqrt(n)", "exp(f / 4)", "fabs(-f)", "pow(n, g / 4)"),
    *("log(n)", "log(n, 2)", "log10(n)", "log1p(n)", "expm1(g / 9)", "degrees(f)", "radians(f)"),
    *("sin(f)", "cos(n)", "tan(f)", "asin(f / 10)", "acos(f / 10)", "atan(f)", "atan2(f, g)", "atan2(-f, n)"),
    *("sinh(f / 4)", "cosh(f / 4)", "tanh(f)", "asinh(f)", "acosh(n)", "atanh(f / 10)", "erf(f / 4)", "erfc(f / 4)"),
    *("fmod(f, g)", "fmod(-n, g)", "remainder(f, g)", "copysign(f, -g)", "copysign(n, g)", "gcd(n * 6, k * 4)"),
    *("ldexp(f, k)", "modf(f)[0]", "modf(-f)[1]", "lgamma(n)", "isnan(f)", "isinf(f)", "isfinite(f)"),
]
EXPRESSIONS = [*ARITHMETIC, *(f"math.{function}" for function in FUNCTIONS)]


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[[str], torch.jit.ScriptFunction]:
    head = "n, k = x.size(0), y.size(0)\nf, g = float(x[1]) + 3.25, float(y[0]) + 1.75"
    return lambda expression: scripted_program(tmp_path, "x, y", f"{head}\nreturn {expression}")


# At some sizes a quotient that is rounded makes them a divisor or a step off.
EXACT = [
    *("(n * 0.1) % 0.3", "(n * -0.1) % 0.3", "(n * 0.1) // 0.1", "divmod(n * 0.1, 0.1)[0]", "divmod(n * -0.1, 0.3)[1]"),
    *("math.fmod(n * 0.1, 0.3)", "math.remainder(n * 0.1, 0.2)", "math.ceil(n * 1.1)", "int(n * 0.29)"),
    "round(n * 0.35)",
]
SIZES = [(torch.ones(size), torch.ones(1)) for size in range(2, 120)]


@pytest.mark.parametrize(
    ("expression", "calls"),
    [*((each, (EXAMPLE, OTHER, SMALL)) for each in EXPRESSIONS), *((each, SIZES) for each in EXACT)],
    ids=[*EXPRESSIONS, *EXACT],
)
def test_a_number_of_the_runtime_is_what_the_program_computes(
    expression: str,
    calls: Sequence[tuple[torch.Tensor, torch.Tensor]],
    scripted: Callable[[str], torch.jit.ScriptFunction],
) -> None:
    program = scripted(expression)
    exported = onnx_ts_legacy.export(program, EXAMPLE, dynamic_axes=AXES)

    for inputs in calls:
        (actual,), expected = exported(*inputs), torch.tensor(program(*inputs))
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("expression", ["math.factorial(n)", "math.gamma(f)", "torch.stack([x, x]).stride(0)"])
def test_a_function_without_an_onnx_form_is_refused_by_name(
    expression: str, scripted: Callable[[str], torch.jit.ScriptFunction]
) -> None:
    name = expression.rpartition("(")[0].rpartition(".")[2]

    with pytest.raises(UnsupportedOperatorsError, match=f"aten::{name}"):
        onnx_ts_legacy.export(scripted(expression), EXAMPLE, dynamic_axes=AXES)
