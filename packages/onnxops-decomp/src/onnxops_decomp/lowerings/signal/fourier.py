"""Discrete Fourier transforms.

ONNX's DFT takes one axis at a time, and divides an inverse transform by its length; torch scales as ``norm`` says.
Scales are kept as exponents of the number of points: 0 for none, -1/2 for the unitary transform, -1 for its inverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.builder.runtime import Deviation
from onnxops_decomp.dtypes import is_complex, mark_complex, to_ir
from onnxops_decomp.lowerings.complex.numbers import conj
from onnxops_decomp.lowerings.pointwise.conversions import as_complex
from onnxops_decomp.lowerings.registry import Function, lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

__all__ = ["precise_dtype"]

aten = torch.ops.aten

FLOAT, FLOAT16 = ir.DataType.FLOAT, ir.DataType.FLOAT16

_FORWARD_EXPONENT: dict[str | None, float] = {None: 0, "backward": 0, "ortho": -0.5, "forward": -1}
# Of the integer that aten._fft_r2c takes.
_EXPONENTS = (0.0, -0.5, -1.0)

Lengths = Sequence["Size | None"]


def _exponent(norm: str | None, inverse: bool) -> float:
    forward = _FORWARD_EXPONENT[norm]
    return -1 - forward if inverse else forward


def _scaled(op: OpBuilder, value: ir.Value, points: Size, exponent: float) -> ir.Value:
    """Return ``value * points ** exponent``."""
    if exponent == 0:
        return value
    if isinstance(points, int):
        return op.Mul(value, float(points) ** exponent)
    return op.Mul(value, op.Pow(op.number(points, op.dtype(value)), exponent))


def precise_dtype(op: OpBuilder, value: ir.Value, length: Size) -> ir.DataType:
    """Return the dtype to transform ``value`` in.

    Where lengths that are not powers of two are transformed by a convolution (Bluestein), which leaves FLOAT some 4
    digits, the same in DOUBLE gives all that FLOAT can hold.
    """
    if not op.deviates(Deviation.ROUGH_SPECTRUM):
        return op.dtype(value)
    if isinstance(length, int) and length > 0 and length & (length - 1) == 0:
        return op.dtype(value)
    return ir.DataType.DOUBLE


def _dft(
    op: OpBuilder, value: ir.Value, axis: int, length: Size | None, inverse: bool = False, onesided: bool = False
) -> ir.Value:
    dtype = precise_dtype(op, value, op.size(value, axis) if length is None else length)
    size = op.constant(length) if isinstance(length, int) else length
    result = op.DFT(op.cast(value, dtype), size, op.constant(axis), inverse=int(inverse), onesided=int(onesided))
    return op.cast(result, op.dtype(value))


def _with_one_point(op: OpBuilder, value: ir.Value, axis: int, length: Size | None) -> ir.Value:
    """Give an axis that is lengthened, and may be empty, a first element of the zeros that it is lengthened by."""
    size = op.size(value, axis)
    if length is None or (isinstance(size, int) and size) or not op.deviates(Deviation.EMPTY_SIGNAL):
        return value
    missing = op.size_max(op.size_sub(1, size), 0)
    result: ir.Value = op.Pad(value, op.vector([0, missing]), None, op.constant([axis]))
    return result


def _along(
    op: OpBuilder, value: ir.Value, axes: Sequence[int], lengths: Lengths, inverse: bool
) -> tuple[ir.Value, Size]:
    """Transform complex numbers along axes one after the other; return the number of points, too."""
    points: Size = 1
    for axis, length in zip(axes, lengths, strict=True):
        points = op.size_mul(points, op.size(value, axis) if length is None else length)
        value = _dft(op, _with_one_point(op, value, axis, length), axis, length, inverse)
    return value, points


def _plan(op: OpBuilder, value: ir.Value, s: Lengths | None, dim: Sequence[int] | None) -> tuple[list[int], Lengths]:
    """Return the axes to transform and the length to bring each to."""
    rank = op.rank(value) - int(is_complex(value))
    if dim is None:
        dim = range(rank) if s is None else range(rank - len(s), rank)
    axes = [axis % rank for axis in dim]
    if s is None:
        return axes, [None] * len(axes)
    return axes, [None if isinstance(size, int) and size == -1 else size for size in s]


def _as_float(op: OpBuilder, value: ir.Value) -> ir.Value:
    dtype = op.dtype(value)
    if dtype.is_floating_point():
        return op.cast(value, FLOAT) if dtype == FLOAT16 else value
    return op.cast(value, to_ir(torch.get_default_dtype()))


def _complex_to_complex(
    op: OpBuilder, value: ir.Value, axes: Sequence[int], lengths: Lengths, inverse: bool, exponent: float
) -> ir.Value:
    half = value.dtype == FLOAT16
    if is_complex(value):
        numbers = _as_float(op, value)
    elif inverse:
        numbers = as_complex(op, _as_float(op, value))
    else:
        numbers = op.Unsqueeze(_as_float(op, value), [op.rank(value)])
    result, points = _along(op, numbers, axes, lengths, inverse)
    result = _scaled(op, result, points, exponent + 1 if inverse else exponent)
    return mark_complex(op.cast(result, FLOAT16) if half else result)


def _real_to_complex(
    op: OpBuilder, value: ir.Value, axes: Sequence[int], lengths: Lengths, onesided: bool, exponent: float
) -> ir.Value:
    half = value.dtype == FLOAT16
    last, length = axes[-1], lengths[-1]
    points = op.size(value, last) if length is None else length
    numbers = _with_one_point(op, op.Unsqueeze(_as_float(op, value), [op.rank(value)]), last, length)
    result = _dft(op, numbers, last, length, onesided=onesided)
    result, others = _along(op, result, axes[:-1], lengths[:-1], inverse=False)
    result = _scaled(op, result, op.size_mul(points, others), exponent)
    return mark_complex(op.cast(result, FLOAT16) if half else result)


def _with_bins(op: OpBuilder, value: ir.Value, axis: int, length: Size) -> ir.Value:
    """Bring a one-sided spectrum to the bins that ``length`` real points have."""
    if not op.deviates(Deviation.BINS_AS_GIVEN):
        return value
    size, bins = op.size(value, axis), op.size_add(op.size_floordiv(length, 2), 1)
    if isinstance(size, int) and size == bins:
        return value
    cut = op.Slice(value, op.vector([0]), op.vector([bins]), op.constant([axis]))
    missing = op.size_max(op.size_sub(bins, size), 0)
    result: ir.Value = op.Pad(cut, op.vector([0, missing]), None, op.constant([axis]))
    dims = [op.dim(each) for each in op.sizes(value)]
    dims[axis] = op.dim(bins)
    op.set_dims(result, dims)
    return result


def _complex_to_real(
    op: OpBuilder, value: ir.Value, axes: Sequence[int], lengths: Lengths, exponent: float
) -> ir.Value:
    half = value.dtype == FLOAT16
    numbers = _as_float(op, value if is_complex(value) else as_complex(op, value))
    length = lengths[-1]
    if length is None:
        length = op.size_mul(op.size_sub(op.size(numbers, axes[-1]), 1), 2)
    else:
        numbers = _with_bins(op, numbers, axes[-1], length)
    numbers, others = _along(op, numbers, axes[:-1], lengths[:-1], inverse=True)
    result = _dft(op, numbers, axes[-1], length, inverse=True, onesided=True)
    result = op.Squeeze(result, [op.rank(numbers) - 1])
    result = _scaled(op, result, op.size_mul(length, others), exponent + 1)
    return op.cast(result, FLOAT16) if half else result


# ---- the functions of torch.fft


def _transform(kind: str, inverse: bool) -> Function:
    """Lowering of an n-dimensional transform: c2c, r2c, c2r; the last two exist in both directions."""

    def transform(
        op: OpBuilder,
        self: ir.Value,
        s: Lengths | None = None,
        dim: Sequence[int] | None = None,
        norm: str | None = None,
    ) -> ir.Value:
        axes, lengths = _plan(op, self, s, dim)
        exponent = _exponent(norm, inverse)
        if kind == "c2c":
            return _complex_to_complex(op, self, axes, lengths, inverse, exponent)
        if kind == "r2c":
            result = _real_to_complex(op, self, axes, lengths, True, exponent)
            return conj(op, result) if inverse else result
        mirrored = self if inverse or not is_complex(self) else conj(op, self)
        return _complex_to_real(op, mirrored, axes, lengths, exponent)

    return transform


def _one_dimensional(transform: Function) -> Function:
    def one(op: OpBuilder, self: ir.Value, n: Size | None = None, dim: int = -1, norm: str | None = None) -> ir.Value:
        result: ir.Value = transform(op, self, None if n is None else [n], [dim], norm)
        return result

    return one


def _two_dimensional(transform: Function) -> Function:
    def two(
        op: OpBuilder, self: ir.Value, s: Lengths | None = None, dim: Sequence[int] = (-2, -1), norm: str | None = None
    ) -> ir.Value:
        result: ir.Value = transform(op, self, s, dim, norm)
        return result

    return two


for _name, _kind, _inverse, _operands in (
    ("fft", "c2c", False, (False, True)),
    ("ifft", "c2c", True, (False, True)),
    ("rfft", "r2c", False, (False,)),
    ("ihfft", "r2c", True, (False,)),
    ("irfft", "c2r", True, (False, True)),
    ("hfft", "c2r", False, (False, True)),
):
    _function = _transform(_kind, _inverse)
    for _of_complex in _operands:
        lowering(f"aten::fft_{_name}", complex=_of_complex)(_one_dimensional(_function))
        lowering(f"aten::fft_{_name}2", complex=_of_complex)(_two_dimensional(_function))
        lowering(f"aten::fft_{_name}n", complex=_of_complex)(_function)


# ---- what torch.fft is made of


@lowering(aten._fft_c2c.default, complex=True)
def fft_c2c(op: OpBuilder, self: ir.Value, dim: Sequence[int], normalization: int, forward: bool) -> ir.Value:
    axes, lengths = _plan(op, self, None, dim)
    return _complex_to_complex(op, self, axes, lengths, not forward, _EXPONENTS[normalization])


@lowering("prims::fft_c2c", complex=True)
def prims_fft_c2c(op: OpBuilder, self: ir.Value, dim: Sequence[int], forward: bool) -> ir.Value:
    return fft_c2c(op, self, dim, 0, forward)


@lowering(aten._fft_r2c.default)
def fft_r2c(op: OpBuilder, self: ir.Value, dim: Sequence[int], normalization: int, onesided: bool) -> ir.Value:
    axes, lengths = _plan(op, self, None, dim)
    return _real_to_complex(op, self, axes, lengths, onesided, _EXPONENTS[normalization])


@lowering("prims::fft_r2c")
def prims_fft_r2c(op: OpBuilder, self: ir.Value, dim: Sequence[int], onesided: bool) -> ir.Value:
    return fft_r2c(op, self, dim, 0, onesided)


@lowering(aten._fft_c2r.default, complex=True)
def fft_c2r(op: OpBuilder, self: ir.Value, dim: Sequence[int], normalization: int, last_dim_size: Size) -> ir.Value:
    axes, lengths = _plan(op, self, None, dim)
    return _complex_to_real(op, self, axes, [*lengths[:-1], last_dim_size], _EXPONENTS[normalization])


@lowering("prims::fft_c2r", complex=True)
def prims_fft_c2r(op: OpBuilder, self: ir.Value, dim: Sequence[int], last_dim_size: Size) -> ir.Value:
    return fft_c2r(op, self, dim, 0, last_dim_size)
