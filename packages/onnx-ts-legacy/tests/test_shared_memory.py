"""Memory shared by several variables, through lists whose length is known only at run time, and at computed places."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from ts_models import exported, n, over_opsets, refused_below

import onnx_ts_legacy
from onnx_ts_legacy.errors import OnnxExporterError

AXES = {"x": {0: "n"}}


@torch.jit.script
def row_of_unbind(x: Tensor) -> Tensor:
    y = x + 1
    first, last = y.unbind(0)[0], y.unbind(0)[-1]
    y.mul_(2)
    last += 3
    return torch.cat([y.flatten(), first, last])


@torch.jit.script
def pieces_of_split(x: Tensor) -> Tensor:
    y = x + 1
    parts = y.split(2, 0)
    y.mul_(2)
    parts[1].add_(1)
    parts[-1].neg_()
    return torch.cat([y, parts[0]])


@torch.jit.script
def rows_written_in_a_loop(x: Tensor) -> Tensor:
    y = x + 1
    for i, row in enumerate(y.unbind(0)):
        if bool(row.sum() > 1):
            row.mul_(i)
    return y


@torch.jit.script
def appended_and_left_alone(x: Tensor) -> Tensor:
    rows: list[Tensor] = []
    y = x + 1
    for i in range(x.size(0)):
        rows.append(y[i] * 2)
        y[i].add_(1)
    return torch.stack(rows) + y


@torch.jit.script
def slice_from_a_computed_place(x: Tensor) -> Tensor:
    y = x + 1
    y[-(x.size(0) // 2) :] -= 2
    y[x.size(0) - 9 :].mul_(3)
    y[: x.size(0) // 2 - 2] += 7
    y[-(x.size(0) // 2) :: 2] = 5
    return y


@torch.jit.script
def row_at_a_computed_place(x: Tensor) -> Tensor:
    y = x + 1
    y[-(x.size(0) // 2)] = 3
    y.select(0, x.size(0) % -2).mul_(2)
    y.narrow(0, -((x.size(0) + 1) // 2), 1).add_(1)
    return y


@torch.jit.script
def all_but_one_row(x: Tensor) -> Tensor:
    y = x + 1
    y[:-1] = x.sum(0) * 2
    y[1:] += x[0, :1]
    return y


@torch.jit.script
def tensor_itself(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x + 1
    itself, view = y.contiguous(), y.detach()
    y.unsqueeze_(0)
    return y, itself, view


@torch.jit.script
def tensor_of_its_own_dtype(x: Tensor) -> list[Tensor]:
    y = x + 1
    same = [y.float(), y.type_as(x), y.flatten(1), y.cpu(), torch.real(y), torch.positive(y), torch.atleast_2d(y)]
    y.t_()
    y.mul_(2)
    return same


@torch.jit.script
def dropout_of_an_evaluated_model(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x - 1
    z = torch.nn.functional.dropout(y, 0.5, False)
    z.relu_()
    z.t_()
    return y, z


@torch.jit.script
def popped_where_nothing_is_left(x: Tensor) -> Tensor:
    items = [x, x * 2]
    if x.size(0) > 100:
        items.pop()
        items.pop()
        items.pop()
    return items[0]


AGREEING = {
    "tensor itself": tensor_itself,
    "tensor of its own dtype": tensor_of_its_own_dtype,
    "dropout of an evaluated model": dropout_of_an_evaluated_model,
    "row of unbind": row_of_unbind,
    "pieces of split": pieces_of_split,
    "rows written in a loop": rows_written_in_a_loop,
    "appended and left alone": appended_and_left_alone,
    "slice from a computed place": slice_from_a_computed_place,
    "row at a computed place": row_at_a_computed_place,
    "all but one row": all_but_one_row,
}
LOWEST = {
    "row of unbind": 11,
    "pieces of split": 11,
    "rows written in a loop": 11,
    "appended and left alone": 13,
    "slice from a computed place": 10,
    "row at a computed place": 10,
    "all but one row": 10,
}


@pytest.mark.parametrize(("program", "lowest", "opset"), over_opsets(AGREEING, LOWEST))
def test_a_write_reaches_what_shows_the_memory(program: torch.jit.ScriptFunction, lowest: int, opset: int) -> None:
    with refused_below(lowest, opset):
        exported(program, (n(5, 2),), (n(3, 2),), (n(6, 2),), input_names=["x"], dynamic_axes=AXES, opset=opset)


def test_a_write_to_all_rows_but_one_of_a_single_row_writes_nothing() -> None:
    exported(all_but_one_row, (n(5, 2),), (n(1, 2),), input_names=["x"], dynamic_axes=AXES)


def nothing_but_one_row(x: Tensor) -> Tensor:
    y = x + 1
    y[:-1] = x[0] * 2 if x.size(0) > 0 else y.sum(0)
    y[1:].zero_()
    y[1:][:, 0].fill_(2)
    y[-x.size(0) :] -= 1
    return torch.cat([y, torch.ones_like(y[:-1])])


def test_a_write_to_all_rows_but_one_of_no_rows_writes_nothing() -> None:
    program = torch.jit.script(nothing_but_one_row)
    exported(program, (n(5, 2),), (n(1, 2),), (n(0, 2),), input_names=["x"], dynamic_axes=AXES)


@torch.jit.script
def element_of_a_list_that_may_be_shorter(x: Tensor) -> Tensor:
    y = x + 1
    items = [y, y]
    if bool(x.sum() > 0):
        items.pop()
    items[0].add_(3)
    return y


@torch.jit.script
def appended_then_changed(x: Tensor) -> Tensor:
    y = x + 1
    items: list[Tensor] = []
    for _ in range(x.size(0)):
        items.append(y)
        y.add_(1)
    return torch.stack(items)


@torch.jit.script
def list_read_after_its_element_changed(x: Tensor) -> Tensor:
    items: list[Tensor] = []
    for i in range(x.size(0)):
        items.append(x[i] * 2)
    items[0].add_(1)
    return torch.stack(items)


@torch.jit.script
def one_memory_in_two_variables_of_a_loop(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x[0] * 1, x[0] * 2
    for _ in range(x.size(0)):
        a.add_(1)
        c = b * 0.5
        a = c
        b = c
    return a, b


def returned_early(x: Tensor, k: int) -> Tensor:
    if k > 3:
        return x * 0.5
    for i in range(k):
        if bool(x.sum() > i):
            return x + i
    return x


@torch.jit.script
def argument_that_a_function_may_return(x: Tensor) -> Tensor:
    y = x + 1
    returned_early(y, x.size(0)).mul_(2)
    return y


@pytest.mark.parametrize(
    "program",
    [
        element_of_a_list_that_may_be_shorter,
        appended_then_changed,
        list_read_after_its_element_changed,
        one_memory_in_two_variables_of_a_loop,
        argument_that_a_function_may_return,
    ],
    ids=lambda program: program.name,
)
def test_a_memory_that_may_be_another_one_is_not_read_after_a_write(program: torch.jit.ScriptFunction) -> None:
    with pytest.raises(OnnxExporterError, match=r"through another variable at .*test_shared_memory\.py:\d+"):
        onnx_ts_legacy.export(program, (n(5, 2),), input_names=["x"], dynamic_axes=AXES)


@torch.jit.script
def memory_that_nothing_reads_any_more(x: Tensor) -> Tensor:
    y = x + 1
    z = y
    for _ in range(x.size(0)):
        if bool(z.sum() < 3):
            z = z.detach()
        z.add_(1)
        z = z * 2
    return z


def test_a_memory_that_may_have_changed_matters_only_where_it_is_read() -> None:
    exported(memory_that_nothing_reads_any_more, (n(5, 2),), (n(3, 2),), input_names=["x"], dynamic_axes=AXES)


@torch.jit.script
def rank_that_depends_on_data(x: Tensor) -> Tensor:
    y = x + 1
    if bool(x.sum() > 0):
        y = y.unsqueeze(0)
    return y


@torch.jit.script
def dtype_that_depends_on_data(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    if bool(x.sum() > 0):
        y = y.long()
    return y, x


@pytest.mark.parametrize("program", [rank_that_depends_on_data, dtype_that_depends_on_data], ids=lambda p: p.name)
def test_an_output_without_one_rank_and_dtype_is_refused_with_its_line(program: torch.jit.ScriptFunction) -> None:
    with pytest.raises(OnnxExporterError, match=r"'output(_0)?' cannot be given: .*test_shared_memory\.py:\d+"):
        onnx_ts_legacy.export(program, (n(5, 2),), input_names=["x"], dynamic_axes=AXES)


@torch.jit.script
def values_of_a_higher_rank(x: Tensor) -> Tensor:
    y = x[:, 0] + 1
    if bool(x.sum() > 100):
        y.add_(x[:, :1])
    return y


@torch.jit.script
def indexed_values_of_a_higher_rank(x: Tensor) -> Tensor:
    y = x[:, 0] + 1
    if bool(x.sum() > 100):
        y[torch.tensor([0, -1])] = x
    return y


@pytest.mark.parametrize("program", [values_of_a_higher_rank, indexed_values_of_a_higher_rank], ids=lambda p: p.name)
def test_a_write_of_a_higher_rank_is_refused_with_its_line(program: torch.jit.ScriptFunction) -> None:
    with pytest.raises(
        OnnxExporterError, match=r"of rank 2 (is|are) written to .* of rank 1[^`]*test_shared_memory\.py:\d+"
    ):
        onnx_ts_legacy.export(program, (n(5, 2),), input_names=["x"], dynamic_axes=AXES)


@torch.jit.script
def values_of_another_size(x: Tensor) -> Tensor:
    y = torch.zeros(4, 3, 2)
    if bool(x.sum() > 100):
        y[:, torch.tensor([0, -1])] = torch.ones(3, 2)
    return y + x.sum()


@torch.jit.script
def values_of_another_size_for_places_apart(x: Tensor) -> Tensor:
    y = torch.zeros(4, 3, 2)
    if bool(x.sum() > 100):
        y[torch.tensor([0, -1]), :, torch.tensor([0, 1])] = torch.ones(2, 2)
    return y + x.sum()


@pytest.mark.parametrize("program", [values_of_another_size, values_of_another_size_for_places_apart])
def test_a_write_of_another_size_is_refused_with_its_line(program: torch.jit.ScriptFunction) -> None:
    with pytest.raises(
        OnnxExporterError, match=r"Values of size \d are written to places of size \d.[^`]*test_shared_memory\.py:\d+"
    ):
        onnx_ts_legacy.export(program, (n(5, 2),), input_names=["x"], dynamic_axes=AXES)


def test_an_item_that_a_list_does_not_have_is_told_of() -> None:
    with pytest.raises(OnnxExporterError, match=r"reads item -1 of 0 items.[^`]*test_shared_memory\.py:\d+"):
        onnx_ts_legacy.export(popped_where_nothing_is_left, (n(5, 2),), input_names=["x"], dynamic_axes=AXES)


@torch.jit.script
def list_of_other_ranks(x: Tensor) -> Tensor:
    items = list(x.unbind(0))
    for _ in range(x.size(0)):
        items = list(x.split(1, 0))
    return items[0]


def test_a_list_whose_elements_change_their_rank_in_a_loop_is_refused() -> None:
    with pytest.raises(OnnxExporterError, match=r"tensors of a list change their dtype or rank"):
        onnx_ts_legacy.export(list_of_other_ranks, (n(5, 2),), input_names=["x"], dynamic_axes=AXES)


def first_large(x: Tensor, k: int) -> Tensor:
    for i in range(k):
        if bool(x.sum() > i):
            return x + i
    return x


@torch.jit.script
def returned_early_twice(x: Tensor) -> Tensor:
    y = first_large(x * 2, int(x.argmax()))
    return first_large(y // 2, int(y.argmax())) * y


def test_a_value_that_is_not_there_yet_has_other_sizes() -> None:
    exported(
        returned_early_twice,
        (n(5, 2),),
        (n(1, 3),),
        (n(3, 4),),
        input_names=["x"],
        dynamic_axes={"x": {0: "n", 1: "m"}},
    )


@torch.jit.script
def sizes_that_fit_in_no_branch(x: Tensor) -> Tensor:
    y = x + 1
    if y.size(0) > 8:
        y[1:] += y * 2
    return y


def test_a_call_that_fails_for_other_sizes_is_named_with_its_line() -> None:
    with pytest.raises(OnnxExporterError, match=r"other sizes.*test_shared_memory\.py:\d+"):
        onnx_ts_legacy.export(sizes_that_fit_in_no_branch, (n(5, 2),), input_names=["x"], dynamic_axes=AXES)
