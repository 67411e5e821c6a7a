"""Packing of padded sequences and back, by the mask of the steps that belong to a sequence.

The packed rows are those of the padded tensor, time first, in the order of the mask (``torch.nn.utils.rnn``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnx_ts_legacy.calls.scalars import binary
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.variables import number_in, size_of, sizes_of

__all__ = ["PACKING"]

aten = torch.ops.aten


def _mask(context: ConversionContext, size: Any, bounds: Any, axis: int) -> Any:
    """Return ``arange(size) < bounds``, the range along the axis that ``bounds`` does not have."""
    call = context.call
    steps = call(aten.unsqueeze.default, [call(aten.arange.default, [size], {}), axis], {})
    return call(aten.lt.Tensor, [steps, call(aten.unsqueeze.default, [bounds, 1 - axis], {})], {})


def _pack(context: ConversionContext, args: Sequence[Any]) -> Any:
    call = context.call
    x, lengths, batch_first = args
    if batch_first:
        x = call(aten.transpose.int, [x, 0, 1], {})
    longest = number_in(context, call(aten.max.default, [lengths], {}))
    # As a slice it would need opset 10.
    x = call(aten.index_select.default, [x, 0, call(aten.arange.default, [longest], {})], {})
    mask = _mask(context, size_of(context, x, 0), lengths, 1)
    return call(aten.index.Tensor, [x, [mask]], {}), call(aten.sum.dim_IntList, [mask, [1]], {})


def _unpack(context: ConversionContext, args: Sequence[Any]) -> Any:
    call = context.call
    data, batch_sizes, batch_first, padding, total = args
    length = size_of(context, batch_sizes, 0)
    batch = number_in(context, call(aten.select.int, [batch_sizes, 0, 0], {}))
    mask = _mask(context, batch, batch_sizes, 0)
    sizes = [length, batch, *sizes_of(context, data)[1:]]
    empty = call(aten.full.default, [sizes, padding], {"dtype": data.fake.dtype})
    padded = call(aten.index_put.default, [empty, [mask], data], {})
    if not isinstance(total, int) or total > 0:
        missing = binary(context, "sub", total, length)
        tail = call(aten.full.default, [[missing, *sizes[1:]], padding], {"dtype": data.fake.dtype})
        padded = call(aten.cat.default, [[padded, tail], 0], {})
    if batch_first:
        padded = call(aten.transpose.int, [padded, 0, 1], {})
    return padded, call(aten.sum.dim_IntList, [mask, [0]], {})


PACKING: dict[Any, Callable[[ConversionContext, Sequence[Any]], Any]] = {
    aten._pack_padded_sequence.default: _pack,
    aten._pad_packed_sequence.default: _unpack,
}
