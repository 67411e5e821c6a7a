"""NumPy's functions of dynamic sizes stay open, with the dtypes that they have, or the export is refused."""

import math
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy import sqrt as root

from onnx_fx_export import InvalidArgumentError, OnnxExporterError, export
from onnx_fx_export.inputs.arguments import FunctionModule

OF_A_SIZE = {
    "sqrt": lambda x: x * np.sqrt(x.shape[1]),
    "sqrt of integers": lambda x: x.long() * np.sqrt(x.shape[0]),
    "sqrt of a product": lambda x: x / np.sqrt(np.prod(x.shape[1:])),
    "imported by name": lambda x: x * root(x.shape[1]),
    "log": lambda x: x * np.log(x.shape[0]),
    "log2": lambda x: x * np.log2(x.shape[0]),
    "exp": lambda x: x * np.exp(-x.shape[0]),
    "cos": lambda x: x * np.cos(x.shape[0]),
    "ceil": lambda x: x[: int(np.ceil(x.shape[0] / 4))],
    "ceil is a float": lambda x: x.long() * np.ceil(x.shape[0] / 4),
    "floor": lambda x: x[: int(np.floor(x.shape[0] * 0.7))],
    "round": lambda x: x[: int(np.round(x.shape[0] / 2))],
    "rint": lambda x: x[: int(np.rint(x.shape[0] / 2))],
    "cast of a number": lambda x: x[: np.ceil(x.shape[0] / 4).astype(int)],
    "maximum": lambda x: x.long() * np.maximum(x.shape[0], 5),
    "maximum of two kinds": lambda x: x.long() * np.maximum(x.shape[0], 2.5),
    "minimum": lambda x: x[: np.minimum(x.shape[0], 5)],
    "clip": lambda x: x * np.clip(x.shape[0], 3, 8),
    "sign": lambda x: x * np.sign(x.shape[0] - 5),
    "gcd": lambda x: x * np.gcd(x.shape[0], 12),
    "isnan": lambda x: x * 2 if np.isnan(x.shape[0] / 2) else x,
    "float": lambda x: x * 2 if isinstance(np.sqrt(x.shape[0]), float) else x,
    "padded": lambda x: F.pad(x, (0, 0, 0, int(np.ceil(x.shape[0] / 8) * 8) - x.shape[0])),
    "power of two": lambda x: F.pad(x, (0, 0, 0, int(2 ** np.ceil(np.log2(x.shape[0]))) - x.shape[0])),
}
OF_SHAPES = {
    "prod": lambda x: x.reshape(int(np.prod(x.shape))),
    "sum": lambda x: x * np.sum(x.shape),
    "sum with a float": lambda x: x.long() * np.sum([x.shape[0], 0.5]),
    "max": lambda x: x.long() * np.max(x.shape),
    "mean": lambda x: x.long() * np.mean(x.shape),
    "cumsum": lambda x: x * int(np.cumsum(x.shape)[-1]),
    "array": lambda x: F.interpolate(x[None, None], size=(np.array(x.shape) * 2).tolist())[0, 0],
    "rounded array": lambda x: F.interpolate(x[None, None], size=np.ceil(np.array(x.shape) * 1.5).astype(int).tolist())[
        0, 0
    ],
    "largest of an array": lambda x: x * int(np.array(x.shape).max()),
    "product of an array": lambda x: x * int(np.array(x.shape).prod()),
    "tensor of an array": lambda x: x.long() * torch.tensor(np.array(x.shape))[0],
    "tensor of rows": lambda x: x * torch.tensor(np.array([[x.shape[0], 1], [2, x.shape[1]]])).sum(0)[0],
    "tensor of doubles": lambda x: x.double() * torch.tensor(np.array([x.shape[0], 0.5]))[0],
    "tensor of two arrays": lambda x: x * torch.tensor(np.stack([np.array(x.shape), np.array(x.shape)])).sum(),
    "memory of an array": lambda x: x * torch.from_numpy(np.array(x.shape))[1],
    "as a tensor": lambda x: x * torch.as_tensor(np.array(x.shape) * 2, dtype=torch.float32)[1],
    "tensor of an element": lambda x: torch.tensor((np.array(x.shape) / 2)[0]),
    "tensor of a mean": lambda x: torch.tensor(np.array(x.shape).mean()),
    "number of a product": lambda x: x * (np.prod(x.shape) / 2),
    "tensor of a double": lambda x: torch.tensor(np.sqrt(x.shape[0])),
    "tensor of a list of doubles": lambda x: torch.tensor([np.sqrt(x.shape[0]), 1.0]),
}
ARRAYS = {
    "arange": lambda x: x + torch.from_numpy(np.arange(x.shape[0]).astype(np.float32))[:, None],
    "causal mask": lambda x: (
        x.sum(1) + torch.from_numpy(np.triu(np.ones((x.shape[0], x.shape[0])), k=1).astype("uint8")).sum(0)
    ),
    "zeros": lambda x: x + torch.from_numpy(np.zeros(x.shape, dtype=np.float32)),
    "eye": lambda x: x[:, :1] + torch.from_numpy(np.eye(x.shape[0], dtype=np.float32)),
}
REFUSED = {
    "computed with a double": lambda x: torch.tensor(np.sqrt(x.shape[0]) * 2),
    "half of a product": lambda x: torch.tensor(np.prod(x.shape) / 2),
    "half of all elements": lambda x: torch.tensor(np.array(x.shape).prod() / 2),
    "class of a number": lambda x: x * 2 if isinstance(np.prod(x.shape), np.integer) else x,
    "single precision": lambda x: x * torch.from_numpy(np.array(x.shape, dtype=np.float32))[0],
    "decimal digits": lambda x: x * np.round(x.shape[0] / 3, 2),
}
SIZES = ((1, 3), (2, 3), (3, 1), (4, 3), (5, 2), (6, 6), (7, 5), (8, 4), (15, 3), (16, 7), (17, 8), (64, 3), (100, 2))


def exported(function):
    return export(FunctionModule(function), (torch.randn(6, 5),), dynamic_shapes=({0: "n", 1: "m"},))


@pytest.mark.parametrize("name", [*OF_A_SIZE, *OF_SHAPES, *ARRAYS])
def test_the_size_stays_open(name) -> None:
    function = {**OF_A_SIZE, **OF_SHAPES, **ARRAYS}[name]
    program = exported(function)
    for size in SIZES:
        x = torch.randn(size)
        torch.testing.assert_close(program(x), function(x))


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_another_number_is_refused(name) -> None:
    with pytest.raises(OnnxExporterError):
        exported(REFUSED[name])


def test_a_double_that_is_lost_is_refused_with_its_line() -> None:
    function = REFUSED["computed with a double"]
    with pytest.raises(OnnxExporterError, match=f"NumPy[^$]*{__file__}:{function.__code__.co_firstlineno}"):
        exported(function)


def test_a_comparison_of_arrays_is_a_condition() -> None:
    def function(x):
        return x * 2 if np.any(np.array(x.shape) > 20) else x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = exported(function)
    for size in SIZES:
        x = torch.randn(size)
        if max(size) > 20:
            with pytest.raises(InvalidArgumentError, match="captured for"):
                program(x)
        else:
            torch.testing.assert_close(program(x), function(x))


def test_the_functions_are_numpys_again() -> None:
    before = {name: getattr(np, name) for name in ("sqrt", "maximum", "array", "prod")}

    def function(x):
        return x * np.sqrt(x.shape[0]) + np.maximum.accumulate([1, 3, 2])[-1]

    x = torch.randn(9, 2)
    torch.testing.assert_close(exported(function)(x), function(x))
    assert {name: getattr(np, name) for name in before} == before


def test_numbers_that_are_known_are_left_to_numpy() -> None:
    table = np.array([[math.sin(place / np.power(10000, 2 * i / 5)) for i in range(5)] for place in range(3)])

    def function(x):
        again = np.array([[math.sin(place / np.power(10000, 2 * i / 5)) for i in range(5)] for place in range(3)])
        return x + torch.from_numpy(again).to(x.dtype)[0]

    program = export(FunctionModule(function), (torch.randn(6, 5),), dynamic_shapes=({0: "n"},))
    for rows in (1, 6, 9):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(program(x), x + torch.from_numpy(table).to(x.dtype)[0])
