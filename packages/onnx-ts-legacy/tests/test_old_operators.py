"""Operators that torch's TorchScript exporter has: of old models, and with counts of dynamic length."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from ts_models import exported, n

import onnx_ts_legacy
from onnx_ts_legacy.errors import DynamicDimensionError

FORMS = pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
X = torch.tensor([[1, 2, 4], [3, 4, 7]])


def columns(x: Tensor, r: Tensor):
    return torch.repeat_interleave(x, r, dim=1)


def flat(x: Tensor, r: Tensor):
    return torch.repeat_interleave(x, r)


def so_many(x: Tensor, r: Tensor):
    return torch.repeat_interleave(x, r, dim=0, output_size=5)


@FORMS
@pytest.mark.parametrize("axes", [{"r": {0: "r"}}, {"x": {0: "m", 1: "n"}, "r": {0: "r"}}], ids=["counts", "both"])
@pytest.mark.parametrize(
    ("function", "counts"),
    [(columns, [[2], [2, 3, 4], [1, 0, 2]]), (flat, [[2], [1, 2, 3, 0, 1, 2]]), (so_many, [[2, 3], [4, 1]])],
    ids=["columns", "flat", "so_many"],
)
def test_counts_of_a_declared_length(function: Callable, counts: list, axes: dict, scripted: bool) -> None:
    model = torch.jit.script(function) if scripted else function
    for first in counts:
        examples = [(X, torch.tensor(given)) for given in (first, *counts)]
        exported(model, *examples, opset=14, input_names=["x", "r"], dynamic_axes=axes)


@pytest.mark.parametrize("opset", [11, 18])
def test_time_batch_channel_convolution(opset: int) -> None:
    examples = [(n(time, batch, 3), n(5, 3, 4), n(4)) for time, batch in ((10, 7), (6, 2))]
    function = lambda x, w, b: torch.conv_tbc(x, w, b, 1)  # noqa: E731
    exported(function, *examples, opset=opset, input_names=["x", "w", "b"], dynamic_axes={"x": [0, 1]})


@pytest.mark.parametrize("opset", [11, 18])
def test_positions_along_a_dynamic_dimension(opset: int) -> None:
    examples = [(n(5, 6),), (n(2, 9),)]
    exported(lambda x: torch._dim_arange(x, 1), *examples, opset=opset, input_names=["x"], dynamic_axes={"x": [0, 1]})


@pytest.mark.parametrize(
    "function",
    [
        lambda e: torch.arange(e, out=torch.tensor([1])),
        lambda e: torch.arange(1, e, 2, out=torch.empty(0)),
        lambda e: torch.zeros(3, out=torch.empty(3)) + e,
        lambda e: torch.linspace(0, 1, 4, out=torch.empty(4)) + e,
        lambda e: torch.full((2,), 2.0, out=torch.empty(2)) + e,
    ],
    ids=["arange", "arange_start", "zeros", "linspace", "full"],
)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_what_fills_a_given_tensor(function: Callable) -> None:
    exported(function, (torch.tensor(8),), (torch.tensor(5),))


def test_chunks_by_a_dynamic_size_are_refused_in_words() -> None:
    with pytest.raises(
        DynamicDimensionError, match="has to be known at export, and here that number follows from a dynamic"
    ):
        onnx_ts_legacy.export(
            lambda x: torch.chunk(x, x.size(0), 1), (n(3, 18),), input_names=["x"], dynamic_axes={"x": [0, 1]}
        )


# ---- strides


def strided(x: Tensor):
    return x.as_strided((3, 2), (1, 3), 1)


def strided_from_the_offset(x: Tensor):
    y = x + 0
    return (
        torch.as_strided(y[1:3], (2, 2), (5, 1)),
        y[1:3].as_strided((2, 2), (5, 1), 1),
        y.t().as_strided((4,), (2,), 0),
    )


def strided_before_a_write(x: Tensor):
    y = x + 0
    part = y.as_strided((2,), (6,), 0)
    y.add_(100.0)
    return part


def strided_scatter(x: Tensor):
    return torch.as_strided_scatter(x, torch.ones(2, 2), (2, 2), (1, 2), 1)


@FORMS
@pytest.mark.parametrize("function", [strided, strided_from_the_offset, strided_before_a_write, strided_scatter])
def test_constant_strides(function: Callable, scripted: bool) -> None:
    model = torch.jit.script(function) if scripted else function
    dynamic = {} if function is strided_from_the_offset else {"x": [0]}
    examples = [(n(4, 5),), *([(n(7, 5),)] if dynamic else [])]
    exported(model, *examples, input_names=["x"], dynamic_axes=dynamic)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.as_strided((x.size(0), 2), (x.size(1), 1)), "strides, which have to be numbers"),
        (lambda x: x[:, 1:].as_strided((2, 2), (5, 1)), "a view of a larger one"),
        (lambda x: (x + 0).as_strided((2,), (6,)).add_(1.0), "made is changed in place"),
    ],
    ids=["dynamic", "gaps", "written"],
)
def test_other_uses_of_strides_are_refused(function: Callable, message: str) -> None:
    axes = [0, 1] if "numbers" in message else []
    with pytest.raises(onnx_ts_legacy.OnnxExporterError, match=message):
        onnx_ts_legacy.export(function, (n(4, 5),), input_names=["x"], dynamic_axes={"x": axes})


# ---- products over axes without a common name


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.tensordot(x, y, 1),
        lambda x, y: torch.tensordot(x, y, ([-1], [0])),
        lambda x, y: torch.tensordot(x, y, 0),
        lambda x, y: torch.inner(x, y.t()),
        lambda x, y: torch.inner(x, y.sum()),
    ],
)
def test_products_over_axes_that_are_declared_apart(function: Callable) -> None:
    examples = [(n(2, 3), n(3, 4)), (n(2, 5), n(5, 4)), (n(2, 1), n(1, 4))]
    exported(function, *examples, input_names=["x", "y"], dynamic_axes={"x": [1], "y": [0]})


def test_products_over_several_axes_and_over_a_single_element() -> None:
    several = lambda x, y: torch.tensordot(x, y, ([1, 2], [0, 1]))  # noqa: E731
    axes = {"x": [1, 2], "y": [0, 1]}
    exported(several, (n(2, 3, 4), n(3, 4, 2)), (n(2, 5, 6), n(5, 6, 2)), input_names=["x", "y"], dynamic_axes=axes)
    exported(lambda x, y: torch.tensordot(x, y, 1), (n(2, 1), n(3, 4)))
    exported(lambda x, y: torch.tensordot(x.long(), y.long(), 1), (n(2, 3) * 5, n(3, 4) * 5))


# ---- what is given as out=


def resized(x: Tensor):
    c, d = torch.empty(0), torch.zeros(3)
    torch.add(x, x, out=c)
    torch.mul(x[0, :1], x[0, :1], out=d)
    return c, d


def of_another_dtype(x: Tensor):
    c = torch.empty(0, dtype=torch.float64)
    torch.add(x, x, out=c)
    return c


def part(x: Tensor):
    c = torch.zeros(2, 5)
    torch.sum(x, 1, out=c[:, 1])
    torch.add(x[:2, :2], 1, out=c[:, 2:4])
    return c


def seen_by_a_view(x: Tensor):
    c = torch.zeros(2, 3)
    v = c[0]
    torch.mul(x, x, out=c)
    torch.sigmoid(c, out=c)
    return v


def joined(x: Tensor):
    c, d = torch.empty(2, 6), torch.empty(2, 2)
    torch.cat([x, x], 1, out=c)
    torch.matmul(x, x.t(), out=d)
    return c, d + 1


@FORMS
@pytest.mark.parametrize("function", [resized, of_another_dtype, part, seen_by_a_view, joined])
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_results_in_a_given_tensor(function: Callable, scripted: bool) -> None:
    exported(torch.jit.script(function) if scripted else function, (n(2, 3),))


def test_several_results_in_given_tensors() -> None:
    def largest(x: Tensor):
        values, places = torch.empty(0), torch.empty(0, dtype=torch.long)
        torch.topk(x, 2, out=(values, places))
        return values, places, *torch.max(x, 1, out=(torch.empty(0), torch.empty(0, dtype=torch.long)))

    exported(largest, (n(2, 3),))


@FORMS
def test_a_given_tensor_gets_the_dynamic_size_of_the_result(scripted: bool) -> None:
    def function(x: Tensor):
        c = torch.empty(2, 3)
        torch.add(x, x, out=c)
        return c

    model = torch.jit.script(function) if scripted else function
    exported(model, (n(2, 3),), (n(5, 3),), input_names=["x"], dynamic_axes={"x": [0]})


def test_a_part_of_a_tensor_whose_size_may_differ_from_the_result_is_refused() -> None:
    def function(x: Tensor):
        c = torch.empty(4, 3)
        torch.add(x, x, out=c[1:3])
        return c

    with pytest.raises(onnx_ts_legacy.OnnxExporterError, match="out= is a part of a tensor"):
        onnx_ts_legacy.export(function, (n(2, 3),), input_names=["x"], dynamic_axes={"x": [0]})


# ---- others


@FORMS
@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
def test_ranges_with_their_end(scripted: bool) -> None:
    def function(x: Tensor):
        return torch.range(0, 5) + x, torch.range(1, 4, 0.5), torch.range(5, 1, -2), torch.range(0, 3, dtype=torch.long)

    exported(torch.jit.script(function) if scripted else function, (n(6),))


def test_a_tensor_of_a_list_of_tensors_is_refused_as_torchscript_does() -> None:
    @torch.jit.script
    def function(x: Tensor):
        return x[torch.where(x > 0)]

    with pytest.raises(RuntimeError, match="Input must be of ints, floats, or bools"):
        function(n(2, 3))
    with pytest.raises(onnx_ts_legacy.OnnxExporterError, match="TorchScript cannot make a tensor from a list"):
        onnx_ts_legacy.export(function, (n(2, 3),))
