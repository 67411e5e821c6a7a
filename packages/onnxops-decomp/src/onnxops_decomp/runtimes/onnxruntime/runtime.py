"""ONNX Runtime on the CPU, as the builder knows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxops_decomp.builder.runtime import Deviation, Runtime
from onnxops_decomp.formulas.attention import mask_of_all_keys, mask_of_all_queries
from onnxops_decomp.passes.matching import operand, producer

# They register what stands in place of missing kernels.
from onnxops_decomp.runtimes.onnxruntime import composed, random, regions  # noqa: F401
from onnxops_decomp.runtimes.onnxruntime.float_weights import KeepFloatWeights
from onnxops_decomp.runtimes.onnxruntime.kernel_gaps import (
    compute_dtype,
    is_older,
    least_outputs,
    refusal,
    without_kernels,
)
from onnxops_decomp.runtimes.onnxruntime.operators import FORMS
from onnxops_decomp.runtimes.onnxruntime.padding import KeepPaddingApart
from onnxops_decomp.spec.inference import dims_of
from onnxops_decomp.spec.signs import is_never_negative
from onnxops_decomp.spec.traits import Trait, operators_with

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["ONNXRUNTIME"]


def _prepare(op: OpBuilder, op_type: str, values: list[ir.Value | None], attributes: Mapping[str, object]) -> None:
    """Replace operands that the runtime gets wrong."""
    prepare = _PREPARED.get(op_type)
    if prepare is not None:
        prepare(op, values, attributes)


def _prepare_gather(op: OpBuilder, values: list[ir.Value | None], attributes: Mapping[str, object]) -> None:
    values[1] = _apart_from_range(op, values[1])


def _prepare_matrix_product(op: OpBuilder, values: list[ir.Value | None], attributes: Mapping[str, object]) -> None:
    if is_older(1, 26):
        values[:] = [_apart_from_transpose(op, value) for value in values]


def _prepare_quotient(op: OpBuilder, values: list[ir.Value | None], attributes: Mapping[str, object]) -> None:
    if is_older(1, 23):
        _raise_to_rank_of_factor(op, values)


def _prepare_product(op: OpBuilder, values: list[ir.Value | None], attributes: Mapping[str, object]) -> None:
    _prepare_quotient(op, values, attributes)
    if is_older(1, 31):
        values[:] = [_apart_from_sigmoid(op, value) for value in values]


def _prepare_normalization(op: OpBuilder, values: list[ir.Value | None], attributes: Mapping[str, object]) -> None:
    if op.opset >= 17 and is_older(1, 27):
        _center(op, values, attributes.get("axis", -1))


def _prepare_attention(op: OpBuilder, values: list[ir.Value | None], attributes: Mapping[str, object]) -> None:
    if op.opset >= 23:
        _widen_mask(op, values)


def _widen_mask(op: OpBuilder, values: list[ir.Value | None]) -> None:
    """Give the mask of attention an entry for each query and key: the runtime broadcasts batches and heads alone."""
    query, key, _, mask, past, _, lengths = [*values, *[None] * 7][:7]
    if query is None or key is None or mask is None:
        return
    total = op.size(key, -2)
    if past is not None:
        total = op.size_add(total, op.size(past, 2))
    mask = mask_of_all_keys(op, mask, total, has_lengths=lengths is not None)
    values[3] = mask_of_all_queries(op, mask, op.size(query, -2))


def _center(op: OpBuilder, values: list[ir.Value | None], axis: object) -> None:
    """Subtract the mean before it is normalized, which changes nothing.

    The runtime took the mean of the squares less the square of the mean, of which no digit is right where the mean is
    large.
    """
    dims = dims_of(values[0])
    if dims is not None and isinstance(axis, int):
        axes = list(range(axis % len(dims), len(dims)))
        values[0] = op.Sub(values[0], op.ReduceMean(values[0], axes))


def _count_axes_from_front(op: OpBuilder, values: list[ir.Value | None], attributes: Mapping[str, object]) -> None:
    """Make the constant axes of a reduction non-negative: the runtime errs on negative ones of empty tensors."""
    axes = op.static(values[1]) if len(values) > 1 else None
    dims = dims_of(values[0])
    if axes is not None and dims is not None and min(axes.tolist(), default=0) < 0:
        values[1] = op.constant(np.where(axes < 0, axes + len(dims), axes))


def _apart_from_range(op: OpBuilder, index: ir.Value | None) -> ir.Value | None:
    """Let a range that may hold negative numbers, or end at one, start at 0, and add its start.

    The runtime makes a Slice of a Gather at a Range, with the same start and limit: negative ones then count from the
    end, so that 3, 2, 1, 0, whose limit is -1, and -2, -1, whose limit is 0, became no elements at all.
    """
    made = producer(index, "Range")
    if made is None or index is None:
        return index
    start, limit, delta = made.inputs
    step = op.static(delta)
    if step is not None and step > 0 and is_never_negative(start, op.static):
        return index
    return op.Add(op.Range(0, op.Sub(limit, start), delta), start)


def _apart_from_transpose(op: OpBuilder, value: ir.Value | None) -> ir.Value | None:
    """Put two exact operators between a product of doubles and what it has transposed.

    The runtime made one operator of a transposition and a product, also for doubles, for which that had no kernel: the
    model did not load.
    """
    source = value
    while (cast := producer(source, "Cast")) is not None:
        source = operand(cast, 0)
    if value is None or value.dtype != ir.DataType.DOUBLE or producer(source, "Transpose") is None:
        return value
    return op.Neg(op.Neg(value))


def _apart_from_sigmoid(op: OpBuilder, value: ir.Value | None) -> ir.Value | None:
    """Put two exact operators between a product of doubles and the sigmoid in it.

    The runtime made one operator of both, also for doubles, for which that had no kernel: the model did not load.
    """
    if value is None or value.dtype != ir.DataType.DOUBLE or producer(value, "Sigmoid") is None:
        return value
    return op.Neg(op.Neg(value))


def _raise_to_rank_of_factor(op: OpBuilder, values: list[ir.Value | None]) -> None:
    """Give a tensor all dimensions of the one constant number that it is multiplied by.

    The runtime let a product of matrices multiply by such a number, and left out the dimensions that it adds.
    """
    for index, factor in enumerate(values):
        number, wanted, rank = op.static(factor), dims_of(factor), dims_of(values[1 - index])
        if number is None or number.size != 1 or wanted is None or rank is None or len(rank) >= len(wanted):
            continue
        values[1 - index] = op.Unsqueeze(values[1 - index], list(range(len(wanted) - len(rank))))


# Forms of these are written without the operator; of others that take no doubles stand-ins are (``kernel_gaps``).
_NO_DOUBLES = {
    **dict.fromkeys(("AveragePool", "Conv", "ConvTranspose", "GRU", "InstanceNormalization", "LSTM", "RNN")),
    "Clip": 12,
    "GridSample": 20,
    **dict.fromkeys(("Max", "MaxPool", "Min"), 8),
}

_PREPARED: Mapping[str, Callable[[OpBuilder, list[ir.Value | None], Mapping[str, object]], None]] = {
    "Attention": _prepare_attention,
    "Div": _prepare_quotient,
    "Gather": _prepare_gather,
    "LayerNormalization": _prepare_normalization,
    "MatMul": _prepare_matrix_product,
    "Mul": _prepare_product,
    **dict.fromkeys(operators_with(Trait.REDUCES), _count_axes_from_front),
}

ONNXRUNTIME = Runtime(
    compute_dtype,
    without_kernels(),
    FORMS,
    _prepare,
    refusal,
    least_outputs(),
    (KeepPaddingApart, KeepFloatWeights),
    frozenset(Deviation),
    _NO_DOUBLES,
)
