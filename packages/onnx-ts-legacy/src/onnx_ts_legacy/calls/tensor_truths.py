"""What a script asks of tensors and gets as one truth value: ``torch.equal``, ``torch.allclose``, ``is_nonzero``."""

from __future__ import annotations

from typing import Any

import torch

from onnx_ts_legacy.calls.scalars import binary
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import truth_of, truth_of_relation
from onnx_ts_legacy.state.values import RuntimeBool, Tensor
from onnx_ts_legacy.state.variables import number_in, rank_of, size_of

__all__ = ["TENSOR_TRUTHS", "truth_of_tensor"]

aten = torch.ops.aten


def truth_of_tensor(context: ConversionContext, tensor: Tensor) -> bool | RuntimeBool:
    """Return ``bool(tensor)`` of a tensor of one element."""
    return truth_of(context, number_in(context, tensor))


def _all(context: ConversionContext, tensor: Tensor) -> bool | RuntimeBool:
    return truth_of_tensor(context, context.call(aten.all.default, [tensor], {}))


def _equal(context: ConversionContext, a: Tensor, b: Tensor) -> Any:
    """Return ``torch.equal(a, b)``: tensors of other sizes are not equal, even if one can be expanded to the other."""
    rank = rank_of(context, a)
    same: Any = truth_of_relation(context, rank == rank_of(context, b))
    for axis in range(rank) if same is True else ():
        alike = truth_of_relation(context, size_of(context, a, axis) == size_of(context, b, axis))
        same = alike if same is True or alike is False else binary(context, "__and__", same, alike) if same else same
    if same is False:
        return False
    if same is True:
        return _all(context, context.call(aten.eq.Tensor, [a, b], {}))
    # Where the sizes differ, so many elements can be compared at least, whatever comes of it.
    first, second = (context.call(aten.reshape.default, [tensor, [-1]], {}) for tensor in (a, b))
    count = torch.sym_min(size_of(context, first, 0), size_of(context, second, 0))
    first, second = (context.call(aten.slice.Tensor, [flat, 0, 0, count, 1], {}) for flat in (first, second))
    return binary(context, "__and__", same, _all(context, context.call(aten.eq.Tensor, [first, second], {})))


def _allclose(context: ConversionContext, *args: Any) -> bool | RuntimeBool:
    return _all(context, context.call(aten.isclose.default, list(args), {}))


TENSOR_TRUTHS = {"aten::equal": _equal, "aten::allclose": _allclose, "aten::is_nonzero": truth_of_tensor}
