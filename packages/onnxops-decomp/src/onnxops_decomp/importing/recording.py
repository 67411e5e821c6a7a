"""Loops of a length that is not known where torch records: its operators of higher order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from onnxops_decomp import torch_private

__all__ = ["collected_loop", "is_dynamic", "is_recorded", "own", "recording", "scanned"]

_ENDLESS = 2**62


def recording() -> bool:
    """Tell whether torch records what is called, for ``torch.compile`` or ``torch.export``."""
    return torch.compiler.is_compiling()


def is_dynamic(length: Any) -> bool:
    """Tell whether a length is a size that torch records as dynamic, of which it knows that it is some."""
    return recording() and isinstance(length, torch.SymInt) and not torch_private.is_unbacked(length)


def is_recorded(condition: Any) -> bool:
    """Tell whether a condition goes into the graph that torch records, so that both branches do.

    A condition on sizes does only where a program is exported: ``torch.compile`` compiles each branch when it is taken.
    """
    if isinstance(condition, Tensor):
        return recording()
    if isinstance(condition, torch.SymBool):
        return torch.compiler.is_exporting() and torch_private.is_open(condition)
    # Dynamo shows symbolic numbers as Python's own.
    return torch.compiler.is_exporting() and torch.compiler.is_dynamo_compiling()


def own(values: Any) -> tuple[Any, ...]:
    """Return values that are not inputs and show no memory of any, as torch's operators of higher order ask."""
    return tuple(
        value.clone(memory_format=torch.contiguous_format) if isinstance(value, Tensor) else value for value in values
    )


def scanned(
    step: Callable[[Any, Any], tuple[Sequence[Tensor], Sequence[Tensor]]],
    state: Sequence[Tensor],
    items: Sequence[Tensor],
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Record a scan.

    Args:
        step: Takes the state and one slice of each item; returns the next state and what is collected.
        state: First state.
        items: Tensors whose first dimension is scanned.

    Returns:
        The last state, and what was collected, stacked.
    """
    first = items[0]

    def owned(carried: Any, slices: Any) -> Any:
        after, collected = step(carried[1:], slices)
        # A carried number and a collected one: torch scans nothing that has none.
        return [carried[0].clone(), *own(after)], [carried[0].clone(), *own(collected)]

    start = [torch.zeros((), device=first.device), *own(state)]
    last, rows = torch_private.scan(owned, start, [each.contiguous() for each in items])
    return last[1:], rows[1:]


def collected_loop(
    advance: Callable[[Tensor, Tensor, Any], tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]],
    limit: Any,
    going: Tensor,
    state: Sequence[Tensor],
    steady: bool,
) -> tuple[Any, ...]:
    """Record a loop that data or a condition ends; what its steps collect is written into tensors of its limit.

    Args:
        advance: Takes the number of the step, whether the loop goes on, and the state; returns whether it goes on,
            the next state, and what is collected.
        limit: Number of steps at most, or None.
        going: Whether there is a first step, of rank 0.
        state: First state.
        steady: Whether the limit alone ends the loop.

    Raises:
        NotImplementedError: If steps without a limit collect anything, for which torch has no operator.
    """
    count = len(state)
    _, _, shown = advance(torch.zeros((), dtype=torch.int64), going, state)
    if shown and limit is None:
        raise NotImplementedError("torch cannot record a loop without a limit that collects a value at each step")
    rows = [each.new_zeros((limit, *each.shape)) for each in shown]
    most = torch.tensor(_ENDLESS) if limit is None else torch.scalar_tensor(limit, dtype=torch.int64)

    def condition(place: Tensor, alive: Tensor, *rest: Tensor) -> Tensor:
        return torch.logical_and(place < most, alive)

    def body(place: Tensor, alive: Tensor, *rest: Tensor) -> Any:
        now, after, collected = advance(place, alive, rest[:count])
        written = [
            row.index_copy(0, place.reshape(1), value.unsqueeze(0))
            for row, value in zip(rest[count:], collected, strict=True)
        ]
        return own((place + 1, alive if steady else now.reshape(()), *after, *written))

    # Not `tensor(0)`, whose number torch.compile knows, and takes for that of all steps.
    first = torch.zeros((), dtype=torch.int64)
    steps, _, *made = torch.while_loop(condition, body, (first, going, *own(state), *rows))
    if not steady and rows:
        done = steps.item()
        torch._check(done >= 0)
        torch._check(done <= limit)
        made[count:] = [each[:done] for each in made[count:]]
    return tuple(made)
