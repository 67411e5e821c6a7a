"""Dropout in training: of elements, of whole channels, and the kind that keeps mean and variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.lowerings.random.numbers import uniform_numbers
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

aten = torch.ops.aten


@lowering(aten.dropout.default)
def dropout(op: OpBuilder, input: ir.Value, p: float, train: bool) -> ir.Value:
    if not train or p == 0:
        return input
    return native_dropout(op, input, p, True)[0]


@lowering(aten.native_dropout.default)
def native_dropout(op: OpBuilder, input: ir.Value, p: float, train: bool | None) -> tuple[ir.Value, ir.Value]:
    if train is False or p == 0:
        return input, op.Expand(op.constant(True), op.Shape(input))
    if p == 1:
        # ONNX's Dropout divides by 1 - p and asks for p < 1.
        nothing = op.Mul(input, 0)
        return nothing, op.Expand(op.constant(False), op.Shape(input))
    if _is_fixed(input):
        # Runtimes take a Dropout of constants for a constant that drops nothing.
        mask = _kept(op, op.sizes(input), p)
        return op.Mul(input, op.Div(op.cast(mask, op.dtype(input)), 1 - p)), mask
    output, mask = op.emit_many("Dropout", 2, input, op.constant(p, ir.DataType.FLOAT), op.constant(True))
    return output, mask


def _is_fixed(value: ir.Value) -> bool:
    """Tell whether a value depends on no input of its graph, nor on the graphs around it."""
    seen, waiting = {value}, [value]
    while waiting:
        found = waiting.pop()
        producer = found.producer()
        is_input = producer is None and found.const_value is None
        if is_input or (producer is not None and producer.op_type.startswith("Random")):
            return False
        sources = {source for source in (producer.inputs if producer is not None else ()) if source is not None}
        waiting.extend(sources - seen)
        seen |= sources
    return True


def _kept(op: OpBuilder, sizes: Sequence[Size], p: float) -> ir.Value:
    """Return which elements stay, drawn one by one."""
    return op.Less(uniform_numbers(op, sizes, ir.DataType.FLOAT), 1 - p)


def _channels(op: OpBuilder, input: ir.Value) -> list[Size]:
    """Return sizes of one element per sample and channel, which broadcast over ``input``."""
    return [op.size(input, axis) if axis < 2 else 1 for axis in range(op.rank(input))]


@lowering(aten.feature_dropout.default)
def feature_dropout(op: OpBuilder, input: ir.Value, p: float, train: bool) -> ir.Value:
    if not train or p == 0:
        return input
    if p == 1:
        return op.Mul(input, 0)
    kept = op.cast(_kept(op, _channels(op, input), p), op.dtype(input))
    return op.Mul(input, op.Div(kept, 1 - p))


def _alpha_dropout(op: OpBuilder, input: ir.Value, sizes: Sequence[Size], p: float) -> ir.Value:
    """Drop to the negative saturation of SELU and rescale, so that mean and variance stay (arXiv:1706.02515)."""
    if p == 1:
        return op.Mul(input, 0)
    saturation = 1.7580993408473766
    scale = 1 / math.sqrt((saturation**2 * p + 1) * (1 - p))
    kept = _kept(op, sizes, p)
    shifted = op.Add(op.Mul(input, scale), saturation * scale * p)
    return op.Where(kept, shifted, saturation * scale * (p - 1))


@lowering(aten.alpha_dropout.default)
def alpha_dropout(op: OpBuilder, input: ir.Value, p: float, train: bool) -> ir.Value:
    return _alpha_dropout(op, input, op.sizes(input), p) if train and p > 0 else input


@lowering(aten.feature_alpha_dropout.default)
def feature_alpha_dropout(op: OpBuilder, input: ir.Value, p: float, train: bool) -> ir.Value:
    return _alpha_dropout(op, input, _channels(op, input), p) if train and p > 0 else input
