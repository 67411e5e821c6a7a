"""If, Loop, Scan and SequenceMap: Python in eager mode, torch's operators of higher order where torch records."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from onnxops_decomp.importing.registry import onnx_op

Body = tuple[Module, list[Any], list[tuple[torch.dtype, list[int]]], bool]
"""The module of a body, the values around it that it reads, dtype and shape of its outputs (0 for a size that is not
known), and whether its first output is its second input or true."""


def _recording() -> bool:
    return torch.compiler.is_compiling()


def _own(values: Any) -> tuple[Any, ...]:
    """Return values that are not inputs and show no memory of any, as torch's operators of higher order ask."""
    return tuple(value.clone() if isinstance(value, Tensor) else value for value in values)


@onnx_op("If")
def if_(cond: bool | Tensor, then_branch: Any, else_branch: Any) -> tuple[Any, ...]:
    then, then_reads, *_ = then_branch
    other, other_reads, *_ = else_branch
    if not isinstance(cond, Tensor) or not _recording():
        return tuple(then(*then_reads) if bool(cond) else other(*other_reads))
    count = len(then_reads)

    def on_true(*reads: Any) -> Any:
        return _own(then(*reads[:count]))

    def on_false(*reads: Any) -> Any:
        return _own(other(*reads[count:]))

    return tuple(torch.cond(cond.reshape(()), on_true, on_false, (*then_reads, *other_reads)))


def _stacked(rows: list[list[Tensor]], outputs: list[tuple[torch.dtype, list[int]]]) -> list[Any]:
    """Return what each step gave as one tensor, which is empty where there was no step."""
    return [
        torch.stack(row) if row else torch.empty([0, *sizes], dtype=dtype)
        for row, (dtype, sizes) in zip(rows, outputs, strict=True)
    ]


@onnx_op("Loop")
def loop(M: int | None, cond: bool | Tensor | None, *v_initial: Any, body: Any) -> tuple[Any, ...]:
    module, reads, outputs, steady = body
    count = len(v_initial)
    alive: Any = True if cond is None else cond
    if _recording() and not (steady and alive is True and M is not None):
        return _recorded_loop(M, alive, v_initial, body)
    state, step = list(v_initial), 0
    rows: list[list[Tensor]] = [[] for _ in outputs[1 + count :]]
    while (M is None or step < M) and bool(alive):
        given = alive if isinstance(alive, Tensor) else torch.tensor(alive)
        going, *results = module(torch.tensor(step), given, *state, *reads)
        alive = alive if steady else going
        state = results[:count]
        for row, value in zip(rows, results[count:], strict=True):
            row.append(value)
        step += 1
    return (*state, *_stacked(rows, outputs[1 + count :]))


def _recorded_loop(M: Any, alive: Any, v_initial: tuple[Any, ...], body: Any) -> tuple[Any, ...]:
    """Return a loop as torch's while_loop, which has no place for what each step gives."""
    module, reads, outputs, _ = body
    if len(outputs) > 1 + len(v_initial):
        raise NotImplementedError("torch records no loop on data that collects a value of each step")
    going = alive if isinstance(alive, Tensor) else torch.tensor(alive)
    limit = torch.tensor(2**62) if M is None else torch.scalar_tensor(M, dtype=torch.int64)

    def condition(step: Tensor, limit: Tensor, alive: Tensor, *rest: Any) -> Tensor:
        return torch.logical_and(step < limit, alive.reshape(()))

    def advance(step: Tensor, limit: Tensor, alive: Tensor, *rest: Any) -> Any:
        state, read = rest[: len(v_initial)], rest[len(v_initial) :]
        now, *results = module(step, alive, *state, *read)
        return _own((step + 1, limit, now.reshape(alive.shape), *results, *read))

    start = (torch.tensor(0), limit, going, *v_initial, *reads)
    return tuple(torch.while_loop(condition, advance, start)[3 : 3 + len(v_initial)])


@onnx_op("Scan", since=9)
def scan(
    *initial_state_and_scan_inputs: Any,
    body: Any,
    num_scan_inputs: int,
    scan_input_axes: Any = None,
    scan_input_directions: Any = None,
    scan_output_axes: Any = None,
    scan_output_directions: Any = None,
) -> tuple[Any, ...]:
    module, reads, outputs, _ = body
    count = len(initial_state_and_scan_inputs) - num_scan_inputs
    state, scanned = initial_state_and_scan_inputs[:count], initial_state_and_scan_inputs[count:]
    axes, directions = scan_input_axes or [0] * len(scanned), scan_input_directions or [0] * len(scanned)
    columns = [
        list(reversed(each.unbind(axis)) if direction else each.unbind(axis))
        for each, axis, direction in zip(scanned, axes, directions, strict=True)
    ]
    rows: list[list[Tensor]] = [[] for _ in outputs[count:]]
    for items in zip(*columns, strict=True):
        results = module(*state, *items, *reads)
        state = results[:count]
        for row, value in zip(rows, results[count:], strict=True):
            row.append(value)
    out_axes, out_directions = scan_output_axes or [0] * len(rows), scan_output_directions or [0] * len(rows)
    ordered = [row[::-1] if direction else row for row, direction in zip(rows, out_directions, strict=True)]
    stacked = _stacked(ordered, outputs[count:])
    moved = [value.movedim(0, axis) if axis else value for value, axis in zip(stacked, out_axes, strict=True)]
    return (*state, *moved)


@onnx_op("Scan")
def scan_of_batches(
    sequence_lens: Tensor | None,
    *initial_state_and_scan_inputs: Any,
    body: Any,
    num_scan_inputs: int,
    directions: Any = None,
) -> tuple[Any, ...]:
    """Compute the form of opset 8, whose first dimension is the batch; what lies beyond a length is zero."""
    batch = initial_state_and_scan_inputs[0].shape[0]
    count = len(initial_state_and_scan_inputs) - num_scan_inputs
    results = []
    for index in range(batch):
        values = [each[index] for each in initial_state_and_scan_inputs]
        whole = values[count].shape[0]
        length = whole if sequence_lens is None else int(sequence_lens[index])
        values[count:] = [each[:length] for each in values[count:]]
        made = scan(*values, body=body, num_scan_inputs=num_scan_inputs, scan_input_directions=directions)
        filled = [torch.cat([each, each.new_zeros(whole - length, *each.shape[1:])]) for each in made[count:]]
        results.append((*made[:count], *filled))
    return tuple(torch.stack(each) for each in zip(*results, strict=True))


@onnx_op("SequenceMap")
def sequence_map(input_sequence: Any, *additional_inputs: Any, body: Any) -> tuple[Any, ...]:
    module, reads, outputs, _ = body
    rows: list[list[Any]] = [[] for _ in outputs]
    for place, item in enumerate(input_sequence):
        others = [each[place] if isinstance(each, list) else each for each in additional_inputs]
        for row, value in zip(rows, module(item, *others, *reads), strict=True):
            row.append(value)
    return tuple(rows)
