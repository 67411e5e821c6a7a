"""Parameters of scripted programs that are numbers become inputs; those of traced ones are constants."""

from __future__ import annotations

import warnings
from typing import Dict, List, Optional, Tuple  # noqa: UP035  TorchScript reads these annotations

import pytest
import torch
from torch import Tensor
from ts_models import exported

import onnx_ts_legacy
from onnx_ts_legacy.errors import OnnxExporterError

X, Y = torch.randn(2, 3), torch.randn(2, 3)


@torch.jit.script
def scaled(x, n: int, f: float, b: bool):
    if b:
        return x * n + f
    return x


@torch.jit.script
def of_list(x, n: List[int], o: Optional[int] = None):  # noqa: UP006, UP045
    y = x * n[0] + n[1]
    if o is not None:
        y = y * o
    return y


@torch.jit.script
def of_tuple(x, n: Tuple[int, Tensor], k: Dict[str, float]):  # noqa: UP006
    return x * n[0] + n[1] - k["a"]


@torch.jit.script
def loop(x, n: int):
    for i in range(n):
        x = x + i
    return x


@torch.jit.script
def reshaped(x, n: int = 2):
    return x.reshape(n, -1)[:, :n]


CASES = {
    "kinds": (scaled, [(X, 3, 2.5, True), (Y, -5, -1.5, True), (Y, 5, 1.5, False)], ["x", "n", "f", "b"]),
    "list": (of_list, [(X, [1, 2]), (Y, [4, 5])], ["x", "n.0", "n.1"]),
    "optional": (of_list, [(X, [1, 2], 3), (Y, [4, 5], 7)], ["x", "n.0", "n.1", "o"]),
    "optional none": (of_list, [(X, [1, 2], None), (Y, [4, 5], None)], ["x", "n.0", "n.1"]),
    "nested": (of_tuple, [(X, (3, X), {"a": 2.0}), (Y, (5, X), {"a": 7.0})], ["x", "n.0", "n.1", "k.a"]),
    "loop": (loop, [(X, 3), (Y, 5), (Y, 0)], ["x", "n"]),
    "sizes": (reshaped, [(X, 3), (Y, 2), (Y, 1)], ["x", "n"]),
    "default": (reshaped, [(X,), (Y,)], ["x"]),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_of_scripts_are_inputs(name: str) -> None:
    model, examples, names = CASES[name]
    # A dict at the end would hold keyword arguments.
    program = exported(model, *examples) if name != "nested" else onnx_ts_legacy.export(model, (*examples[0], {}))
    assert program.input_names == names
    for example in examples:
        torch.testing.assert_close(program(*example)[0], model(*example))


def test_numbers_have_the_dtypes_that_torch_gives_them() -> None:
    program = onnx_ts_legacy.export(scaled, (X, 3, 2.5, True), input_names=["x", "count"])
    kinds = {value.name: (value.dtype.name, value.shape.rank()) for value in program.model.graph.inputs}
    assert kinds == {"x": ("FLOAT", 2), "count": ("INT64", 0), "f": ("DOUBLE", 0), "b": ("BOOL", 0)}


def test_the_example_may_give_numbers_as_tensors() -> None:
    example = (X, torch.tensor(3), torch.tensor(2.5), torch.tensor(True))
    program = onnx_ts_legacy.export(scaled, example, verify=True)
    torch.testing.assert_close(program(Y, 5, -1.5, True)[0], scaled(Y, 5, -1.5, True))
    with pytest.raises(OnnxExporterError, match=r"'n' of .* is a int"):
        onnx_ts_legacy.export(scaled, (X, torch.tensor(2.5), 2.5, True))


def test_a_number_that_an_operator_needs_becomes_a_constant_with_a_warning() -> None:
    @torch.jit.script
    def pooled(x, size: int, factor: float):
        return torch.nn.functional.avg_pool1d(x, size) * factor

    x = torch.randn(1, 2, 6)
    for size in (2, torch.tensor(2)):
        with pytest.warns(UserWarning, match="size of the example becomes a constant"):
            program = onnx_ts_legacy.export(pooled, (x, size, 3.0))
        assert program.input_names == ["x", "factor"]
        for same in (2, torch.tensor(2)):
            torch.testing.assert_close(program(x, same, 5.0)[0], pooled(x, 2, 5.0))
        for other in (3, torch.tensor(3)):
            with pytest.raises(OnnxExporterError, match=r"exported for 2 where this call has (tensor\()?3"):
                program(x, other, 5.0)


def test_names_and_dimensions_reach_the_inputs_beside_numbers() -> None:
    @torch.jit.script
    def model(x, n: int, y, z):
        return x * n + y - z * 2

    shapes = {name: {0: "rows"} for name in ("x", "y", "z")}
    program = onnx_ts_legacy.export(model, (X, 3, X, X), input_names=["a", "number", "b"], dynamic_shapes=shapes)
    assert program.input_names == ["a", "number", "b", "z"]
    assert all(len(program.model.graph.inputs[place].shape or ()) == 2 for place in (0, 2, 3))
    call = torch.randn(5, 3), 4, torch.randn(5, 3), torch.randn(5, 3)
    torch.testing.assert_close(program(*call), [model(*call)])


def test_names_stay_with_their_inputs_where_a_number_becomes_a_constant() -> None:
    @torch.jit.script
    def model(x, n: int, y):
        return torch.nn.functional.glu(x, n) * 2 + y

    x, y = torch.randn(2, 4), torch.randn(2, 2)
    with pytest.warns(UserWarning, match="n of the example becomes a constant"):
        program = onnx_ts_legacy.export(model, (x, 1, y), input_names=["a", "axis", "b"])
    assert program.input_names == ["a", "b"]


def test_numbers_of_traces_are_constants_that_one_warning_names() -> None:
    def model(x, n, flag=False, *, f=2.0):
        return x * n + f if flag else x

    with pytest.warns(UserWarning, match=r"n=3, flag=True, f=0.5 of the example as constants") as found:
        program = onnx_ts_legacy.export(model, (X, 3), kwargs={"f": 0.5, "flag": True})
    assert program.input_names == ["x"]
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        onnx_ts_legacy.export(model, (X, torch.tensor(3)))
