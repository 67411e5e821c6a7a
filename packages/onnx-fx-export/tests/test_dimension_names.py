"""Whatever the user calls a dimension, the conditions on its size are checked when the program is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import onnx_ts_legacy
from onnx_fx_export import InvalidArgumentError, export

EXPORTERS = pytest.mark.parametrize("exporter", [export, onnx_ts_legacy.export], ids=["fx", "ts"])
X = torch.randn(6, 4)


def bounded(x: torch.Tensor) -> torch.Tensor:
    return x * (2 if x.shape[0] > 5 else 3)


class Flat(torch.nn.Module):
    def forward(self, x):
        return bounded(x)


class Several(torch.nn.Module):
    def forward(self, *tensors):
        return bounded(tensors[0])


class Inside(torch.nn.Module):
    def forward(self, held):
        return bounded(held["a-b"])


def check(program: Any, call: Callable[[torch.Tensor], tuple[Any, ...]]) -> None:
    for rows in (6, 8):
        x = torch.randn(rows, 4)
        result = program(*call(x))
        torch.testing.assert_close(result[0] if isinstance(result, list) else result, bounded(x))
    with pytest.raises(InvalidArgumentError, match="captured for"):
        program(*call(torch.randn(3, 4)))


NAMES = ["batch size", "batch-size", "seq.len", "class", "1st", "None", "True", "a/b", "a*b", "", "a,b", "'q'", "größe"]


@EXPORTERS
@pytest.mark.parametrize("declaration", ["dynamic_shapes", "dynamic_axes"])
@pytest.mark.parametrize("name", NAMES)
def test_any_text_names_a_dimension(name: str, declaration: str, exporter: Any) -> None:
    program = exporter(Flat(), (X,), input_names=["x"], **{declaration: {"x": {0: name}}})
    check(program, lambda x: (x,))
    assert str(program.model.graph.inputs[0].shape[0]).isidentifier()


@EXPORTERS
@pytest.mark.parametrize(
    ("model", "call", "shapes"),
    [
        (Several(), lambda x: (x,), (({0: Dim.DYNAMIC},),)),
        (Inside(), lambda x: ({"a-b": x},), ({"a-b": {0: Dim.DYNAMIC}},)),
    ],
)
def test_dimensions_without_a_name_inside_of_arguments(model: Any, call: Any, shapes: Any, exporter: Any) -> None:
    check(exporter(model, call(X), dynamic_shapes=shapes), call)


@EXPORTERS
def test_axes_without_names_of_an_input_of_any_name(exporter: Any) -> None:
    check(exporter(Flat(), (X,), input_names=["x 0"], dynamic_axes={"x 0": [0]}), lambda x: (x,))


@EXPORTERS
def test_an_output_has_the_dimension_of_its_input(exporter: Any) -> None:
    axes = {"x": {0: "batch size"}, "y": {0: "batch size"}}
    program = exporter(Flat(), (X,), input_names=["x"], output_names=["y"], dynamic_axes=axes)
    graph = program.model.graph
    assert str(graph.inputs[0].shape[0]) == str(graph.outputs[0].shape[0]) == "batch_size"


class Products(torch.nn.Module):
    def forward(self, x, y):
        return x.sum(0) * y.sum(0), x * 2, y * 3


@EXPORTERS
@pytest.mark.parametrize("names", [("a b", "a_b"), ("a_b", "a b"), ("a b", "a-b"), ("1n", "dim_1n")])
def test_different_texts_name_different_dimensions(names: tuple[str, str], exporter: Any) -> None:
    axes = {"x": {0: names[0]}, "y": {0: names[1]}, "p": {0: names[0]}, "q": {0: names[1]}}
    program = exporter(
        Products(), (X, X), input_names=["x", "y"], output_names=["s", "p", "q"], dynamic_axes=axes, opset_version=18
    )
    call = torch.randn(6, 4), torch.randn(7, 4)
    torch.testing.assert_close(list(program(*call)), list(Products()(*call)))
    first, second = (str(value.shape[0]) for value in program.model.graph.inputs)
    assert [str(value.shape[0]) for value in program.model.graph.outputs[1:]] == [first, second]
    assert first != second


@EXPORTERS
def test_dimensions_without_names_are_told_apart(exporter: Any) -> None:
    class Nested(torch.nn.Module):
        def forward(self, t, t_0):
            return t[0].sum(0) * t_0.sum(0)

    shapes = {"t": ({0: Dim.DYNAMIC},), "t_0": {0: Dim.DYNAMIC}}
    program = exporter(Nested(), ((X,), X), dynamic_shapes=shapes)
    call = (torch.randn(6, 4),), torch.randn(7, 4)
    result = program(*call)
    torch.testing.assert_close(result[0] if isinstance(result, list) else result, Nested()(*call))
    assert all(str(value.shape[0]).startswith("t_0") for value in program.model.graph.inputs)
