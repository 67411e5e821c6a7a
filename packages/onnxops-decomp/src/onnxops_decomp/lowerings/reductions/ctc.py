"""Connectionist temporal classification: the loss of all alignments of a target with a sequence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.formulas.loops import repeat
from onnxops_decomp.lowerings.reductions.losses import MEAN, NONE, reduced
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

aten = torch.ops.aten

BOOL, INT64 = ir.DataType.BOOL, ir.DataType.INT64


def _vector(op: OpBuilder, lengths: ir.Value | Sequence[Size]) -> ir.Value:
    """Return lengths as INT64 (N,)."""
    if isinstance(lengths, ir.Value):
        return op.Reshape(op.cast(lengths, INT64), [-1])
    return op.vector(list(lengths))


def _shifted(op: OpBuilder, value: ir.Value, by: int, filling: ir.Value) -> ir.Value:
    """Move the columns of (N, S) ``by`` places to the right, ``filling`` (N, by) coming in from the left."""
    return op.Slice(op.Concat(filling, value, axis=1), [0], [-by], [1])


def _columns(op: OpBuilder, like: ir.Value, count: int, number: object, dtype: ir.DataType) -> ir.Value:
    """Return (N, count) of one number, for as many rows as (N,) ``like`` has."""
    return op.expand(op.constant(number, dtype), [op.size(like, 0), count])


def _alignment(op: OpBuilder, targets: ir.Value, lengths: ir.Value, blank: int) -> tuple[ir.Value, ir.Value]:
    """Return the labels with blanks around each, (N, 2 L + 1), and where one may follow the one before its blank."""
    longest = op.ReduceMax(op.Concat(lengths, op.constant([0]), axis=0), [0], keepdims=0)
    columns = op.Range(0, longest, 1)
    position = op.Unsqueeze(columns, [0])
    inside = op.Less(position, op.Unsqueeze(lengths, [1]))
    if op.rank(targets) == 1:
        # The targets stand one after another; one more label keeps the table from being empty.
        starts = op.Unsqueeze(op.CumSum(lengths, op.constant(0), exclusive=1), [1])
        table = op.Concat(op.cast(targets, INT64), op.constant([blank]), axis=0)
        labels = op.Gather(table, op.Where(inside, op.Add(position, starts), op.constant(0)))
    else:
        labels = op.Gather(op.cast(targets, INT64), columns, axis=1)
    labels = op.Concat(op.Where(inside, labels, op.constant(blank)), _columns(op, lengths, 1, blank, INT64), axis=1)
    place = op.Range(0, op.Add(op.Mul(longest, 2), 1), 1)
    follows_blank = op.Equal(op.Mod(place, op.constant(2)), 1)
    extended = op.Where(follows_blank, op.Gather(labels, op.Div(place, op.constant(2)), axis=1), op.constant(blank))
    before = _shifted(op, extended, 2, _columns(op, lengths, 2, blank, INT64))
    return extended, op.Not(op.Equal(extended, before))


def _log_of_sum(op: OpBuilder, *terms: ir.Value) -> ir.Value:
    """Return log(sum(exp(terms))), which is minus infinity where all terms are."""
    largest = op.Max(*terms)
    largest = op.Where(op.Equal(largest, -math.inf), 0.0, largest)
    total = op.Exp(op.Sub(terms[0], largest))
    for term in terms[1:]:
        total = op.Add(total, op.Exp(op.Sub(term, largest)))
    return op.Add(op.Log(total), largest)


def _forward(
    op: OpBuilder, log_probs: ir.Value, targets: ir.Value, inputs: ir.Value, lengths: ir.Value, blank: int, keep: bool
) -> tuple[ir.Value, ir.Value | None]:
    """Run the forward recursion over time.

    Source: Graves et al., Connectionist Temporal Classification (2006), section 4.1, in logarithms.

    Returns:
        The negative log-likelihood (N,), and the forward variables (N, T, 2 L + 1) if they are to be kept.
    """
    dtype = op.dtype(log_probs)
    labels, skips = _alignment(op, targets, lengths, blank)
    nothing = _columns(op, lengths, 2, -math.inf, dtype)
    one = op.Slice(nothing, [0], [1], [1])
    ends = op.Unsqueeze(inputs, [1])

    def step(body: OpBuilder, t: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        alpha = state[0]
        jumped = body.Where(skips, _shifted(body, alpha, 2, nothing), -math.inf)
        reached = _log_of_sum(body, alpha, _shifted(body, alpha, 1, one), jumped)
        after = body.Add(reached, body.GatherElements(body.Gather(log_probs, t, axis=0), labels, axis=1))
        after = body.Where(body.Less(t, ends), after, alpha)
        return [after], [after] if keep else []

    # Before the first step everything stands at the first blank, from where one step reaches the first label, too.
    start = op.Where(op.Equal(op.Range(0, op.Gather(op.Shape(labels), 1), 1), 0), op.constant(0.0, dtype), one)
    (alpha,), stacked = repeat(op, op.size(log_probs, 0), [start], step)
    last = op.Unsqueeze(op.Mul(lengths, 2), [1])
    blank_end = op.GatherElements(alpha, last, axis=1)
    label_end = op.GatherElements(alpha, op.Max(op.Sub(last, 1), 0), axis=1)
    label_end = op.Where(op.Equal(last, 0), -math.inf, label_end)
    loss = op.Neg(op.Squeeze(_log_of_sum(op, blank_end, label_end), [1]))
    return loss, op.Transpose(stacked[0], perm=[1, 0, 2]) if keep else None


@lowering(aten._ctc_loss.default, aten._ctc_loss.Tensor)
def _ctc_loss(
    op: OpBuilder,
    log_probs: ir.Value,
    targets: ir.Value,
    input_lengths: ir.Value | Sequence[Size],
    target_lengths: ir.Value | Sequence[Size],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[ir.Value, ir.Value | None]:
    """``zero_infinity`` matters to the gradient alone here, as in torch."""
    inputs, lengths = _vector(op, input_lengths), _vector(op, target_lengths)
    return _forward(op, log_probs, targets, inputs, lengths, blank, keep=True)


@lowering(aten.ctc_loss.IntList, aten.ctc_loss.Tensor)
def ctc_loss(
    op: OpBuilder,
    log_probs: ir.Value,
    targets: ir.Value,
    input_lengths: ir.Value | Sequence[Size],
    target_lengths: ir.Value | Sequence[Size],
    blank: int = 0,
    reduction: int = MEAN,
    zero_infinity: bool = False,
) -> ir.Value:
    batched = op.rank(log_probs) == 3
    probabilities = log_probs if batched else op.Unsqueeze(log_probs, [1])
    inputs, lengths = _vector(op, input_lengths), _vector(op, target_lengths)
    loss, _ = _forward(op, probabilities, targets, inputs, lengths, blank, keep=False)
    if zero_infinity:
        loss = op.Where(op.Equal(loss, math.inf), 0.0, loss)
    if reduction == MEAN:
        loss = op.Div(loss, op.cast(op.Max(lengths, 1), op.dtype(loss)))
    loss = reduced(op, loss, reduction)
    return loss if batched or reduction != NONE else op.Squeeze(loss, [0])
