"""What is left of rows of tokens behind which padding may stand: states of last tokens, and columns of convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

__all__ = ["TRANSLATIONS", "before_padding"]


@torch.library.custom_op("onnx_fx_export::before_padding", mutates_args=())
def before_padding(
    states: list[torch.Tensor],
    last: list[torch.Tensor],
    past: list[torch.Tensor],
    new: list[torch.Tensor],
    mask: torch.Tensor,
) -> list[torch.Tensor]:
    """Return what the last token of each row leaves, where padding may stand behind it.

    Args:
        states: What is known of each new token (B, S, width), of which that of the last token is wanted (B, 1, width).
        last: The last columns that each convolution leaves, padding among them (B, C, K - 1).
        past: The columns before what is new (B, C, K - 1).
        new: What is new (B, C, S).
        mask: 1 for a token and 0 for padding (B, P + S), int64; of padding alone the last place counts as a token's
            among the states, and nothing is new to the columns.

    Returns:
        The states of the last tokens, then the last columns of each convolution that are no padding.
    """
    length = states[0].shape[1] if states else new[0].shape[2]
    mask = mask[:, mask.shape[1] - length :]
    token = length - 1 - mask.flip(-1).argmax(-1)[:, None, None]
    ends = (mask * torch.arange(1, length + 1)).amax(-1)[:, None, None]
    joined = [torch.cat(pair, -1) for pair in zip(past, new, strict=True)]
    columns = [(all_, ends + torch.arange(own.shape[2])) for all_, own in zip(joined, last, strict=True)]
    return [
        *(state.gather(1, token.expand(-1, 1, state.shape[2])) for state in states),
        *(all_.gather(2, places.expand(-1, all_.shape[1], -1)) for all_, places in columns),
    ]


@before_padding.register_fake
def _(states: list[torch.Tensor], last: list[torch.Tensor], *_: Any) -> list[torch.Tensor]:
    rows = [state.new_empty(state.shape[0], 1, state.shape[2]) for state in states]
    return [*rows, *(torch.empty_like(own) for own in last)]


def _write(op: Any, states: Any, last: Any, past: Any, new: Any, mask: Any) -> Any:
    """Write what stands at the end of all rows, and a loop of one round or none that takes padding into account.

    A loop of no rounds runs nothing, where each branch of an If is a graph that runs.
    """
    initial = [*(op.Gather(state, [-1], axis=1) for state in states), *last]
    ends_in_padding = op.Equal(op.ReduceMin(op.Gather(mask, [-1], axis=1), keepdims=0), 0)
    body = op.subgraph()
    body.input("index", ir.DataType.INT64, ())
    body.input("going", ir.DataType.BOOL, ())
    for value in initial:
        body.input("found", value.dtype, [*value.shape])
    found = _before_padding(body, states, past, new, mask)
    graph = body.graph([body.Identity(body.constant(False)), *found], name="body")
    results = op.emit_many("Loop", len(initial), None, ends_in_padding, *initial, body=graph)
    for result, own in zip(results, initial, strict=True):
        result.type, result.shape = own.type, own.shape
    return results


def _before_padding(op: Any, states: Any, past: Any, new: Any, mask: Any) -> list[ir.Value]:
    """Return what stands before the place from which on rows have no tokens any more."""
    length = op.Shape(states[0], start=1, end=2) if states else op.Shape(new[0], start=2, end=3)
    mask = op.Slice(mask, op.Neg(length), [np.iinfo(np.int64).max], [1])
    token = op.ArgMax(mask, axis=-1, keepdims=1, select_last_index=1)
    ends = op.Unsqueeze(op.Mul(op.Add(token, 1), op.ReduceMax(mask, [-1], keepdims=1)), [2])
    results = [op.GatherND(state, op.Unsqueeze(token, [2]), batch_dims=1) for state in states]
    for before, own in zip(past, new, strict=True):
        places = op.expand(op.Add(ends, op.constant(np.arange(int(before.shape[2])))), op.sizes(before))
        results.append(op.GatherElements(op.Concat(before, own, axis=2), places, axis=2))
    return results


TRANSLATIONS: dict[Any, Callable[..., Any]] = {before_padding: _write}
