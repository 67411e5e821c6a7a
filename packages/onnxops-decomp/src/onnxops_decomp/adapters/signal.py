"""Fourier transforms and windows, as products with matrices of roots of unity where there is no operator."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxops_decomp.builder.forms import Adapter, adapter
from onnxops_decomp.errors import UnsupportedOpsetError
from onnxops_decomp.formulas.operands import arange, rank_of, static_ints
from onnxops_decomp.spec.inference import dims_of

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

_T = ir.DataType
# Larger matrices are computed by the model instead of stored in it.
_STORED_ELEMENTS = 1 << 20


@adapter("DFT", below=20)
def dft_with_axis_attribute(
    op: OpBuilder,
    input: ir.Value,
    dft_length: ir.Value | None = None,
    axis: ir.Value | None = None,
    *,
    older: OpBuilder,
    inverse: int = 0,
    onesided: int = 0,
) -> ir.Value:
    if inverse and onesided:
        # The older specification has no one-sided inverse.
        return inverse_of_half(op, input, dft_length, axis)
    rank = rank_of(op, input, "DFT", 20)
    return older.DFT(input, dft_length, axis=_axis(op, axis) % rank, inverse=inverse, onesided=onesided)


def inverse_of_half(
    op: OpBuilder, input: ir.Value, dft_length: ir.Value | None = None, axis: ir.Value | None = None
) -> ir.Value:
    """Return the real signal whose spectrum up to its middle is given."""
    return dft(op, input, dft_length, axis=_axis(op, axis), inverse=1, onesided=1)


def _axis(op: OpBuilder, axis: ir.Value | None) -> int:
    return (static_ints(op, axis, "DFT", "an axis", 20) or [-2])[0]


@adapter("DFT", below=17)
def dft(
    op: OpBuilder,
    input: ir.Value,
    dft_length: ir.Value | None = None,
    *,
    axis: int = 1,
    inverse: int = 0,
    onesided: int = 0,
) -> ir.Value:
    rank = rank_of(op, input, "DFT", 17)
    axis %= rank
    swap = [a for a in range(rank - 1) if a != axis] + [axis]
    parts = [op.Transpose(op.Gather(input, part, axis=-1), perm=swap) for part in range(_parts(op, input))]
    have = op.size(input, axis)
    length: Size
    if dft_length is None:
        length = op.size_mul(op.size_sub(have, 1), 2) if inverse and onesided else have
    else:
        length = op.as_size(op.Reshape(op.cast(dft_length, _T.INT64), [1]))
    half = op.size_add(op.size_floordiv(length, 2), 1)
    used, made = (half, length) if inverse and onesided else (length, half if onesided else length)
    parts = [_resized(op, part, have, used) for part in parts]
    real, imaginary = _transformed(op, parts, length, used, made, inverse=bool(inverse), half=bool(onesided))
    back = [swap.index(a) for a in range(rank - 1)]
    results = [real] if inverse and onesided else [real, imaginary]
    return op.Concat(*(op.Unsqueeze(op.Transpose(r, perm=back), [-1]) for r in results), axis=-1)


def _parts(op: OpBuilder, input: ir.Value) -> int:
    """Return 1 for a real signal and 2 for a complex one."""
    dims = dims_of(input)
    if not dims or not isinstance(dims[-1], int):
        raise UnsupportedOpsetError("DFT", op.opset, lowest=17, reason="whether the signal is complex")
    return dims[-1]


def _resized(op: OpBuilder, x: ir.Value, have: Size, want: Size) -> ir.Value:
    """Cut or fill the last axis with zeros to ``want`` elements."""
    if isinstance(have, int) and isinstance(want, int) and have == want:
        return x
    last = op.rank(x) - 1
    missing = op.size_max(op.size_sub(want, have), 0)
    if not isinstance(missing, int) or missing:
        x = op.Pad(x, op.vector([0, missing]), None, [last])
    return op.Slice(x, [0], op.vector([want]), [last])


def _transformed(
    op: OpBuilder, parts: list[ir.Value], length: Size, used: Size, made: Size, *, inverse: bool, half: bool
) -> tuple[ir.Value, ir.Value]:
    """Multiply by the roots of unity: ``used`` elements along the last axis become ``made``."""
    dtype = op.dtype(parts[0])
    cosine, sine = _roots(op, length, used, made, dtype, mirrored=inverse and half)
    real = parts[0]
    if len(parts) == 1:
        sums = op.MatMul(real, cosine), op.MatMul(real, sine)
        sums = (sums[0], sums[1] if inverse else op.Neg(sums[1]))
    else:
        imaginary = parts[1]
        a, b = op.MatMul(real, cosine), op.MatMul(imaginary, sine)
        c, d = op.MatMul(imaginary, cosine), op.MatMul(real, sine)
        sums = (op.Sub(a, b), op.Add(c, d)) if inverse else (op.Add(a, b), op.Sub(c, d))
    if not inverse:
        return sums
    scale = op.constant(length, dtype) if isinstance(length, int) else op.cast(length, dtype)
    return op.Div(sums[0], scale), op.Div(sums[1], scale)


def _roots(
    op: OpBuilder, length: Size, used: Size, made: Size, dtype: ir.DataType, *, mirrored: bool
) -> tuple[ir.Value, ir.Value]:
    """Return the cosines and sines of ``2 pi n k / length``.

    With ``mirrored`` a row counts twice where its frequency stands for its mirror image, too.
    """
    if isinstance(length, int) and isinstance(used, int) and isinstance(made, int) and used * made <= _STORED_ELEMENTS:
        turns = np.outer(np.arange(used), np.arange(made)) % max(length, 1)
        angles = turns * (2 * math.pi / max(length, 1))
        weights = np.ones((used, 1))
        if mirrored:
            weights[1 : (length + 1) // 2] = 2
        return op.constant(np.cos(angles) * weights, dtype), op.constant(np.sin(angles) * weights, dtype)
    n, k = op.Unsqueeze(arange(op, used), [1]), op.Unsqueeze(arange(op, made), [0])
    turn = op.cast(op.Mod(op.Mul(n, k), length), _T.DOUBLE)
    angle = op.Div(op.Mul(turn, 2 * math.pi), op.cast(length, _T.DOUBLE) if isinstance(length, ir.Value) else length)
    cosine, sine = op.cast(op.Cos(angle), dtype), op.cast(op.Sin(angle), dtype)
    if mirrored:
        # All frequencies but 0 and, of an even length, the last stand for their mirror image, too.
        twice = op.And(op.Greater(n, 0), op.Less(op.Mul(n, 2), length))
        weight = op.Add(op.cast(twice, dtype), 1)
        cosine, sine = op.Mul(cosine, weight), op.Mul(sine, weight)
    return cosine, sine


@adapter("STFT", below=17)
def stft(
    op: OpBuilder,
    signal: ir.Value,
    frame_step: ir.Value,
    window: ir.Value | None = None,
    frame_length: ir.Value | None = None,
    *,
    onesided: int = 1,
) -> ir.Value:
    samples = op.size(signal, 1)
    width: Size
    if frame_length is not None:
        width = op.as_size(op.Reshape(op.cast(frame_length, _T.INT64), [1]))
    else:
        width = samples if window is None else op.size(window, 0)
    step = op.as_size(op.Reshape(op.cast(frame_step, _T.INT64), [1]))
    frames = op.size_add(op.size_floordiv(op.size_sub(samples, width), step), 1)
    first = op.Mul(arange(op, frames), step)
    index = op.Add(op.Unsqueeze(first, [1]), op.Unsqueeze(arange(op, width), [0]))
    framed = op.Gather(signal, index, axis=1)
    if window is not None:
        framed = op.Mul(framed, op.Unsqueeze(window, [1]))
    return op.DFT(framed, None, -2, onesided=onesided)


def _window(*coefficients: float) -> Adapter:
    """Return a sum of cosines whose signs alternate."""

    def window(op: OpBuilder, size: ir.Value, *, periodic: int = 1, output_datatype: int = 1) -> ir.Value:
        count = op.as_size(op.Reshape(op.cast(size, _T.INT64), [1]))
        period = count if periodic else op.size_sub(count, 1)
        divisor = op.cast(period, _T.DOUBLE) if isinstance(period, ir.Value) else period
        position = op.cast(arange(op, count), _T.DOUBLE)
        total = op.constant(coefficients[0], _T.DOUBLE)
        for order, coefficient in enumerate(coefficients[1:], 1):
            cosine = op.Cos(op.Div(op.Mul(position, 2 * math.pi * order), divisor))
            total = op.Add(total, op.Mul(cosine, coefficient * (-1) ** order))
        return op.cast(total, ir.DataType(output_datatype))

    return window


adapter("HannWindow", below=17)(_window(0.5, 0.5))
adapter("HammingWindow", below=17)(_window(25 / 46, 21 / 46))
adapter("BlackmanWindow", below=17)(_window(0.42, 0.5, 0.08))
