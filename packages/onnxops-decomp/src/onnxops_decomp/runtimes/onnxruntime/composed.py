"""Operators composed of others where the runtime lacks a kernel for a dtype; see :mod:`.kernel_gaps`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import torch

from onnxops_decomp.adapters import activations, creation, resampling, shapes, signal, vision, windows
from onnxops_decomp.builder.forms import without_kernel
from onnxops_decomp.errors import LoweringError, UnsupportedOpsetError
from onnxops_decomp.formulas.tabulated import tabulated
from onnxops_decomp.runtimes.onnxruntime.kernel_gaps import is_older
from onnxops_decomp.spec.inference import dims_of

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

_T = ir.DataType
_INTEGERS = (_T.INT8, _T.INT16, _T.INT32, _T.INT64, _T.UINT8, _T.UINT16, _T.UINT32, _T.UINT64)
_DOUBLE = (_T.DOUBLE,)


# ---- booleans and integers


@without_kernel("Where", dtypes=[_T.BOOL], operand=1)
def where_of_booleans(op: OpBuilder, condition: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    first, second = _scalar_bool(op, x), _scalar_bool(op, y)
    if first is not None:
        return op.Or(condition, y) if first else op.And(op.Not(condition), y)
    if second is not None:
        return op.Or(op.Not(condition), x) if second else op.And(condition, x)
    return op.Or(op.And(condition, x), op.And(op.Not(condition), y))


def _scalar_bool(op: OpBuilder, value: ir.Value) -> bool | None:
    array = op.static(value)
    return bool(array) if array is not None and array.ndim == 0 else None


if is_older(1, 28):

    @without_kernel("ReduceMin", dtypes=(_T.UINT8,))
    def reduce_min_of_bytes(op: OpBuilder, data: ir.Value, axes: ir.Value | None = None, **attributes: int) -> ir.Value:
        # The minimum of no bytes was 0, which their maximum is by right.
        def turned(x: ir.Value) -> ir.Value:
            return op.cast(op.Sub(255, op.cast(x, _T.INT32)), _T.UINT8)

        return turned(op.ReduceMax(turned(data), axes, **attributes))


# ---- integers of 64 bits, of which two were compared by their low halves where the high ones are equal


def _are_sizes(op: OpBuilder, *values: ir.Value | None) -> bool:
    """Tell whether values are single sizes, as the builder computes them: no size has more than 31 bits."""
    return all(dims_of(value) == (1,) or op.static(value) is not None for value in values)


def _extreme(op: OpBuilder, is_first: str, *values: ir.Value) -> ir.Value | None:
    if _are_sizes(op, *values):
        return None
    result = values[0]
    for value in values[1:]:
        result = op.Where(op.emit(is_first, result, value), result, value)
    return result


def max_of_long(op: OpBuilder, *values: ir.Value) -> ir.Value | None:
    return _extreme(op, "Greater", *values)


def min_of_long(op: OpBuilder, *values: ir.Value) -> ir.Value | None:
    return _extreme(op, "Less", *values)


def clip_of_long(
    op: OpBuilder, x: ir.Value, low: ir.Value | None = None, high: ir.Value | None = None
) -> ir.Value | None:
    if _are_sizes(op, x):
        return None
    raised = x if low is None else op.Max(x, low)
    return raised if high is None else op.Min(raised, high)


def _with_result_of_nothing(op: OpBuilder, x: ir.Value, axis: int, position: str, dtype: ir.DataType) -> ir.Value:
    """Append what no elements are reduced to, so that there is a position of which to take the result."""
    limits = np.iinfo(dtype.numpy())
    sizes = op.sizes(x)
    sizes[axis] = 1
    limit = op.constant(limits.min if position == "ArgMax" else limits.max, _T.INT64)
    return op.Concat(x, op.expand(limit, sizes), axis=axis)


# Of a number of 64 bits three digits of this base, each with the sign of the number, fit 32 bits.
_BASE = 2**21


def _reduced_by_digits(op: OpBuilder, x: ir.Value, axes: ir.Value | None, position: str, keepdims: int) -> ir.Value:
    """Reduce the highest digits first, and lower ones of those numbers alone that have the result's higher ones."""
    rest = op.cast(x, _T.INT64)
    left_out = -(2**31) if position == "ArgMax" else 2**31 - 1
    parts: list[ir.Value] = []
    chosen = None
    for unit in (_BASE**2, _BASE, 1):
        whole = op.Div(rest, unit) if unit > 1 else rest
        rest = op.Sub(rest, op.Mul(whole, unit))
        digits = op.cast(whole, _T.INT32)
        if chosen is not None:
            digits = op.Where(chosen, digits, op.constant(left_out, _T.INT32))
        best = op.emit("ReduceMax" if position == "ArgMax" else "ReduceMin", digits, axes, keepdims=1)
        same = op.Equal(digits, best)
        chosen = same if chosen is None else op.And(chosen, same)
        parts.append(op.Mul(op.cast(best, _T.INT64), unit))
    high, middle, low = parts
    result: ir.Value = op.cast(op.Add(op.Add(high, middle), low), op.dtype(x))
    return result if keepdims else op.Squeeze(result, axes)


def _reduction_of_long(position: str) -> Callable[..., ir.Value | None]:
    def reduced(
        op: OpBuilder,
        x: ir.Value,
        axes: ir.Value | Sequence[int] | None = None,
        *,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> ir.Value | None:
        # Below opset 18 axes are an attribute.
        along = op.constant(list(axes), _T.INT64) if isinstance(axes, Sequence) else axes
        dims, chosen = dims_of(x), op.static(along)
        if noop_with_empty_axes and (along is None or chosen is None or not chosen.size):
            return None
        if dims is None or (along is not None and (chosen is None or not chosen.size)) or op.opset < _GATHER_ELEMENTS:
            return _reduced_by_digits(op, x, along, position, keepdims)
        places = range(len(dims)) if chosen is None else [int(axis) % len(dims) for axis in chosen]
        result = op.cast(x, _T.INT64)
        for axis in places:
            if not (isinstance(dims[axis], int) and dims[axis]):
                result = _with_result_of_nothing(op, result, axis, position, op.dtype(x))
            result = op.GatherElements(result, op.emit(position, result, axis=axis, keepdims=1), axis=axis)
        result = op.cast(result, op.dtype(x))
        return result if keepdims else op.Squeeze(result, list(places))

    return reduced


_GATHER_ELEMENTS = 11
if is_older(1, 32):
    without_kernel("Max", dtypes=(_T.INT64,))(max_of_long)
    without_kernel("Min", dtypes=(_T.INT64,))(min_of_long)
    without_kernel("Clip", dtypes=(_T.INT64,))(clip_of_long)
    without_kernel("ReduceMax", dtypes=(_T.INT64, _T.UINT32))(_reduction_of_long("ArgMax"))
    without_kernel("ReduceMin", dtypes=(_T.INT64, _T.UINT32))(_reduction_of_long("ArgMin"))


@without_kernel("Gemm", dtypes=(_T.INT32, _T.INT64, _T.UINT32, _T.UINT64))
def gemm_of_integers(
    op: OpBuilder,
    a: ir.Value,
    b: ir.Value,
    c: ir.Value | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> ir.Value:
    left = op.Transpose(a, perm=[1, 0]) if transA else a
    right = op.Transpose(b, perm=[1, 0]) if transB else b
    product = op.Mul(op.MatMul(left, right), int(alpha))
    return product if c is None else op.Add(product, op.Mul(c, int(beta)))


@without_kernel("Relu", dtypes=(_T.INT64,))
def relu_of_integers(op: OpBuilder, x: ir.Value) -> ir.Value:
    return op.Max(x, 0)


@without_kernel("TopK", dtypes=(_T.UINT64,))
def top_k_of_uint64(
    op: OpBuilder, x: ir.Value, k: ir.Value, *, axis: int = -1, largest: int = 1, sorted: int = 1, _outputs: int = 1
) -> tuple[ir.Value, ...]:
    # The same bits as a signed number, moved down by 2**63, keep the order.
    signed = op.Add(op.cast(x, _T.INT64), -(2**63))
    index = op.emit_many("TopK", 2, signed, k, axis=axis, largest=largest, sorted=sorted)[1]
    return (op.GatherElements(x, index, axis=axis), index)[:_outputs]


without_kernel("EyeLike", dtypes=(_T.BOOL, _T.INT8, _T.INT16, _T.UINT8, _T.UINT16, _T.UINT32))(creation.eye_like)
_NO_BLOCKS = (_T.BOOL, _T.INT16, _T.INT32, _T.INT64, _T.UINT16, _T.UINT32, _T.UINT64)
without_kernel("DepthToSpace", dtypes=_NO_BLOCKS)(shapes.composed_depth_to_space)


@without_kernel("DepthToSpace", dtypes=(_T.INT8, _T.UINT8))
def depth_to_space_of_bytes(op: OpBuilder, input: ir.Value, **attributes: Any) -> ir.Value | None:
    has_kernel = op.opset >= 11 and (input.dtype != _T.INT8 or not is_older(1, 28))
    return None if has_kernel else shapes.composed_depth_to_space(op, input, **attributes)


without_kernel("SpaceToDepth", dtypes=_NO_BLOCKS)(shapes.composed_space_to_depth)


without_kernel("Resize", dtypes=_DOUBLE)(resampling.resize_of_doubles)


@without_kernel("DeformConv")
def deform_conv(
    op: OpBuilder, x: ir.Value, weight: ir.Value, offset: ir.Value, *others: ir.Value | None, **attributes: Any
) -> ir.Value:
    try:
        return vision.deform_conv(op, x, weight, offset, *others, **attributes)
    except UnsupportedOpsetError as error:
        raise LoweringError(
            f"DeformConv has no kernel in the installed ONNX Runtime, and is written otherwise for {error.reason}: "
            "install onnxruntime>=1.26."
        ) from error


@without_kernel("AveragePool")
def average_pool(
    op: OpBuilder,
    x: ir.Value,
    *,
    pads: Sequence[int] | None = None,
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    **attributes: object,
) -> ir.Value | None:
    if not count_include_pad:
        return None
    if ceil_mode and is_older(1, 30):
        # Windows that stick out of counted padding were divided by too much.
        return windows.average_pool_with_ceil_mode(
            op, x, older=op, pads=pads, ceil_mode=1, count_include_pad=1, **attributes
        )
    if pads and is_older(1, 25) and op.opset >= 19 and len(set(pads)) > 1:
        # Kernels for dilations took the padding of one axis for that of another.
        padded = op.Pad(x, list(pads), None, list(range(2, 2 + len(pads) // 2)))
        return op.AveragePool(padded, ceil_mode=ceil_mode, **attributes)
    return None


@without_kernel("DFT")
def dft(
    op: OpBuilder,
    input: ir.Value,
    dft_length: ir.Value | None = None,
    axis: ir.Value | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> ir.Value | None:
    if not (inverse and onesided):
        return None
    return signal.inverse_of_half(op, input, dft_length, axis)


@without_kernel("STFT")
def stft(
    op: OpBuilder,
    x: ir.Value,
    frame_step: ir.Value,
    window: ir.Value | None = None,
    frame_length: ir.Value | None = None,
    *,
    onesided: int = 1,
) -> ir.Value | None:
    dims = dims_of(x)
    if dims is not None and (len(dims) == _REAL_SIGNAL or dims[-1] == 1):
        return None
    return signal.stft(op, x, frame_step, window, frame_length, onesided=onesided)


_REAL_SIGNAL = 2  # the rank without a dimension for the imaginary part


# ---- doubles


@without_kernel("OneHot", dtypes=_DOUBLE, operand=2)
def one_hot_of_doubles(
    op: OpBuilder, indices: ir.Value, depth: ir.Value, values: ir.Value, *, axis: int = -1
) -> ir.Value:
    chosen = op.OneHot(indices, depth, op.constant([0, 1], _T.INT64), axis=axis)
    off, on = op.Squeeze(op.Slice(values, [0], [1], [0]), [0]), op.Squeeze(op.Slice(values, [1], [2], [0]), [0])
    return op.Where(op.cast(chosen, _T.BOOL), on, off)


if is_older(1, 29):

    @without_kernel("Cos", dtypes=_DOUBLE)
    def cos(op: OpBuilder, x: ir.Value) -> ir.Value:
        # Halves are exact, so that the angle stays what it is.
        half = op.Sin(op.Div(x, 2.0))
        return op.Sub(1.0, op.Mul(op.Mul(half, half), 2.0))


@without_kernel("Tan", dtypes=_DOUBLE)
def tan(op: OpBuilder, x: ir.Value) -> ir.Value:
    return op.Div(op.Sin(x), op.Cos(x))


@without_kernel("Atan", dtypes=_DOUBLE)
def atan(op: OpBuilder, x: ir.Value) -> ir.Value:
    """Correct the angle of the nearest float by one step of Newton's method, which gives all digits of a double."""
    steep = op.Greater(op.Abs(x), 1)
    ratio = op.Where(steep, op.Reciprocal(x), x)
    near = op.cast(op.Atan(op.cast(ratio, _T.FLOAT)), _T.DOUBLE)
    sine, cosine = op.Sin(near), op.Cos(near)
    rest = op.Div(op.Sub(op.Mul(ratio, cosine), sine), op.Add(cosine, op.Mul(ratio, sine)))
    angle = op.Add(near, rest)
    return op.Where(steep, op.Sub(op.Mul(op.Sign(x), math.pi / 2), angle), angle)


@without_kernel("Asin", dtypes=_DOUBLE)
def asin(op: OpBuilder, x: ir.Value) -> ir.Value:
    return op.Atan(op.Div(x, op.Sqrt(op.Mul(op.Sub(1, x), op.Add(x, 1)))))


@without_kernel("Acos", dtypes=_DOUBLE)
def acos(op: OpBuilder, x: ir.Value) -> ir.Value:
    return op.Mul(op.Atan(op.Sqrt(op.Div(op.Sub(1, x), op.Add(x, 1)))), 2)


for _name, _form in activations.HYPERBOLIC.items():
    without_kernel(_name, dtypes=_DOUBLE)(_form)


def _expm1_of_negative(op: OpBuilder, x: ir.Value) -> ir.Value:
    """Return exp(x) - 1 for x <= 0 without losing the digits of small results."""
    half = op.Tanh(op.Mul(x, 0.5))
    return op.Div(op.Mul(half, 2), op.Sub(1, half))


@without_kernel("Elu", dtypes=_DOUBLE)
def elu(op: OpBuilder, x: ir.Value, *, alpha: float = 1.0) -> ir.Value:
    return op.Where(op.Greater(x, 0), x, op.Mul(_expm1_of_negative(op, op.Min(x, 0)), alpha))


@without_kernel("Selu", dtypes=_DOUBLE)
def selu(
    op: OpBuilder, x: ir.Value, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323
) -> ir.Value:
    return op.Mul(op.Elu(x, alpha=alpha), gamma)


@without_kernel("HardSigmoid", dtypes=_DOUBLE)
def hard_sigmoid(op: OpBuilder, x: ir.Value, *, alpha: float = 0.2, beta: float = 0.5) -> ir.Value:
    return op.Clip(op.Add(op.Mul(x, alpha), beta), 0, 1)


without_kernel("Swish")(activations.swish)
without_kernel("SwiGLU")(activations.swiglu)
without_kernel("HardSwish", dtypes=_DOUBLE)(activations.hard_swish)
without_kernel("Mish", dtypes=_DOUBLE)(activations.mish)


@without_kernel("LeakyRelu", dtypes=_DOUBLE)
def leaky_relu(op: OpBuilder, x: ir.Value, *, alpha: float = 0.01) -> ir.Value:
    return op.Where(op.Less(x, 0), op.Mul(x, alpha), x)


@without_kernel("PRelu", dtypes=(_T.DOUBLE, *_INTEGERS))
def prelu(op: OpBuilder, x: ir.Value, slope: ir.Value) -> ir.Value:
    return op.Where(op.Less(x, 0), op.Mul(x, slope), x)


@without_kernel("Softplus", dtypes=_DOUBLE)
def softplus(op: OpBuilder, x: ir.Value) -> ir.Value:
    return op.Add(op.Max(x, 0), activations.log1p(op, op.Exp(op.Neg(op.Abs(x)))))


@without_kernel("Softsign", dtypes=_DOUBLE)
def softsign(op: OpBuilder, x: ir.Value) -> ir.Value:
    return op.Div(x, op.Add(op.Abs(x), 1))


without_kernel("ThresholdedRelu", dtypes=_DOUBLE)(activations.thresholded_relu)


@without_kernel("Mean", dtypes=_DOUBLE)
def mean(op: OpBuilder, *values: ir.Value) -> ir.Value:
    return op.Div(op.Sum(*values), len(values))


@without_kernel("GlobalAveragePool", dtypes=_DOUBLE)
def global_average_pool(op: OpBuilder, x: ir.Value) -> ir.Value:
    return op.ReduceMean(x, list(range(2, op.rank(x))))


@without_kernel("GlobalMaxPool", dtypes=_DOUBLE)
def global_max_pool(op: OpBuilder, x: ir.Value) -> ir.Value:
    return op.ReduceMax(x, list(range(2, op.rank(x))))


@without_kernel("Hardmax", dtypes=_DOUBLE)
def hardmax(op: OpBuilder, x: ir.Value, *, axis: int = -1) -> ir.Value:
    dims = dims_of(x)
    first = op.ArgMax(x, axis=axis, keepdims=0)
    depth = op.size(x, axis if dims is None else axis % len(dims))
    return op.OneHot(first, depth, op.constant([0, 1], _T.DOUBLE), axis=axis)


@without_kernel("InstanceNormalization", dtypes=_DOUBLE)
def instance_normalization(
    op: OpBuilder, x: ir.Value, scale: ir.Value, bias: ir.Value, *, epsilon: float = 1e-5
) -> ir.Value:
    spatial = list(range(2, op.rank(x)))
    centered = op.Sub(x, op.ReduceMean(x, spatial))
    variance = op.ReduceMean(op.Mul(centered, centered), spatial)
    per_channel = [axis - 1 for axis in spatial]
    result = op.Mul(op.Div(centered, op.Sqrt(op.Add(variance, epsilon))), op.Unsqueeze(scale, per_channel))
    return op.Add(result, op.Unsqueeze(bias, per_channel))


# From here on erf is 1 to the last digit of a double.
_ERF_LIMIT = 6.0


def _erf_over_x(x: torch.Tensor) -> torch.Tensor:
    return torch.erf(x) / x


@without_kernel("Erf", dtypes=_DOUBLE)
def erf(op: OpBuilder, x: ir.Value) -> ir.Value:
    size = op.Min(op.Abs(x), _ERF_LIMIT)
    inside = op.Mul(size, tabulated(op, size, _erf_over_x, 0, _ERF_LIMIT))
    # Exactly 1, because gelu multiplies what is left beside it with x.
    return op.Mul(op.Sign(x), op.Where(op.Equal(size, _ERF_LIMIT), 1.0, inside))


without_kernel("Gelu", dtypes=_DOUBLE)(activations.gelu)
without_kernel("Col2Im", dtypes=(_T.DOUBLE, *_INTEGERS))(windows.col2im)
