"""Ifs and loops of scripted programs, and what changes inside them."""

from __future__ import annotations

from typing import Dict, Optional  # noqa: UP035  TorchScript reads these annotations

import pytest
import torch
from torch import Tensor
from ts_models import exported, over_opsets, refused_below

import onnx_ts_legacy
from onnx_ts_legacy.errors import OnnxExporterError

X = {"x": {0: "n"}}


@torch.jit.script
def choose(x: Tensor) -> Tensor:
    if bool(x.sum() > 0):
        y = x * 2
    else:
        y = x - 1
    return y + 1


@torch.jit.script
def nested(x: Tensor) -> Tensor:
    if bool(x.sum() > 0):
        if bool(x.max() > 2):
            return x * 2
        return x + 5
    return -x


@torch.jit.script
def by_size(x: Tensor) -> Tensor:
    if x.size(0) > 3:
        return x[:3]
    return torch.cat([x, x])


@torch.jit.script
def accumulate(x: Tensor) -> Tensor:
    total = torch.zeros([x.size(1)])
    for i in range(x.size(0)):
        total = total * 0.5 + x[i]
    return total


@torch.jit.script
def until(x: Tensor) -> Tensor:
    count = 0
    while bool(x.sum() < 100):
        x = x * 2
        count += 1
    return x + count


@torch.jit.script
def changed_unless_left(x: Tensor) -> Tensor:
    total, last = torch.zeros([x.size(1)]), x[0]
    for i in range(x.size(0)):
        if bool(x[i].sum() < 0):
            continue
        if bool(x[i].max() > 2):
            break
        total += x[i]
        last = total[:1]
    return torch.cat([total, last])


@torch.jit.script
def with_break(x: Tensor) -> Tensor:
    y = torch.zeros_like(x[0])
    for i in range(x.size(0)):
        if bool(x[i].sum() < 0):
            continue
        if bool(x[i].sum() > 10):
            break
        y = y + x[i]
    return y


@torch.jit.script
def early_return(x: Tensor) -> Tensor:
    for i in range(x.size(0)):
        if bool(x[i].sum() > 3):
            return x[i] * 10
    return x[0]


@torch.jit.script
def slices_assigned(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for i in range(x.size(0)):
        y[i] = x[i] * i
    y[0, 1:] = 7.0
    return y


@torch.jit.script
def appended(x: Tensor) -> Tensor:
    rows: list[Tensor] = []
    for i in range(x.size(0)):
        rows.append(x[i] * 2)
    return torch.stack(rows, 1)


@torch.jit.script
def concatenated(x: Tensor) -> Tensor:
    parts: list[Tensor] = [x[:1]]
    for i in range(x.size(0)):
        if bool(x[i].sum() > 0):
            parts.append(x[i : i + 1] + i)
    return torch.cat(parts, 0)


@torch.jit.script
def list_in_if(x: Tensor) -> Tensor:
    parts = [x]
    if bool(x.sum() > 0):
        parts.append(x + 1)
    return torch.cat(parts) * len(parts)


@torch.jit.script
def list_read_in_loop(x: Tensor) -> Tensor:
    rows: list[Tensor] = []
    for i in range(x.size(0)):
        rows.append(x[i])
    total = rows[0]
    for i in range(len(rows)):
        total = total + rows[i]
    return total


@torch.jit.script
def item_set(x: Tensor) -> Tensor:
    items = [x, x * 2, x * 3]
    items[x.size(0) % 3] = x * 10
    items[-1 - x.size(0) % 2] = x * 7
    return torch.stack(items)


@torch.jit.script
def fixed_count(x: Tensor) -> Tensor:
    for i in range(3):
        x = x + i
    return x


@torch.jit.script
def many_iterations(x: Tensor) -> Tensor:
    for i in range(200):
        x = x * 0.9 + i
    return x


@torch.jit.script
def changed_in_place(x: Tensor) -> Tensor:
    y = x.clone()
    row = y[0]
    if bool(x.sum() > 0):
        row.add_(10)
    else:
        y.mul_(3)
    return y


@torch.jit.script
def numbers(x: Tensor) -> tuple[Tensor, Tensor]:
    limit = 2
    scale = 0.5
    if bool(x.sum() > 0):
        limit = 1
        scale = 4.0
    return x[:limit], x * scale


@torch.jit.script
def growing(x: Tensor) -> Tensor:
    y = x[:0]
    for i in range(x.size(0)):
        y = torch.cat([y, x[: i + 1]])
    return y


@torch.jit.script
def nested_loops(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for i in range(x.size(0)):
        for j in range(x.size(1)):
            if bool(x[i, j] > 0):
                y[i, j] = x[i, j] * j
            else:
                y[i, j] = -1.0
    return y


@torch.jit.script
def dict_in_loop(x: Tensor) -> Tensor:
    sums = {"a": x[0], "b": x[0] * 0}
    for i in range(x.size(0)):
        sums["b"] = sums["b"] + sums["a"] * i
    return sums["b"]


@torch.jit.script
def tuple_in_loop(x: Tensor) -> Tensor:
    pair = (x[0], 0)
    for i in range(x.size(0)):
        pair = (pair[0] + x[i], pair[1] + 2)
    return pair[0] * pair[1]


@torch.jit.script
def view_in_loop(x: Tensor) -> Tensor:
    y = x.clone()
    row = y[0]
    for i in range(x.size(0)):
        row += x[i]
    return y


@torch.jit.script
def list_of_fixed_length(x: Tensor) -> Tensor:
    items = [x, x * 2]
    for _ in range(x.size(0)):
        items[0] = items[0] + items[1]
    return items[0]


@torch.jit.script
def returned_from_loop(x: Tensor) -> tuple[Tensor, int]:
    n = 0
    while True:
        n += 1
        if bool((x * n).sum() > 20):
            break
        if n > 10:
            return x, n
    return x * n, n


@torch.jit.script
def size_read_in_branches(x: Tensor) -> int:
    y = (x * 1.5)[: int(x.sum().abs()) % 3]
    y[1:, 1] *= 0.5
    last = 0
    for i in range(x.size(0)):
        if len(y) != 1:
            last = i + len(y)
    return last


@torch.jit.script
def tuple_returned_early(x: Tensor) -> tuple[Tensor, tuple[int, Tensor]]:
    if bool(x.sum() > 0):
        n = int(x.max())
        if n > 5:
            return x[:1] * n, (n - 2, x.t())
    elif x.size(0) > 3:
        return x[1:], (x.size(0), x * 2)
    return x, (x.size(1), x + 2)


@torch.jit.script
def list_returned_early(x: Tensor) -> list[Tensor]:
    for i in range(3):
        if bool(x.sum() > 5 + i):
            if x.size(0) > 3:
                return [x[:2] * i, x - 1]
        x = x + 1
    return [x + 1, x[:1]]


@torch.jit.script
def dict_returned_early(x: Tensor) -> dict[str, Tensor]:
    if bool(x.sum() > 0):
        if x.size(0) > 3:
            return {"a": x[:1] * 2, "b": x}
    return {"a": x, "b": x + 1}


PROGRAMS = [
    tuple_returned_early,
    list_returned_early,
    dict_returned_early,
    size_read_in_branches,
    nested_loops,
    dict_in_loop,
    tuple_in_loop,
    view_in_loop,
    list_of_fixed_length,
    returned_from_loop,
    choose,
    nested,
    by_size,
    accumulate,
    until,
    with_break,
    changed_unless_left,
    early_return,
    slices_assigned,
    fixed_count,
    many_iterations,
    changed_in_place,
    *(numbers, growing, appended, concatenated, list_in_if, list_read_in_loop, item_set),
]
LOWEST = {
    **dict.fromkeys(("by_size", "changed_unless_left"), 9),
    **dict.fromkeys(("tuple_returned_early", "list_returned_early", "dict_returned_early"), 9),
    **dict.fromkeys(("numbers", "growing", "size_read_in_branches"), 10),
    "item_set": 11,
    **dict.fromkeys(("appended", "concatenated", "list_in_if", "list_read_in_loop"), 13),
}
INPUTS = [(torch.tensor([[1.0, 2.0], [3.0, -1.0]]),), (-torch.ones(5, 2),), (torch.arange(14.0).reshape(7, 2),)]


@pytest.mark.parametrize(("program", "lowest", "opset"), over_opsets({p.name: p for p in PROGRAMS}, LOWEST))
def test_a_scripted_program_agrees_on_every_path(program: torch.jit.ScriptFunction, lowest: int, opset: int) -> None:
    inputs = INPUTS[:1] + INPUTS[2:] if program is until else INPUTS

    with refused_below(lowest, opset):
        exported(program, *inputs, dynamic_axes=X, opset=opset)


def test_how_many_elements_a_joined_sequence_has_is_known_at_run_time_only() -> None:
    @torch.jit.script
    def joined(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows: list[Tensor] = []
        for i in range(x.size(0)):
            rows.append(x[i] * 2)
        stacked, long = torch.stack(rows, -1), torch.cat(rows)
        return stacked * stacked.size(1), stacked.t().reshape(stacked.size(1) * 2), torch.zeros(long.size(0))

    program = exported(joined, *INPUTS, dynamic_axes=X)

    assert program.model.graph.outputs[0].shape[0] == 2
    assert all(not isinstance(output.shape[-1], int) for output in program.model.graph.outputs)


def test_a_condition_that_the_example_does_not_decide_stays_a_condition() -> None:
    program = exported(choose, *INPUTS, dynamic_axes=X)

    assert [node.op_type for node in program.model.graph].count("If") == 1


def test_conditions_on_static_sizes_leave_no_trace() -> None:
    program = exported(by_size, INPUTS[0])

    assert {node.op_type for node in program.model.graph} == {"Concat"}


def test_a_short_loop_of_known_length_is_unrolled_and_a_long_one_is_not() -> None:
    short, long = exported(fixed_count, INPUTS[0]), exported(many_iterations, INPUTS[0])

    assert "Loop" not in {node.op_type for node in short.model.graph}
    assert [node.op_type for node in long.model.graph].count("Loop") == 1


def test_optional_arguments_tuples_dicts_and_isinstance_are_resolved() -> None:
    @torch.jit.script
    def containers(x: Tensor, bias: Optional[Tensor] = None) -> Dict[str, Tensor]:  # noqa: UP006, UP045
        stats: Dict[str, Tensor] = {"x": x}  # noqa: UP006
        if bias is not None:
            stats["biased"] = x + bias
        pair = (x * 2, [x, x + 1])
        for key in stats.keys():
            stats[key] = stats[key] + len(pair[1])
        if isinstance(bias, Tensor):
            stats["last"] = pair[1].pop() - pair[0]
        for i, (a, b) in enumerate(zip([x, x], pair[1])):
            stats["z" + str(i)] = a - b
        return stats

    without = exported(containers, INPUTS[0])
    with_bias = exported(containers, (*INPUTS[0], torch.ones(2)))

    assert without.output_names == ["x.out", "z0", "z1"]
    assert with_bias.output_names == ["x.out", "biased", "last", "z0"]


def test_variables_of_different_kinds_are_refused_only_where_they_are_read() -> None:
    @torch.jit.script
    def mixed(x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            y = x.to(torch.int64)
        else:
            y = x
        return y + 1

    with pytest.raises(OnnxExporterError, match=r"torch\.int64 or torch\.float32"):
        onnx_ts_legacy.export(mixed, INPUTS[0])


def test_reading_a_tensor_that_may_have_been_changed_through_another_variable_is_refused() -> None:
    @torch.jit.script
    def aliased(x: Tensor) -> Tensor:
        base = x + 1
        if bool(x.sum() > 0):
            y = base
        else:
            y = base * 2
        y.add_(1)
        return base + y

    with pytest.raises(OnnxExporterError, match="clone it"):
        onnx_ts_legacy.export(aliased, INPUTS[0])


def test_a_loop_may_replace_a_dict_by_another_one() -> None:
    @torch.jit.script
    def replaced(x: Tensor) -> Tensor:
        pair = {"a": x[0], "b": x[0] * 2}
        for i in range(x.size(0)):
            pair = {"a": pair["b"] + i, "b": pair["a"] * x[i]}
        return pair["a"] - pair["b"]

    exported(replaced, *INPUTS, dynamic_axes=X)


def test_a_view_that_one_path_leaves_is_known_to_show_the_memory_that_a_later_iteration_writes_to() -> None:
    @torch.jit.script
    def written_after(x: Tensor) -> Tensor:
        total, last = torch.zeros([x.size(1)]), x[0]
        for i in range(x.size(0)):
            if bool(x[i].sum() < 0):
                continue
            if bool(x[i].max() > 2):
                total += x[i]
                break
            last = total[:1]
        return torch.cat([total, last])

    with pytest.raises(OnnxExporterError, match="clone it"):
        onnx_ts_legacy.export(written_after, INPUTS[0], input_names=["x"], dynamic_axes=X)


def test_zeros_of_either_sign_are_two_numbers_where_branches_meet() -> None:
    @torch.jit.script
    def signed(x: Tensor) -> Tensor:
        zero = 0.0
        if bool(x.sum() > 0):
            zero = -0.0
        return 1 / torch.full([2], zero)

    exported(signed, *INPUTS, dynamic_axes=X)
