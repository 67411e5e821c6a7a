"""ONNX Loop as a function: a state that a step turns into the next one, a number of times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.spec.inference import dims_of

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

__all__ = ["Step", "repeat", "repeat_one"]

# So many steps are written one after the other.
_UNROLLED = 4

Step = Callable[["OpBuilder", ir.Value, list[ir.Value]], tuple[Sequence[ir.Value], Sequence[ir.Value]]]


def repeat(
    op: OpBuilder,
    count: Size,
    initial: Sequence[ir.Value],
    step: Step,
    *,
    parts: Sequence[Sequence[Size]] | None = None,
    unless: Callable[[OpBuilder, list[ir.Value]], ir.Value] | None = None,
) -> tuple[list[ir.Value], list[ir.Value]]:
    """Apply ``step`` to a state ``count`` times.

    Args:
        op: Builder.
        count: Number of iterations.
        initial: State before the first one; every part keeps its dtype and shape.
        step: Called with the builder of the loop body, the 0-d index of the iteration and the state; returns the
            next state and what is collected of this iteration.
        parts: Sizes of what is collected. Runtimes know none but 0 of what no iteration collects, so they are needed
            where there may be no iteration.
        unless: Called with the next state; the loop ends early where the 0-d BOOL that it returns is true.

    Returns:
        The last state, and the collected values of all iterations stacked along a new first axis.
    """
    body = op.subgraph()
    index, going = body.input("index", ir.DataType.INT64, ()), body.input("going", ir.DataType.BOOL, ())
    states = [body.input("state", op.dtype(part), dims_of(part)) for part in initial]
    after, collected = step(body, index, states)
    more = going if unless is None else body.Not(unless(body, list(after)))
    graph = body.graph([more, *after, *collected], name="body")
    limit = count if isinstance(count, ir.Value) else op.constant(count)
    outputs = op.emit_many("Loop", len(after) + len(collected), limit, op.constant(True), *initial, body=graph)
    last, stacked = list(outputs[: len(after)]), list(outputs[len(after) :])
    for output, part in zip(last, initial, strict=True):
        output.type, output.shape = ir.TensorType(op.dtype(part)), part.shape
    for output, part in zip(stacked, collected, strict=True):
        dims = dims_of(part)
        output.type = ir.TensorType(op.dtype(part))
        output.shape = None if dims is None else ir.Shape([op.dim(count), *dims])
    if parts is None or (isinstance(count, int) and count):
        return last, stacked
    return last, [_sized(op, output, [count, *sizes]) for output, sizes in zip(stacked, parts, strict=True)]


def _sized(op: OpBuilder, stacked: ir.Value, sizes: Sequence[Size]) -> ir.Value:
    if all(isinstance(size, int) for size in sizes[1:]):
        return stacked
    dims = dims_of(stacked)
    # What is noted of the shape holds from here on.
    stacked.shape = None
    result = op.reshape(stacked, sizes)
    op.set_dims(result, dims or [op.dim(size) for size in sizes])
    return result


def repeat_one(
    op: OpBuilder, state: ir.Value, count: Size, step: Callable[[OpBuilder, ir.Value, ir.Value], ir.Value]
) -> ir.Value:
    """Apply ``step(op, state, index)`` with the indices from 0 to ``count - 1``, index as a vector of one element."""
    newest = op.newest
    if isinstance(count, int) and count <= _UNROLLED:
        for number in range(count):
            state = step(newest, state, newest.constant([number]))
        return state

    def whole(body: OpBuilder, index: ir.Value, states: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        return [step(body, states[0], body.Unsqueeze(index, [0]))], []

    return repeat(newest, count, [state], whole)[0][0]
