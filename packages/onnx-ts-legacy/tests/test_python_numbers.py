"""What Python does with sizes in a trace: it counts parts, changes numbers, and combines truth values."""

from __future__ import annotations

import collections
import importlib
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, numel
from torch.nn import functional as F
from ts_models import exported

import onnx_ts_legacy
from onnx_ts_legacy.errors import CaptureError, InvalidArgumentError

SIZES = ((4, 3), (7, 5), (1, 1), (2, 9), (8, 2), (3, 3))


def counted(x: Tensor) -> Tensor:
    count = 0
    for _ in x:
        count += 1
    return x * count


def counted_beside_work_that_is_not_used(x: Tensor) -> Tensor:
    rows = []
    for row in x:
        rows.append(row * 2 + 1)
    return x * len(rows)


def unpacked(x: Tensor) -> Tensor:
    _, *others = x
    return x * len(others)


def last_index(x: Tensor) -> Tensor:
    index = 0
    for index, _ in enumerate(x.unbind(1)):
        pass
    return x * index


def without_a_module(x: Tensor) -> Tensor:
    scope: dict[str, Any] = {}
    exec("def function(x): return x * len(x)", scope)
    result: Tensor = scope["function"](x)
    return result


LEN = len
COUNTS: dict[str, Callable[[Tensor], Tensor]] = {
    "loop": counted,
    "work that is not used": counted_beside_work_that_is_not_used,
    "unpacked": unpacked,
    "index": last_index,
    "list": lambda x: x * len(list(x)),
    "deque": lambda x: x * len(collections.deque(x)),
    "zip": lambda x: x * sum(1 for _ in zip(x, x, strict=True)),
    "unbind": lambda x: x * len(x.unbind(0)),
    "torch.unbind": lambda x: x * len(torch.unbind(x, dim=-1)),
    "split": lambda x: x * len(x.split(2)),
    "torch.split": lambda x: x * len(torch.split(x, split_size_or_sections=2, dim=1)),
    "split by a size": lambda x: x * len(x.split(x.size(1))),
    "chunk": lambda x: x * len(x.chunk(3)),
    "another name": lambda x: x * LEN(x),
    "method": lambda x: x * x.__len__(),
    "code without a module": without_a_module,
    "length hint": lambda x: x * operator.length_hint(x),
    "rows of a product": lambda x: x * len((x @ x.T).unbind(1)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", COUNTS)
def test_a_number_of_parts_is_right_or_a_condition(case: str) -> None:
    function = COUNTS[case]
    program = onnx_ts_legacy.export(function, (torch.randn(4, 3),), dynamic_shapes=[{0: "rows", 1: "columns"}])
    refused = 0
    for size in SIZES:
        x = torch.randn(size)
        try:
            (result,) = program(x)
        except InvalidArgumentError:
            refused += 1
        else:
            torch.testing.assert_close(result, function(x))
    assert 0 < refused < len(SIZES)


def test_the_length_is_dynamic_in_functions_that_a_model_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lengths_of_helpers.py").write_text("def longer(x):\n    return x * len(x) + x[: len(x) - 1].sum(0)\n")
    (tmp_path / "model_of_lengths.py").write_text(
        "from lengths_of_helpers import longer\n\n\ndef model(x):\n    return longer(x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model = importlib.import_module("model_of_lengths").model
    program = onnx_ts_legacy.export(model, (torch.randn(4, 3),), input_names=["x"], dynamic_axes={"x": [0]})

    assert program.constraints.conditions == ()
    for rows in (2, 7):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(program(x)[0], model(x))


def in_place(x: Tensor) -> tuple[Tensor, ...]:
    total = kept = x.size(0)
    total *= 2
    total += x.size(1)
    total -= 1
    return x * total, x * kept


def divided(x: Tensor) -> tuple[Tensor, ...]:
    total = kept = x.size(0) * 7
    total //= 2
    total %= 5
    total **= 2
    half = total
    half /= 4
    return x * total, x * kept, x * half


def shifted(x: Tensor) -> tuple[Tensor, ...]:
    bits = kept = x.size(0) * 3
    bits <<= 2
    bits |= 1
    bits ^= 6
    bits &= 31
    bits >>= 1
    return x * bits, x * kept


def in_a_list(x: Tensor) -> tuple[Tensor, ...]:
    sizes = list(x.shape)
    first = sizes[0]
    sizes[0] *= 2
    sizes[1] += first
    return torch.ones(sizes), x * first


class Kept(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        self.rows = x.size(0)
        count = self.rows
        count += 1
        return x * count, x * self.rows


CHANGED: dict[str, Any] = {
    "sums and products": in_place,
    "quotients": divided,
    "bits": shifted,
    "items of a list": in_a_list,
    "an attribute": Kept(),
}


@pytest.mark.parametrize("case", CHANGED)
@pytest.mark.filterwarnings("ignore")
def test_a_number_stays_under_its_other_names(case: str) -> None:
    calls = [(torch.randn(size),) for size in SIZES]
    exported(CHANGED[case], calls[0], *calls[1:], dynamic_axes={"x": {0: "n", 1: "m"}})


def test_a_tensor_is_changed_under_all_its_names() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        total = kept = x.sum()
        total *= 2
        total += x.size(0)
        return total, kept

    exported(function, (torch.randn(4, 3),), (torch.randn(6, 3),), dynamic_axes={"x": {0: "n"}})


TRUTHS: dict[str, Callable[[Tensor], Any]] = {
    "a power of two": lambda x: x.size(0) & (x.size(0) - 1) == 0,
    "no common bits": lambda x: x.size(0) & x.size(1) == 0,
    "bits of both": lambda x: (x.size(0) | 1) > 4,
    "other bits": lambda x: (x.size(0) ^ 1) > 4,
    "shifted to the left": lambda x: 1 << x.size(0) > 20,
    "shifted to the right": lambda x: x.size(0) >> 1 > 1,
    "a square": lambda x: x.size(0) ** 2 > 20,
    "a root": lambda x: x.size(0) ** 0.5 > 2.5,
    "an inverse": lambda x: x.size(0) ** -1 > 0.2,
    "a distance": lambda x: abs(x.size(0) - x.size(1)) < 3,
    "and": lambda x: (x.size(0) > 2) & (x.size(1) > 2),
    "or": lambda x: (x.size(0) > 6) | (x.size(1) > 8),
    "xor": lambda x: (x.size(0) > 2) ^ (x.size(1) > 4),
    "and True": lambda x: (x.size(0) > 2) & True,
    "True and": lambda x: True & (x.size(0) > 2),
    "False or": lambda x: False | (x.size(0) > 2),
    "xor True": lambda x: (x.size(0) > 2) ^ True,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", TRUTHS)
def test_combined_truth_values_are_conditions(case: str) -> None:
    truth = TRUTHS[case]

    def function(x: Tensor) -> Tensor:
        return x + 1 if truth(x) else x - 1

    program = onnx_ts_legacy.export(function, (torch.randn(4, 3),), dynamic_shapes=[{0: "rows", 1: "columns"}])
    answers = []
    for size in SIZES:
        x = torch.randn(size)
        try:
            (result,) = program(x)
        except InvalidArgumentError:
            continue
        torch.testing.assert_close(result, function(x))
        answers.append(size)
    assert len(answers) > 1


ASKED: dict[str, Callable[[Tensor], Tensor]] = {
    "torch.numel": lambda x: x * torch.numel(x),
    "imported by name": lambda x: x * numel(x),
    "of what was found": lambda x: x * numel(x[x > 0]),
    "operator of elements": lambda x: x * torch.ops.aten.numel(x),
    "operator of sizes": lambda x: x * torch.ops.aten.size.int(x, 1),
    "operator of symbols": lambda x: x * torch.ops.aten.sym_size.int(x, 0),
}


@pytest.mark.parametrize("case", ASKED)
def test_functions_give_sizes_that_stay_open(case: str) -> None:
    calls = [(torch.randn(size),) for size in SIZES]
    exported(ASKED[case], calls[0], *calls[1:], dynamic_axes={"x": {0: "n", 1: "m"}})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ask", [torch.is_same_size, Tensor.is_same_size])
def test_whether_sizes_are_the_same_is_a_condition(ask: Callable[[Tensor, Tensor], bool]) -> None:
    def function(x: Tensor) -> Tensor:
        return x * 2 if ask(x, x.T) else x

    program = onnx_ts_legacy.export(function, (torch.randn(4, 3),), dynamic_shapes=[{0: "n", 1: "m"}])
    assert program.constraints.conditions == ("n != m",)


def turned_of_same_size(x: Tensor):
    return x * 2 if x.is_same_size(x.t()) else x


def turned_in_order(x: Tensor):
    return x * 2 if x.t().is_contiguous() else x


def columns_in_order(x: Tensor):
    return x * 2 if (x + 1)[:, :2].is_contiguous() else x


def put_in_order(x: Tensor):
    turned = x.t()
    if not turned.is_contiguous():
        turned = turned.contiguous()
    return turned.view(-1)


@pytest.mark.parametrize("function", [turned_of_same_size, turned_in_order, columns_in_order, put_in_order])
def test_a_script_asks_for_sizes_and_order_of_what_it_is_given(function: Callable[[Tensor], Tensor]) -> None:
    calls = [(torch.randn(size),) for size in (*SIZES, (4, 2), (1, 6))]
    program = exported(torch.jit.script(function), calls[0], *calls[1:], dynamic_axes={"x": {0: "n", 1: "m"}})
    has_branch = "If" in {node.op_type for node in program.model.graph}
    assert has_branch == (function is not put_in_order)


def channels_last(x: Tensor):
    return x * 2 if x.transpose(1, 3).is_contiguous(memory_format=torch.channels_last) else x


def test_truth_values_that_sizes_decide_in_other_operators_are_refused() -> None:
    model, x, axes = torch.jit.script(channels_last), torch.randn(2, 3, 4, 5), {"x": {0: "n", 2: "h"}}
    with pytest.raises(onnx_ts_legacy.OnnxExporterError, match="dynamic sizes may decide the truth value"):
        onnx_ts_legacy.export(model, (x,), input_names=["x"], dynamic_axes=axes)


@pytest.mark.parametrize("dims", [1, 2])
def test_instance_normalization_takes_images_of_any_size(dims: int) -> None:
    model = (nn.InstanceNorm1d, nn.InstanceNorm2d)[dims - 1](3, affine=True)
    sizes = [(2, 3, 4, 6)[: dims + 2], (1, 3, 7, 2)[: dims + 2], (3, 3, 2, 9)[: dims + 2]]
    calls = [(torch.randn(size),) for size in sizes]
    exported(
        model, calls[0], *calls[1:], dynamic_axes={"input": {axis: f"d{axis}" for axis in (0, *range(2, dims + 2))}}
    )


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_recurrence_without_steps_or_rows_is_refused(kind: type[nn.RNNBase], axis: int) -> None:
    """ONNX Runtime ends the process."""
    size = [2, 3, 4]
    program = onnx_ts_legacy.export(kind(4, 5), (torch.randn(size),), dynamic_shapes=[{0: "steps", 1: "rows"}])
    size[axis] = 0

    with pytest.raises(InvalidArgumentError, match=f"{('steps', 'rows')[axis]} >= 1"):
        program(torch.randn(size))
    assert program(torch.randn(5, 1, 4))[0].shape == (5, 1, 5)


def test_a_loop_over_rows_that_are_used_is_refused_or_right() -> None:
    def function(x: Tensor) -> Tensor:
        total = torch.zeros(3)
        for row in x:
            total = total + F.relu(row)
        return total

    with pytest.raises((CaptureError, onnx_ts_legacy.OnnxExporterError), match="how many tensors"):
        onnx_ts_legacy.export(function, (torch.randn(4, 3),), dynamic_shapes=[{0: "rows"}])
