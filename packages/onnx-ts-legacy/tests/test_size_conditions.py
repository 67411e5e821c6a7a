"""What a trace or a model's nodes need of dynamic sizes is a condition: listed, recorded, reported and checked."""

from __future__ import annotations

import functools
import json
import math
import operator
import re
import warnings
from collections.abc import Callable, Sequence
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import turned_rows
from torch.utils import _pytree as pytree
from ts_models import exported, scripted_program

import onnx_ts_legacy
from onnx_ts_legacy import OnnxExporterError
from onnx_ts_legacy.errors import CaptureError

T = torch.Tensor


def twice(x: T) -> T:
    y = torch.cat([x, x])
    return y * 2 if y.size(0) > 6 else y


# The model, rows and columns of the example, the condition, and sizes that keep and break it.
BRANCHES: dict[str, tuple[Callable[[T], T], tuple[int, int], str, Any, Any]] = {
    "more": (lambda x: x * 2 if x.size(0) > 3 else x, (5, 2), "n >= 4", (7, 2), (2, 2)),
    "less": (lambda x: x * 2 if x.size(0) > 3 else x, (2, 2), "n <= 3", (3, 2), (7, 2)),
    "even": (lambda x: x.view(-1, 2, 2).sum(1) if x.shape[0] % 2 == 0 else x, (4, 2), "n % 2 == 0", (6, 2), (5, 2)),
    "columns": (lambda x: x * 2 if x.shape[1:] == (2,) else x, (4, 2), "k == 2", (6, 2), (4, 3)),
    "rows": (lambda x: x * 2 if x.shape[0] * 2 - 1 >= 11 else x, (6, 2), "n >= 6", (7, 2), (2, 2)),
    "half": (lambda x: x * 2 if x.size(0) / 2 > 1 else x, (4, 2), "n >= 3", (3, 2), (2, 2)),
    "of a result": (twice, (4, 2), "n >= 4", (5, 2), (3, 2)),
    "of the least": (lambda x: x * 2 if min(x.size(0), 5) > 3 else x, (6, 2), "n >= 4", (4, 2), (3, 2)),
    "of the largest": (lambda x: x * 2 if max(x.size(0), 5) >= 7 else x, (6, 2), "n <= 6", (2, 2), (7, 2)),
    "not one": (lambda x: x * 2 if x.size(0) > 1 else x, (4, 2), "n >= 2", (2, 2), (1, 2)),
    "of a result that nobody reads": (
        lambda x: x * 2 if torch.cat([x, x]).size(0) > 6 else x,
        *((4, 2), "n >= 4", (5, 2), (3, 2)),
    ),
    "two parts": (lambda x: list(x.chunk(2)), (4, 2), "n != 1", (7, 2), (1, 2)),
    "three parts": (
        lambda x: sum(part.mean() for part in x.chunk(3)),
        *((6, 2), "(n + 2) // 3 * 2 < n or n == 0", (5, 2), (4, 2)),
    ),
    "parts of a result": (lambda x: list(x.reshape(-1).chunk(2)), (4, 2), "k * n != 1", (7, 2), (1, 1)),
    "strides": (lambda x: x * x.stride(0), (4, 3), "k == 3", (6, 3), (4, 2)),
    "all strides": (lambda x: x * sum(x.t().stride()), (4, 3), "k == 3", (6, 3), (4, 2)),
    "strides of a part": (lambda x: x[:, ::2] * x[:, ::2].stride(0), (4, 3), "k == 3", (6, 3), (4, 4)),
    "truth as a number": (lambda x: x * 2 if (x.size(0) > 2) * 3 - 1 > 0 else x, (4, 2), "n == 4", (4, 3), (5, 2)),
    "truths compared": (lambda x: x if (x.size(0) > 2) == (x.size(0) > 1) else -x, (4, 2), "n == 4", (4, 3), (2, 2)),
    "half for NumPy": (lambda x: x * float(np.float64(x.shape[0] * 0.5)), (4, 2), "0.5 * n == 2.0", (4, 3), (6, 2)),
    "text": (lambda x: x * 2 if str(x.size(0)) == "4" else x, (4, 2), "n == 4", (4, 3), (5, 2)),
}


ORDERS: dict[str, tuple[Callable[[T], T], tuple[int, int], Sequence[tuple[int, int]], Sequence[tuple[int, int]]]] = {
    "turned": (lambda x: x * 2 if x.t().is_contiguous() else x, (4, 3), [(6, 3), (2, 2)], [(4, 1), (1, 3)]),
    "nothing": (lambda x: x.sum(1) * 0 + x.t().is_contiguous(), (4, 3), [(6, 2)], [(4, 0)]),
    "part": (lambda x: x * 2 if x[:, :2].is_contiguous() else x, (4, 3), [(6, 4)], [(4, 2), (1, 4)]),
    "made by a size": (lambda x: x * 2 if x[:, :2].is_contiguous() else x, (4, 2), [(4, 2)], [(4, 5)]),
    "turned copy": (lambda x: x * x.t().contiguous().stride(0), (3, 4), [(3, 7)], [(3, 1), (4, 4), (3, 0)]),
    "always": (lambda x: x * 2 if x.is_contiguous() else x, (4, 2), [(4, 2), (1, 1), (6, 3)], []),
}


@pytest.mark.parametrize("case", ORDERS)
@pytest.mark.filterwarnings("ignore:The model is right for only some")
def test_the_order_in_memory_is_a_condition(case: str) -> None:
    model, example, right, wrong = ORDERS[case]
    dims = {"x": {0: "n", 1: "k"}}
    program = onnx_ts_legacy.export(model, (torch.randn(example),), input_names=["x"], dynamic_axes=dims)

    for sizes in right:
        x = torch.randn(sizes)
        torch.testing.assert_close(program(x)[0], model(x))
    for sizes in wrong:
        with pytest.raises(OnnxExporterError, match="captured for"):
            program(torch.randn(sizes))


def in_order(x: torch.Tensor) -> torch.Tensor:
    y = x.t()
    if not y.is_contiguous():
        y = y.contiguous()
    return y.view(-1) + 1


def test_an_order_that_makes_no_difference_is_no_condition(recwarn: pytest.WarningsRecorder) -> None:
    others = [(torch.randn(sizes),) for sizes in ((1, 3), (4, 1), (1, 1), (5, 2))]
    exported(in_order, (torch.randn(4, 3),), *others, dynamic_axes={"x": {0: "n", 1: "k"}})
    assert [str(warning.message) for warning in recwarn] == []


OF_MEMORY = (
    lambda x: x * x.untyped_storage().nbytes(),
    lambda x: x * len(x.untyped_storage()),
    lambda x: x * x[1:].storage().size(),
)


@pytest.mark.parametrize("read", [*OF_MEMORY, lambda x: x * x[1:].storage_offset()])
@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_how_a_tensor_of_dynamic_size_lies_in_memory_is_refused_with_the_line(read: Callable[[T], T]) -> None:
    line = f"{__file__}:{read.__code__.co_firstlineno}"
    with pytest.raises(CaptureError, match=rf"a size that is declared dynamic.*storage.*{line}"):
        onnx_ts_legacy.export(read, (torch.randn(4, 3),), input_names=["x"], dynamic_axes={"x": {1: "k"}})


def test_the_size_of_a_storage_is_warned_of_with_its_line() -> None:
    for read in OF_MEMORY:
        with pytest.warns(torch.jit.TracerWarning, match="storage is a Python value") as caught:
            onnx_ts_legacy.export(read, (torch.randn(4, 3),))
        places = [(w.filename, w.lineno) for w in caught if "storage is a Python value" in str(w.message)]
        assert places == [(__file__, read.__code__.co_firstlineno)]


@pytest.mark.parametrize("case", BRANCHES)
def test_a_branch_on_a_size_is_a_condition_of_a_traced_program(case: str) -> None:
    model, example, condition, right, wrong = BRANCHES[case]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = onnx_ts_legacy.export(
            model, (torch.randn(example),), input_names=["x"], dynamic_axes={"x": {0: "n", 1: "k"}}
        )
    assert condition in program.constraints.conditions
    assert condition in json.loads(program.model.metadata_props["onnxops.size_constraints"])
    texts = [str(each.message) for each in caught if not issubclass(each.category, DeprecationWarning)]
    assert len(texts) == 1
    assert f"only some of the declared sizes: {condition}" in texts[0]
    x = torch.randn(right)
    torch.testing.assert_close(program(x), pytree.tree_leaves(model(x)))
    with pytest.raises(OnnxExporterError, match=f"captured for {re.escape(condition)}"):
        program(torch.randn(wrong))


def beside_a_slice(x: T) -> T:
    n = x.size(0)
    y = x[:n] + x[0:n]
    return y + len(range(n))


class Counting(torch.nn.Module):
    def forward(self, x: T) -> T:
        return x * operator.index(x.size(0))


# Each needs exactly the four rows of the example, unless a condition says otherwise.
FIXED: dict[str, Callable[[T], T]] = {
    "root of a tensor": lambda x: x * math.ceil(torch.as_tensor(x.size(0)).float().sqrt().exp()),
    "range": lambda x: sum((x[i] for i in range(x.size(0))), torch.zeros(2)),
    "range of len": lambda x: sum((x[i] for i in range(len(x))), torch.zeros(2)),
    "range of a part": lambda x: sum((x[i] for i in range(1, x.size(0) - 1)), torch.zeros(2)),
    "list": lambda x: torch.stack([x[0]] * x.size(0)),
    "tensor of a list": lambda x: torch.tensor([1.0] * x.size(0)) + x.sum(),
    "slice of a list": lambda x: [x, x * 2, x * 3, x * 4, x * 5][: x.size(0)][-1],
    "item of a list": lambda x: [x, x * 2, x * 3, x * 4, x * 5][x.size(0)],
    "key": lambda x: x * {4: 2}.get(int(x.shape[0]), 3),
    "key that is a size": lambda x: x * {4: 2}.get(x.shape[0], 3),
    "key that is computed": lambda x: x * {8: 2}.get(x.shape[0] * 2, 3),
    "member of a set": lambda x: x * (2 if x.shape[0] in {4, 5} else 3),
    "key that is missing": lambda x: x * {5: 2}.get(x.shape[0], 3),
    "size of a result that nobody reads": lambda x: x * sum(range(torch.cat([x, x])[1:].shape[0])),
    "in a model with scripts": torch.nn.Sequential(torch.jit.script(torch.nn.Identity()), Counting()),
    "text": lambda x: x * int(f"{x.shape[0]}"),
    "infinite number": lambda x: x + (1 if float(np.float64(math.inf * x.shape[0])) > 0 else 2),
    "NumPy product": lambda x: x * float(np.prod(x.shape)),
    "NumPy integer": lambda x: x * int(np.int64(x.shape[0])),
    "beside a slice": beside_a_slice,
}


def through_fx(*args: Any, **options: Any) -> Any:
    return pytest.importorskip("onnx_fx_export").export(*args, **options, dynamo=False)


@pytest.mark.parametrize("export", [onnx_ts_legacy.export, through_fx], ids=["ts", "fx"])
@pytest.mark.parametrize("case", FIXED)
def test_a_size_that_python_takes_as_a_number_is_a_condition(case: str, export: Callable[..., Any]) -> None:
    model = FIXED[case]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = export(model, (torch.randn(4, 2),), input_names=["x"], dynamic_axes={"x": {0: "n"}})
    assert program.constraints.conditions == ("n == 4",)
    assert json.loads(program.model.metadata_props["onnxops.size_constraints"]) == ["n == 4"]
    texts = [str(each.message) for each in caught if not issubclass(each.category, DeprecationWarning)]
    assert len(texts) == 1
    first = (Counting.forward if isinstance(model, torch.nn.Module) else model).__code__.co_firstlineno
    (line,) = re.findall(r"n == 4 \(at .*test_size_conditions\.py:(\d+)\)", texts[0])
    assert first <= int(line) <= first + 3
    x = torch.randn(4, 2)
    torch.testing.assert_close(pytree.tree_leaves(program(x))[0], model(x))
    for rows in (1, 3, 5):
        with pytest.raises(OnnxExporterError, match="captured for n == 4"):
            program(torch.randn(rows, 2))


@pytest.mark.parametrize("case", FIXED)
def test_a_static_size_that_python_takes_as_a_number_is_no_news(case: str, recwarn: pytest.WarningsRecorder) -> None:
    program = onnx_ts_legacy.export(FIXED[case], (torch.randn(4, 2),))
    assert program.constraints.conditions == ()
    assert [each for each in recwarn if "integer" in str(each.message) or "float" in str(each.message)] == []


def test_a_number_of_two_sizes_keeps_its_line() -> None:
    with pytest.warns(UserWarning, match=r"test_size_conditions.py:") as caught:
        program = onnx_ts_legacy.export(
            lambda x: x * operator.index(x.size(0) + x.size(1)),
            (torch.randn(4, 2),),
            input_names=["x"],
            dynamic_axes={"x": {0: "n", 1: "k"}},
        )
    assert len([each for each in caught if "only some of the declared sizes" in str(each.message)]) == 1
    torch.testing.assert_close(program(torch.ones(3, 3))[0], torch.full((3, 3), 6.0))
    with pytest.raises(OnnxExporterError, match="captured for"):
        program(torch.ones(3, 4))


def test_a_branch_on_two_sizes_is_told_of_with_its_line() -> None:
    def model(x: T, y: T) -> T:
        return x + y if x.size(0) == y.size(0) else y

    axes = {"x": {0: "n"}, "y": {0: "m"}}
    with pytest.warns(UserWarning, match=r"n == m|m == n") as caught:
        program = onnx_ts_legacy.export(
            model, (torch.randn(4), torch.randn(4)), input_names=["x", "y"], dynamic_axes=axes
        )
    assert "test_size_conditions.py:" in str(caught[0].message)
    torch.testing.assert_close(program(torch.ones(3), torch.ones(3))[0], torch.full((3,), 2.0))
    with pytest.raises(OnnxExporterError, match="captured for"):
        program(torch.randn(4), torch.randn(3))


# Each would be kept as the data of the example decides it.
OF_DATA: dict[str, Callable[[T], Any]] = {
    "branch": lambda x: x[x > 0] * 2 if x[x > 0].size(0) > 1 else x,
    "branch of a result that nobody reads": lambda x: x * 2 if (x > 0).nonzero().numel() > 1 else x,
    "number": lambda x: x * operator.index(x[x > 0].size(0)),
    "loop": lambda x: sum(x * i for i in range(x[x > 0].size(0))),
    "key": lambda x: x * {4: 2}.get(x[x > 0].shape[0], 3),
    "parts": lambda x: list(x[x > 0].chunk(2)),
}


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("holds_script", [False, True])
@pytest.mark.parametrize("case", OF_DATA)
def test_a_size_that_data_decides_is_refused(case: str, holds_script: bool) -> None:
    function = OF_DATA[case]

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.jit.script(torch.nn.Identity()) if holds_script else torch.nn.Identity()

        def forward(self, x: T) -> Any:
            return function(self.first(x))

    with pytest.raises(OnnxExporterError, match="data decides") as caught:
        onnx_ts_legacy.export(Model(), (torch.ones(4),), input_names=["x"], dynamic_axes={"x": {0: "n"}})
    assert f"{__file__}:{function.__code__.co_firstlineno}" in str(caught.value)
    assert "torch.jit.script" in str(caught.value)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_what_is_printed_needs_no_condition(capsys: pytest.CaptureFixture[str]) -> None:
    def model(x: T) -> T:
        print(x.shape, x.size(0), x[x > 0])
        return x * 2

    program = onnx_ts_legacy.export(model, (torch.ones(4),), input_names=["x"], dynamic_axes={"x": {0: "n"}})
    assert program.constraints.conditions == ()
    torch.testing.assert_close(program(torch.ones(3))[0], torch.full((3,), 2.0))


@pytest.mark.parametrize("chunks", [2, 3, 5])
def test_any_number_of_rows_is_cut_into_as_many_parts_as_torch_does_or_refused(chunks: int) -> None:
    def model(x: T) -> list[T]:
        return list(x.chunk(chunks))

    program = onnx_ts_legacy.export(
        model, (torch.randn(2 * chunks, 2),), input_names=["x"], dynamic_axes={"x": {0: "n"}}
    )
    for rows in range(14):
        x = torch.randn(rows, 2)
        if len(model(x)) == chunks:
            torch.testing.assert_close(program(x), model(x))
        else:
            with pytest.raises(OnnxExporterError, match="captured for"):
                program(x)


def test_a_branch_on_a_static_size_is_no_news(recwarn: pytest.WarningsRecorder) -> None:
    program = onnx_ts_legacy.export(lambda x: x * 2 if x.size(0) > 3 else x, (torch.ones(4),))
    assert program.constraints.conditions == ()
    assert [each for each in recwarn if not issubclass(each.category, DeprecationWarning)] == []


def test_a_squeezed_dimension_is_not_one() -> None:
    with pytest.warns(UserWarning, match=r"squeezed at .*test_size_conditions.py:\d+. The program refuses its size 1"):
        program = onnx_ts_legacy.export(
            lambda x: x.squeeze(0) * 2, (torch.ones(2, 3),), input_names=["x"], dynamic_axes={"x": {0: "n"}}
        )
    torch.testing.assert_close(program(torch.ones(4, 3))[0], torch.full((4, 3), 2.0))
    with pytest.raises(OnnxExporterError, match="n != 1"):
        program(torch.ones(1, 3))


class Step(torch.nn.Module):
    def forward(self, x: T, past: T, mask: T) -> T:
        keys = torch.cat([past, x], 1)[:, None]
        return torch.nn.functional.scaled_dot_product_attention(x[:, None], keys, keys, mask[:, None, None].bool())


@pytest.mark.parametrize(("new", "old"), [(1, 5), (1, 0), (3, 0), (3, 5)])
def test_a_decoder_is_exported_with_any_step_as_example(new: int, old: int) -> None:
    def arguments(batch: int, new: int, old: int) -> tuple[T, ...]:
        return torch.randn(batch, new, 4), torch.randn(batch, old, 4), torch.ones(batch, new + old)

    dims = ({0: "b", 1: "t"}, {0: "b", 1: "p"}, {0: "b", 1: "total"})
    program = onnx_ts_legacy.export(Step(), arguments(2, new, old), dynamic_shapes=dims)
    for sizes in [(1, 1, 0), (2, 1, 7), (2, 6, 0), (3, 2, 2)]:
        given = arguments(*sizes)
        torch.testing.assert_close(program(*given)[0], Step()(*given))


class Squeezing(torch.nn.Module):
    def forward(self, x: T) -> T:
        return x.squeeze(0) * 2


class Joining(torch.nn.Module):
    def forward(self, x: T) -> T:
        return x.reshape(-1, 4)


def test_a_size_that_was_rounded_down_before_need_be_no_multiple() -> None:
    def pooled(x: T) -> T:
        half = torch.nn.functional.max_pool1d(x.t()[None], 2)[0]
        return torch.cat([half, half]).reshape(-1, 4)

    program = onnx_ts_legacy.export(pooled, (torch.randn(6, 2),), dynamic_shapes=({0: "n"},))
    assert program.constraints.conditions == ()
    for rows in (2, 4, 7):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(program(x)[0], pooled(x))


OPEN: dict[str, Callable[[T], T]] = {
    "quotient and remainder": lambda x: x * divmod(x.size(0), 4)[0] + divmod(x.size(0) * 3, 4)[1],
    "divided by a size": lambda x: x * divmod(17, x.size(0))[0] + divmod(17.5, x.size(0))[1],
    "rounded": lambda x: x.new_ones(round(x.size(0) / 3)) * round(x.size(0) / 2),
    "tensor of numbers": lambda x: x * torch.tensor([x.shape[0], 1.5]) + torch.tensor(x.shape),
    "tensor of computed numbers": lambda x: x * torch.tensor([[math.sqrt(x.shape[0]), 1], [2, x.shape[0] / 2]]).sum(),
    "tensor of a dtype": lambda x: x * torch.as_tensor([x.shape[0], 0.5], dtype=torch.float16) + (x.shape[0] > 2),
    "least": lambda x: x[: min(x.size(0), 4)] * min(8, x.size(0) // 2),
    "largest": lambda x: x.new_zeros(max(x.size(0), 4)) + max(x.shape),
    "extremes of three": lambda x: x * min(x.size(0), 9, x.size(1) * 3) + max([x.size(0), x.size(0) // 2 + 4, 6]),
    "extremes of quotients": lambda x: x * min(x.size(0) / 3, 1.5) + max(4.5, x.size(0) / 2),
    "length": lambda x: x[: len(x) // 2] * len(x) + len(torch.cat([x, x])) + min(len(x), 9),
    "functions imported by name": lambda x: x * sqrt(x.size(0)) + ceil(x.size(0) / 3),
    "rounded up and down": lambda x: x.new_ones(math.ceil(x.size(0) * 1.1)) * math.floor(x.size(0) * 0.29),
    "part of a function": functools.partial(lambda y, x: x * len(x) * y, 2.0),
    "rounded toward zero": lambda x: x * math.trunc(x.size(0) * -0.29) + math.ceil(x.size(0)),
    "integer": lambda x: x * int(x.size(0)) + (int(x.size(0)) + len(x)) - int(x.numel()),
    "real": lambda x: x * float(x.shape[0]) + float(x.size(0) / 3) + torch.tensor(float(x.size(0))),
    "integer of a real": lambda x: x.new_ones(int(x.size(0) * 0.29) + 1) * int(-1.5 * x.size(0)),
    "classes": lambda x: x * (int(x.size(0)) if int is int and isinstance(x.size(0), int) else 3),
    "remainder of reals": lambda x: x.sum() + (x.size(0) * 0.1) % 0.3,
    "quotient of reals": lambda x: x.sum() + (x.size(0) * 0.1) // 0.1 + divmod(0.1 * x.size(0), -0.1)[0],
    "rounded product": lambda x: x.new_ones(round(x.size(0) * 0.35) + 1),
    "extremes of what is made on the way": lambda x: x * max(n + 1 for n in (*x.shape, 6)),
    "checked": lambda x: x * 2 if min(x.shape) > 0 and min(x.size(0), 5) < 6 else x,
    "in a file that another one reads": lambda x: turned_rows.turned(x),
    "padded to a multiple": lambda x: torch.nn.functional.pad(x, (0, 0, 0, 4 - divmod(x.size(0), 4)[1])),
}


@pytest.mark.parametrize("package", ["onnx_ts_legacy", "onnx_fx_export"])
@pytest.mark.parametrize("case", OPEN)
def test_python_functions_of_sizes_hold_for_every_size(case: str, package: str) -> None:
    function = OPEN[case]
    program = pytest.importorskip(package).export(function, (torch.randn(6, 2),), dynamic_shapes=({0: "n"},))
    for rows in (2, 3, 5, 7, 8, 15, 17, 90):
        x = torch.randn(rows, 2)
        result = program(x)
        torch.testing.assert_close(result if isinstance(result, torch.Tensor) else result[0], function(x))


def test_a_trace_records_lengths_that_data_decides_and_common_divisors() -> None:
    def function(x: T) -> tuple[T, T]:
        found = len(x[x > 0]) + int(x[x > 0].size(0)) - len(torch.arange(x.flatten().argmax()))
        return x * found, x / math.gcd(x.size(0), 4) + math.gcd(6, x.size(0))

    others = [(torch.randn(rows, 2),) for rows in (2, 3, 12)]
    exported(function, (torch.randn(6, 2),), *others, dynamic_axes={"x": {0: "n"}})


def written_in_parts(x: T) -> T:
    x = x.clone()
    first, second = x.split(3)
    first.add_(1.0)
    second[0] = 5.0
    return x


# Functions of tensors that have five rows in the example, and how many of other numbers of rows give as many parts.
PARTS: dict[str, tuple[Callable[[T], T], set[int]]] = {
    "parts of one size": (lambda x: torch.cat(x.split(2)[::-1]), {5, 6}),
    "halves": (lambda x: torch.cat(x.split((x.shape[0] + 1) // 2)[::-1]), {2, 3, 4, 5, 6, 7, 8, 9}),
    "a half twice and a row": (lambda x: torch.cat(torch.split(x, x.shape[0] // 2, dim=0)[::-1]), {3, 5, 7, 9}),
    "written": (written_in_parts, {4, 5, 6}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", PARTS)
def test_a_trace_is_right_where_there_are_as_many_parts(case: str) -> None:
    function, fitting = PARTS[case]
    program = onnx_ts_legacy.export(function, (torch.randn(5, 2),), dynamic_shapes=({0: "n"},))

    for rows in range(1, 10):
        x = torch.randn(rows, 2)
        if rows in fitting:
            torch.testing.assert_close(program(x)[0], function(x))
        else:
            with pytest.raises(OnnxExporterError, match="captured for"):
                program(x)


def test_a_script_that_unpacks_parts_holds_where_there_are_as_many(tmp_path: Path) -> None:
    model = scripted_program(tmp_path, "x", "a, b = x.split(3)\nreturn a[0] - b[0]")
    program = onnx_ts_legacy.export(model, (torch.randn(5, 2),), dynamic_shapes=({0: "n"},))

    for rows in (4, 6):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(program(x)[0], x[0] - x[3])
    for rows in (3, 7):
        with pytest.raises(OnnxExporterError, match="captured for"):
            program(torch.randn(rows, 2))


POWERS: dict[str, Callable[[T], T]] = {
    "power": lambda x: x * 2 ** (x.shape[0] - 3),
    "power of a size": lambda x: x * x.shape[1] ** (x.shape[0] - 3),
    "pow": lambda x: x * pow(3, 2 * x.shape[0] - 5),
}


@pytest.mark.parametrize("package", ["onnx_ts_legacy", "onnx_fx_export"])
@pytest.mark.parametrize("case", POWERS)
@pytest.mark.filterwarnings("ignore")
def test_an_integer_is_not_raised_to_a_negative_power(case: str, package: str) -> None:
    function = POWERS[case]
    program = pytest.importorskip(package).export(function, (torch.randn(6, 2),), dynamic_shapes=({0: "n"},))
    for rows in (3, 4, 7):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(pytree.tree_leaves(program(x))[0], function(x))
    for rows in (1, 2):
        x = torch.randn(rows, 2)
        if (case, package) == ("pow", "onnx_fx_export"):
            # It is captured for fractions as well, which is right for both.
            torch.testing.assert_close(program(x), function(x))
            continue
        with pytest.raises(OnnxExporterError, match="captured for"):
            program(x)


# The function, and rows at which its exponent is not negative.
FRACTIONS: dict[str, tuple[Callable[[T], T], Sequence[int]]] = {
    "two by a size": (lambda x: x * 2 ** -x.shape[0], ()),
    "two by a difference": (lambda x: x * 2 ** (3 - x.shape[0]), (1, 2)),
    "a size": (lambda x: x * x.shape[0] ** -1, ()),
    "a size by a size": (lambda x: x * x.shape[0] ** -x.shape[1], ()),
    "pow": (lambda x: x * pow(10, 2 - x.shape[0]) * 1000, (1, 2)),
}


@pytest.mark.parametrize("case", FRACTIONS)
@pytest.mark.filterwarnings("ignore:The model is right for only some")
def test_an_integer_raised_to_a_negative_power_is_a_fraction(case: str) -> None:
    function, wrong = FRACTIONS[case]
    program = onnx_ts_legacy.export(function, (torch.randn(6, 2),), dynamic_shapes=({0: "n"},))

    for rows in (4, 5, 9):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(program(x)[0], function(x))
    for rows in wrong:
        with pytest.raises(OnnxExporterError, match="captured for"):
            program(torch.randn(rows, 2))


# The model, rows of the example, the condition, and rows that break it.
CHECKED: dict[str, tuple[Callable[[T], T], int, str, int]] = {
    "branch": (lambda x: x * 2 if x.size(0) > 3 else x, 5, "n >= 4", 2),
    "number": (lambda x: x * operator.index(x.size(0)), 4, "n == 4", 5),
    "multiple": (BRANCHES["even"][0], 4, "n % 2 == 0", 5),
    "two rows in one": (lambda x: x.reshape(-1, 4), 4, "n % 2 == 0", 5),
    "two rows in one by a script": (torch.jit.script(Joining()), 4, "n % 2 == 0", 5),
    "shuffled": (lambda x: torch.pixel_shuffle(x[None, :, :, None], 2), 8, "n % 4 == 0", 6),
    "squeezed": (Squeezing(), 4, "n != 1", 1),
    "squeezed by a script": (torch.jit.script(Squeezing()), 4, "n != 1", 1),
}


@pytest.mark.parametrize("export", [onnx_ts_legacy.export, through_fx], ids=["ts", "fx"])
@pytest.mark.parametrize("case", CHECKED)
def test_the_graph_refuses_what_breaks_a_condition_if_it_is_asked_to(case: str, export: Callable[..., Any]) -> None:
    model, rows, condition, wrong = CHECKED[case]
    dims = {"x": {0: "n"}}
    program = export(model, (torch.randn(rows, 2),), input_names=["x"], dynamic_axes=dims, size_checks=True)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    x = torch.randn(rows, 2)
    torch.testing.assert_close(torch.from_numpy(session.run(None, {"x": x.numpy()})[0]), model(x))
    with pytest.raises(Exception, match=f"size_check: {condition}"):
        session.run(None, {"x": np.zeros((wrong, 2), np.float32)})


@torch.jit.script
def added_where_it_is_one_row(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    if s.size(0) == 1:
        y = x + s
    else:
        y = x
    return y


@torch.jit.script
def added_unless_it_has_rows(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    if s.size(0) != 1:
        y = x * s.mean()
    elif s.size(1) == 1:
        y = x - s
    else:
        y = x + s.sum(1)
    return y


@pytest.mark.parametrize("rows", [1, 2], ids=["one in the example", "two in the example"])
@pytest.mark.parametrize(
    ("function", "axes", "shapes"),
    [
        (added_where_it_is_one_row, [0], [(1, 3), (2, 3), (4, 3)]),
        (added_unless_it_has_rows, [0, 1], [(1, 1), (1, 3), (4, 1), (2, 5)]),
    ],
)
def test_a_branch_on_a_size_knows_the_size(
    function: Any, axes: list[int], shapes: list[tuple[int, int]], rows: int
) -> None:
    x = torch.randn(2, 3)
    example = (x, torch.randn(rows, 3))
    program = onnx_ts_legacy.export(function, example, input_names=["x", "s"], dynamic_axes={"s": axes})

    for shape in shapes:
        s = torch.randn(shape)
        torch.testing.assert_close(program(x, s)[0], function(x, s))
