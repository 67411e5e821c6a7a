"""Recurrent layers as a loop over time, for what ONNX's recurrent operators do not know or runtimes do not run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.formulas.loops import repeat
from onnxops_decomp.lowerings.linalg.linear import linear

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["CellStep", "stepped_layer"]

# (gates of the input, gates of the hidden state, states) -> next states
CellStep = Callable[["OpBuilder", ir.Value, ir.Value, Sequence[ir.Value]], list[ir.Value]]


def stepped_layer(
    op: OpBuilder,
    x: ir.Value,
    states: Sequence[ir.Value],
    params: Sequence[ir.Value],
    step: CellStep,
    *,
    reverse: bool,
    lengths: ir.Value | None = None,
) -> tuple[ir.Value, list[ir.Value]]:
    """Run one direction of one layer.

    Args:
        op: Builder.
        x: (T, B, I).
        states: Initial states, the hidden one (B, P) first.
        params: Weights (G, I) and (G, P) of all gates, perhaps two biases (G), perhaps a projection (P, H).
        step: One step of the cell.
        reverse: Whether time runs backwards.
        lengths: Lengths of the sequences (B,), INT32, where they differ: the outputs beyond them are zero.

    Returns:
        The outputs (T, B, P) and the final states.
    """
    has_biases, is_projected = len(params) > 3, len(params) in (3, 5)
    # What depends on the input alone is computed for all steps at once.
    gates = linear(op, x, params[0], params[2] if has_biases else None)
    recurrent, projection = (op.Transpose(params[place], perm=[1, 0]) for place in (1, -1 if is_projected else 1))
    steps = op.size(x, 0)

    def at_time(body: OpBuilder, i: ir.Value, before: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        time = body.Sub(body.size_sub(steps, 1), i) if reverse else i
        hidden = body.MatMul(before[0], recurrent)
        hidden = body.Add(hidden, params[3]) if has_biases else hidden
        after = step(body, body.Gather(gates, time, axis=0), hidden, before)
        after = [body.MatMul(after[0], projection), *after[1:]] if is_projected else after
        if lengths is None:
            return after, after[:1]
        going = body.Unsqueeze(body.Less(body.cast(time, ir.DataType.INT32), lengths), [1])
        kept = [body.Where(going, new, old) for new, old in zip(after, before, strict=True)]
        return kept, [body.Where(going, after[0], 0.0)]

    finals, (outputs,) = repeat(op, steps, list(states), at_time, parts=[op.sizes(states[0])])
    return op.Slice(outputs, [-1], [-(2**63)], [0], [-1]) if reverse else outputs, finals
