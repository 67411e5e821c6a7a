"""Random numbers where the runtime has no generator but Dropout's mask."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxops_decomp.adapters.random import bernoulli
from onnxops_decomp.builder.forms import without_kernel
from onnxops_decomp.spec.significands import SIGNIFICAND_BITS

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

_T = ir.DataType


without_kernel("Bernoulli")(bernoulli)


def _uniform(op: OpBuilder, shape: ir.Value, dtype: ir.DataType, seed: float | None) -> ir.Value:
    """Return numbers of [0, 1), each made of as many random bits as its significand has: none rounds up to 1."""
    bits = SIGNIFICAND_BITS[dtype]
    wide = _T.DOUBLE if dtype == _T.DOUBLE else _T.FLOAT
    ones = op.ConstantOfShape(op.Concat(shape, [bits], axis=0), value=np.ones(1, np.float32))
    mask = op.emit_many("Dropout", 2, ones, 0.5, True, seed=None if seed is None else int(seed))[1]
    # A column instead of a vector, which the runtime's MatMul does not take beside an empty operand.
    weights = op.constant(0.5 ** np.arange(1, bits + 1)[:, None], wide)
    return op.cast(op.Squeeze(op.MatMul(op.cast(mask, wide), weights), [-1]), dtype)


def _normal(op: OpBuilder, shape: ir.Value, dtype: ir.DataType, seed: float | None) -> ir.Value:
    """Return standard normal numbers, by the transform of Box and Muller."""
    wide = _T.DOUBLE if dtype == _T.DOUBLE else _T.FLOAT
    radius = op.Sqrt(op.Mul(op.Log(op.Sub(1, _uniform(op, shape, wide, seed))), -2))
    angle = op.Mul(_uniform(op, shape, wide, None if seed is None else seed + 1), 2 * math.pi)
    return op.cast(op.Mul(radius, op.Cos(angle)), dtype)


def _dtype(dtype: int | None, like: ir.Value | None = None) -> ir.DataType:
    if dtype:
        return ir.DataType(dtype)
    given = None if like is None else like.dtype
    return given if given is not None and given in SIGNIFICAND_BITS else _T.FLOAT


@without_kernel("RandomUniform")
def random_uniform(
    op: OpBuilder,
    *,
    shape: Sequence[int],
    dtype: int | None = None,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
) -> ir.Value:
    draw = _uniform(op, op.constant(list(shape), _T.INT64), _dtype(dtype), seed)
    return op.Add(op.Mul(draw, high - low), low)


@without_kernel("RandomUniformLike")
def random_uniform_like(
    op: OpBuilder,
    input: ir.Value,
    *,
    dtype: int | None = None,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
) -> ir.Value:
    return op.Add(op.Mul(_uniform(op, op.Shape(input), _dtype(dtype, input), seed), high - low), low)


@without_kernel("RandomNormal")
def random_normal(
    op: OpBuilder,
    *,
    shape: Sequence[int],
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> ir.Value:
    draw = _normal(op, op.constant(list(shape), _T.INT64), _dtype(dtype), seed)
    return op.Add(op.Mul(draw, scale), mean)


@without_kernel("RandomNormalLike")
def random_normal_like(
    op: OpBuilder,
    input: ir.Value,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> ir.Value:
    return op.Add(op.Mul(_normal(op, op.Shape(input), _dtype(dtype, input), seed), scale), mean)


@without_kernel("Multinomial")
def multinomial(
    op: OpBuilder,
    input: ir.Value,
    *,
    dtype: int | None = None,
    sample_size: int = 1,
    seed: float | None = None,
) -> ir.Value:
    # The largest of the log-probabilities with Gumbel noise falls on each class with its probability.
    batch, classes = op.sizes(input)
    kind = op.dtype(input)
    wide = _T.DOUBLE if kind == _T.DOUBLE else _T.FLOAT
    draw = _uniform(op, op.vector([batch, sample_size, classes]), wide, seed)
    # A draw of 0 would be infinite noise.
    noise = op.Neg(op.Log(op.Neg(op.Log(op.Max(draw, 2.0**-25)))))
    scores = op.Add(op.Unsqueeze(op.cast(input, wide), [1]), noise)
    return op.cast(op.ArgMax(scores, axis=2, keepdims=0), ir.DataType(dtype) if dtype else _T.INT32)
