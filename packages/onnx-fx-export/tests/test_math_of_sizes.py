"""Functions of Python's ``math`` of dynamic sizes, and of numbers from data, stay open."""

import math
import warnings
from math import log2, sqrt

import pytest
import torch

import onnx_ts_legacy
from onnx_fx_export import export
from onnx_fx_export.inputs.arguments import FunctionModule

FUNCTIONS = {
    "sqrt": lambda x: x * math.sqrt(x.shape[0]),
    "isqrt": lambda x: x[: math.isqrt(x.shape[0])],
    "pow": lambda x: x * math.pow(x.shape[0], 1.5),
    "log": lambda x: x * math.log(x.shape[0]),
    "log to a base": lambda x: x * math.log(x.shape[0], 2),
    "log of a fraction": lambda x: x * math.log(x.shape[0] / 2 + 1),
    "exp": lambda x: x * math.exp(-x.shape[0]),
    "slopes": lambda x: x * 2 ** (-(2 ** -(math.log2(x.shape[1]) - 3))),
    "hypot": lambda x: x * math.hypot(*x.shape),
    "hypot of three": lambda x: x * math.hypot(*x.shape, 2),
    "gcd": lambda x: x * math.gcd(x.shape[0], 12),
    "gcd of two sizes": lambda x: x * math.gcd(*x.shape) + math.gcd(x.shape[0] - 9),
    "gcd of three": lambda x: x * math.gcd(18, x.shape[0] * 6, x.shape[1] * 9),
    "lcm": lambda x: x * math.lcm(x.shape[0], 6) + math.lcm(*x.shape),
    "of integers": lambda x: x.to(torch.int32) * math.sqrt(x.shape[0]),
}
BY_CAPTURE_ONLY = {
    "floor": lambda x: x[: math.floor(x.shape[0] * 0.7)],
    "ceil": lambda x: x[: math.ceil(x.shape[0] * 0.7)],
    "imported by name": lambda x: x * sqrt(x.shape[0]) + log2(x.shape[1]),
    "gcd as a size": lambda x: x.reshape(math.gcd(x.shape[0], 6), -1),
    "number of steps": lambda x: x[: math.ceil(math.log2(x.shape[0] + 1))],
    "root as a size": lambda x: x[: int(math.sqrt(x.shape[0]))],
    "log of data": lambda x: x * math.log(x.abs().sum().item() + 1),
    "root of data": lambda x: x * math.sqrt(x.abs().sum().item()),
}
SIZES = ((4, 3), (7, 5), (16, 2), (1, 3), (9, 1))


def assert_right(program, function):
    for size in SIZES:
        x = torch.randn(*size)
        result = program(x)
        torch.testing.assert_close(result[0] if isinstance(result, list | tuple) else result, function(x))


@pytest.mark.parametrize("name", [*FUNCTIONS, *BY_CAPTURE_ONLY])
def test_the_size_stays_open(name) -> None:
    function = {**FUNCTIONS, **BY_CAPTURE_ONLY}[name]
    program = export(FunctionModule(function), (torch.randn(4, 3),), dynamic_shapes=({0: "n", 1: "m"},))
    assert_right(program, function)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_size_stays_open_in_a_trace(name) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = onnx_ts_legacy.export(
            FunctionModule(FUNCTIONS[name]),
            (torch.randn(4, 3),),
            input_names=["x"],
            dynamic_axes={"x": {0: "n", 1: "m"}},
        )
    assert_right(program, FUNCTIONS[name])


def test_the_functions_are_pythons_again() -> None:
    before = {name: getattr(math, name) for name in ("sqrt", "log", "floor")}
    export(FunctionModule(FUNCTIONS["sqrt"]), (torch.randn(4, 3),))
    assert {name: getattr(math, name) for name in before} == before
    assert math.sqrt(4) == 2.0


@pytest.mark.parametrize("opset", [9, 18])
def test_a_tensor_of_a_number_has_its_own_dtype(opset) -> None:
    def function(x):
        return torch.scalar_tensor(x.shape[0] / 2, dtype=torch.float64) + x.to(torch.int32)

    program = export(
        FunctionModule(function), (torch.randn(4, 3),), dynamic_shapes=({0: "n", 1: "m"},), opset_version=opset
    )
    assert_right(program, function)
