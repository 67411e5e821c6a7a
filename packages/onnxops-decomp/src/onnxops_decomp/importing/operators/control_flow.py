"""If, Loop, Scan and SequenceMap: Python in eager mode, torch's operators of higher order where torch records."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from onnxops_decomp.importing.recording import collected_loop, is_dynamic, is_recorded, own, recording, scanned
from onnxops_decomp.importing.registry import onnx_op

Kind = tuple[torch.dtype | None, list[int] | None]
"""Dtype of a value, None for strings, and its shape: 0 for a size that the file does not declare, None if none is."""
Body = tuple[Module, list[Any], list[Kind], bool]
"""The module of a body, the values around it that it reads, what its outputs are, and whether its first output is its
second input or true."""


@onnx_op("If")
def if_(cond: bool | Tensor, then_branch: Any, else_branch: Any) -> tuple[Any, ...]:
    then, then_reads, then_kinds, _ = then_branch
    other, other_reads, other_kinds, _ = else_branch
    if not is_recorded(cond) or not (isinstance(cond, Tensor) or _alike(then_kinds, other_kinds)):
        return tuple(then(*then_reads) if bool(cond) else other(*other_reads))
    count = len(then_reads)

    def on_true(*reads: Any) -> Any:
        return own(then(*reads[:count]))

    def on_false(*reads: Any) -> Any:
        return own(other(*reads[count:]))

    chosen = cond.reshape(()) if isinstance(cond, Tensor) else cond
    return tuple(torch.cond(chosen, on_true, on_false, (*then_reads, *other_reads)))


def _alike(one: Sequence[Kind], other: Sequence[Kind]) -> bool:
    """Tell whether both branches are declared to give tensors of the same ranks, as ``torch.cond`` asks."""
    ranks = [[None if sizes is None else len(sizes) for _, sizes in kinds] for kinds in (one, other)]
    return ranks[0] == ranks[1] and None not in ranks[0]


def _stacked(rows: list[list[Any]], body: Body, given: Sequence[Any]) -> list[Any]:
    """Return what each step gave as one tensor, which is empty where there was no step.

    Args:
        rows: For each of the last outputs of a body what the steps gave.
        body: The body.
        given: What it is called with.

    Raises:
        ValueError: If there was no step, and the shape of an output is declared nowhere and follows from no other.
    """
    kinds = body[2][len(body[2]) - len(rows) :]
    if not all(rows) and any(sizes is None for _, sizes in kinds):
        results = _without_values(body, given)
        kinds = [
            (dtype, [*each.shape]) for (dtype, _), each in zip(kinds, results[len(body[2]) - len(rows) :], strict=True)
        ]
    return [_stack(row, *kind) for row, kind in zip(rows, kinds, strict=True)]


def _stack(row: list[Any], dtype: torch.dtype | None, sizes: list[int] | None) -> Any:
    if dtype is None:
        return np.stack(row) if row else np.empty([0, *(sizes or [])], object)
    return torch.stack(row) if row else torch.empty([0, *(sizes or [])], dtype=dtype)


def _without_values(body: Body, given: Sequence[Any]) -> Sequence[Any]:
    """Return what a body gives, as tensors that have shapes alone."""
    module, reads, *_ = body
    if recording():  # a tensor has no values there
        found: Sequence[Any] = module(*given, *reads)
        return found
    values = [each.to("meta") if isinstance(each, Tensor) else each for each in (*given, *reads)]
    try:
        with torch.device("meta"):
            made: Sequence[Any] = copy.deepcopy(module).to("meta")(*values)
    except Exception as error:
        raise ValueError(
            "A loop ended before its first step, and the file does not declare the shape of what its steps return."
        ) from error
    return made


@onnx_op("Loop")
def loop(M: int | None, cond: bool | Tensor | None, *v_initial: Any, body: Any) -> tuple[Any, ...]:
    module, reads, outputs, steady = body
    count = len(v_initial)
    alive: Any = True if cond is None else cond
    if recording() and not (steady and alive is True and isinstance(M, int)):
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
    return (*state, *_stacked(rows, body, [torch.tensor(0), torch.tensor(True), *v_initial]))


def _recorded_loop(M: Any, alive: Any, v_initial: tuple[Any, ...], body: Any) -> tuple[Any, ...]:
    """Return a loop as ``scan`` where only a size ends it, else as ``while_loop``."""
    module, reads, _, steady = body
    count = len(v_initial)
    if steady and alive is True and is_dynamic(M):

        def step(state: tuple[Tensor, ...], items: tuple[Tensor, ...]) -> Any:
            _, *results = module(items[0], torch.tensor(True), *state, *reads)
            return results[:count], results[count:]

        state, rows = scanned(step, v_initial, (torch.arange(M),))
        return (*state, *rows)

    def advance(place: Tensor, going: Tensor, state: tuple[Any, ...]) -> Any:
        now, *results = module(place, going, *state, *reads)
        return now, results[:count], results[count:]

    going = alive.reshape(()) if isinstance(alive, Tensor) else torch.tensor(alive)
    return collected_loop(advance, M, going, v_initial, steady)


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
    count = len(initial_state_and_scan_inputs) - num_scan_inputs
    state, given = initial_state_and_scan_inputs[:count], initial_state_and_scan_inputs[count:]
    rows = len(body[2]) - count
    in_axes, in_directions = scan_input_axes or [0] * len(given), scan_input_directions or [0] * len(given)
    out_axes, out_directions = scan_output_axes or [0] * rows, scan_output_directions or [0] * rows
    items = [
        _reversed(each.movedim(axis, 0) if axis else each, direction)
        for each, axis, direction in zip(given, in_axes, in_directions, strict=True)
    ]
    last, stacked = (_recorded_scan if is_dynamic(items[0].shape[0]) else _unrolled_scan)(body, state, items)
    turned = [_reversed(each, direction) for each, direction in zip(stacked, out_directions, strict=True)]
    moved = [each.movedim(0, axis) if axis else each for each, axis in zip(turned, out_axes, strict=True)]
    return (*last, *moved)


def _reversed(value: Tensor, direction: int) -> Tensor:
    return value.flip(0) if direction else value


def _unrolled_scan(body: Body, state: Any, items: list[Tensor]) -> tuple[Any, Any]:
    module, reads, outputs, _ = body
    count, initial = len(state), state
    rows: list[list[Tensor]] = [[] for _ in outputs[count:]]
    for slices in zip(*(each.unbind(0) for each in items), strict=True):
        results = module(*state, *slices, *reads)
        state = results[:count]
        for row, value in zip(rows, results[count:], strict=True):
            row.append(value)
    return state, _stacked(rows, body, [*initial, *(each.new_empty(each.shape[1:]) for each in items)])


def _recorded_scan(body: Body, state: Any, items: list[Tensor]) -> tuple[Any, Any]:
    module, reads, *_ = body
    count = len(state)

    def step(carried: tuple[Tensor, ...], slices: tuple[Tensor, ...]) -> Any:
        results = module(*carried, *slices, *reads)
        return results[:count], results[count:]

    return scanned(step, state, tuple(items))


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
