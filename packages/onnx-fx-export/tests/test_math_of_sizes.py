"""Functions of Python's ``math`` of dynamic sizes, and of numbers from data, stay open."""

import math
import warnings
from math import log2, sqrt

import onnxruntime
import pytest
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

import onnx_ts_legacy
from onnx_fx_export import InvalidArgumentError, export
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
    "next power of two": lambda x: pad(x, 2 ** math.ceil(math.log2(x.shape[0]))),
    "next power of two by int": lambda x: pad(x, int(2 ** math.ceil(math.log2(x.shape[0])))),
    "next power of two by bits": lambda x: pad(x, 1 << (x.shape[0] - 1).bit_length()),
    "power of two below": lambda x: x[: 2 ** int(math.log2(x.shape[0]))],
    "number of bits": lambda x: x * x.shape[0].bit_length() + (x.shape[0] - 9).bit_length(),
    "length of a spectrum": lambda x: torch.fft.rfft(x, 2 ** math.ceil(math.log2(2 * x.shape[0])), 0).abs(),
    "log to a base as a size": lambda x: x[: int(math.log(x.shape[0], 2)) + 1],
    "shifts by sizes": lambda x: x * (1 << (x.shape[0] % 5)) + (1000 >> (x.shape[0] % 5)),
    "largest of a sum": lambda x: x * int(x.shape[0] + x.shape[1]),
    "modf": lambda x: x * math.modf(x.shape[0] / 4)[0] + math.modf(x.shape[0] / 4)[1],
    "ldexp": lambda x: x * math.ldexp(0.5, x.shape[0]),
    "comb": lambda x: x * math.comb(x.shape[0], 2) + math.perm(x.shape[0], 3),
    "not a number": lambda x: x * 2 if math.isnan(x.shape[0] / 2) or math.isinf(x.shape[0]) else x,
    "finite": lambda x: x * 2 if math.isfinite(x.shape[0]) else x,
    "root of a tensor": lambda x: x * math.sqrt(x.abs().sum()),
    "tensor that is not a number": lambda x: x * 2 if math.isnan(x.sum()) else x,
    "infinite number of data": lambda x: x * 2 if math.isinf(x.sum().item()) else x,
    "log of data": lambda x: x * math.log(x.abs().sum().item() + 1),
    "root of data": lambda x: x * math.sqrt(x.abs().sum().item()),
}
CHOICES = {
    "close numbers": lambda x: math.isclose(x.shape[0] / 3, 3.0),
    "a power of two": lambda x: x.shape[0] & (x.shape[0] - 1) == 0,
    "an odd number": lambda x: x.shape[0] & 1,
    "common bits": lambda x: x.shape[0] & x.shape[1] == 0,
    "bits of both": lambda x: (x.shape[0] | 1) > 7,
    "other bits": lambda x: (x.shape[0] ^ 1) == 6,
    "shifted": lambda x: (x.shape[0] << 1) > 8,
    "a power of a size": lambda x: 2 ** x.shape[0] > 16,
    "a root": lambda x: x.shape[0] ** 0.5 > 2,
    "a whole root": lambda x: math.sqrt(x.shape[0]).is_integer(),
    "a whole part": lambda x: math.floor(x.shape[0] / 3) == 5,
}
SIZES = ((4, 3), (7, 5), (16, 2), (1, 3), (9, 1))


def pad(x, rows):
    return torch.nn.functional.pad(x, (0, 0, 0, rows - x.shape[0]))


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


@pytest.mark.parametrize("name", CHOICES)
def test_what_chooses_a_branch_is_a_condition(name) -> None:
    """Its program refuses the sizes that take the other branch, and so does its graph where it is asked to check."""
    function = FunctionModule(lambda x: x * 2 if CHOICES[name](x) else x - 1)
    for example in ((6, 3), (9, 1)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = export(function, (torch.randn(example),), dynamic_shapes=({0: "n", 1: "m"},), size_checks=True)
        session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
        for size in SIZES:
            x = torch.randn(size)
            if bool(CHOICES[name](x)) == bool(CHOICES[name](torch.randn(example))):
                torch.testing.assert_close(program(x), function(x))
            else:
                with pytest.raises(InvalidArgumentError, match="captured for"):
                    program(x)
                with pytest.raises(InvalidArgument, match="size_check"):
                    session.run(None, {"x": x.numpy()})


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


@pytest.mark.parametrize("name", ["tensor that is not a number", "infinite number of data"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1.0])
def test_what_data_decides_is_asked_at_run_time(name, value) -> None:
    function = BY_CAPTURE_ONLY[name]
    program = export(FunctionModule(function), (torch.randn(4, 3),), dynamic_shapes=({0: "n", 1: "m"},))
    x = torch.full((5, 2), value)
    torch.testing.assert_close(program(x), function(x), equal_nan=True)


def test_whole_powers_of_two_are_whole() -> None:
    function = BY_CAPTURE_ONLY["next power of two"]
    program = export(FunctionModule(function), (torch.randn(6, 1),), dynamic_shapes=({0: "n"},))
    sizes = [2**power + more for power in range(2, 21) for more in (-1, 0, 1)]
    for size in sizes:
        assert program(torch.zeros(size, 1)).shape[0] == 1 << (size - 1).bit_length()


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
