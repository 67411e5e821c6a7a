"""Sums, means, extrema and norms over dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.builder.runtime import Deviation
from onnxops_decomp.builder.sizes import is_zero
from onnxops_decomp.dtypes import to_ir
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

__all__ = ["element_count", "lower_spreads", "mean", "reduce", "reduced_axes"]

aten = torch.ops.aten

BOOL, INT64, UINT8 = ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.UINT8

# Where torch sums in the dtype of the elements; in half precision a sum of its own would overflow.
_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)

Dims = Sequence[int] | int | None
# Variance and mean of a value over dimensions, with a correction of the count.
Moments = Callable[["OpBuilder", ir.Value, Dims, float, bool], tuple[ir.Value, ir.Value]]


def reduced_axes(op: OpBuilder, value: ir.Value, dim: Dims) -> list[int]:
    """Return the axes that ``dim`` names, all of them for None or an empty list, in order and not negative."""
    rank = op.rank(value)
    if dim is None:
        return list(range(rank))
    dims = [dim] if isinstance(dim, int) else list(dim)
    return sorted(axis % max(rank, 1) for axis in dims) if dims else list(range(rank))


def reduce(op: OpBuilder, op_type: str, value: ir.Value, dim: Dims, keepdim: bool = False) -> ir.Value:
    """Emit a reduction over ``dim`` as torch means it: None or [] is all, and a 0-d tensor counts as one element."""
    if op.rank(value) == 0:
        return op.emit(op_type, op.Unsqueeze(value, [0]), [0], keepdims=0)
    axes = reduced_axes(op, value, dim)
    whole = len(axes) == op.rank(value)
    return op.emit(op_type, value, None if whole else axes, keepdims=int(keepdim))


def element_count(op: OpBuilder, value: ir.Value, dim: Dims) -> Size:
    """Return how many elements one result of a reduction over ``dim`` comes from."""
    if op.rank(value) == 0:
        return 1
    return op.size_mul(*(op.size(value, axis) for axis in reduced_axes(op, value, dim)))


def mean(op: OpBuilder, value: ir.Value, dim: Dims, keepdim: bool = False, of_nothing: float = math.nan) -> ir.Value:
    """Return the mean over ``dim``, with that of no elements, which the specification of ReduceMean leaves open."""
    count = element_count(op, value, dim)
    if isinstance(count, ir.Value) and math.isnan(of_nothing) and op.dtype(value) in _WIDE:
        whole = len(reduced_axes(op, value, dim)) == op.rank(value)
        divisor = op.cast(op.Size(value) if whole else count, op.dtype(value))
        return op.Div(reduce(op, "ReduceSum", value, dim, keepdim), divisor)
    result = reduce(op, "ReduceMean", value, dim, keepdim)
    if isinstance(count, int) and count > 0:
        return result
    empty = op.constant(of_nothing, op.dtype(value))
    return op.expand(empty, op.sizes(result)) if is_zero(count) else op.Where(op.Equal(count, 0), empty, result)


def summed_dtype(op: OpBuilder, value: ir.Value, dtype: torch.dtype | None) -> ir.Value:
    """Cast to the dtype that torch sums in: ``dtype``, else INT64 for integers and bools."""
    if dtype is not None:
        return op.cast(value, to_ir(dtype))
    return value if op.dtype(value).is_floating_point() else op.cast(value, INT64)


def to_float(op: OpBuilder, value: ir.Value, dtype: torch.dtype | None = None) -> ir.Value:
    """Cast to ``dtype``, else integers and bools to the default float dtype."""
    if dtype is not None:
        return op.cast(value, to_ir(dtype))
    return value if op.dtype(value).is_floating_point() else op.cast(value, to_ir(torch.get_default_dtype()))


@lowering(aten.sum.default, aten.sum.dim_IntList)
def sum(
    op: OpBuilder, self: ir.Value, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> ir.Value:
    return reduce(op, "ReduceSum", summed_dtype(op, self, dtype), dim, keepdim)


def _without_nan(op: OpBuilder, value: ir.Value) -> ir.Value:
    return op.Where(op.IsNaN(value), 0, value) if op.dtype(value).is_floating_point() else value


@lowering(aten.nansum.default)
def nansum(
    op: OpBuilder, self: ir.Value, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> ir.Value:
    return sum(op, _without_nan(op, self), dim, keepdim, dtype)


@lowering(aten.mean.default, aten.mean.dim)
def mean_of_dtype(
    op: OpBuilder, self: ir.Value, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> ir.Value:
    return mean(op, self if dtype is None else op.cast(self, to_ir(dtype)), dim, keepdim)


@lowering(aten.nanmean.default)
def nanmean(
    op: OpBuilder, self: ir.Value, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> ir.Value:
    value = to_float(op, self, dtype)
    counted = op.cast(op.Not(op.IsNaN(value)), op.dtype(value))
    total = reduce(op, "ReduceSum", _without_nan(op, value), dim, keepdim)
    return op.Div(total, reduce(op, "ReduceSum", counted, dim, keepdim))


@lowering(aten.prod.default, aten.prod.dim_int)
def prod(
    op: OpBuilder, self: ir.Value, dim: int | None = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> ir.Value:
    return reduce(op, "ReduceProd", summed_dtype(op, self, dtype), dim, keepdim)


@lowering(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(op: OpBuilder, self: ir.Value, dim: Dims = None) -> ir.Value:
    return reduce(op, "ReduceSum", op.cast(op.cast(self, BOOL), INT64), dim)


# ---- extrema


def _has_nan(op: OpBuilder, value: ir.Value, dim: Dims, keepdim: bool) -> ir.Value:
    return op.cast(reduce(op, "ReduceMax", op.cast(op.IsNaN(value), UINT8), dim, keepdim), BOOL)


def extremum(op: OpBuilder, op_type: str, value: ir.Value, dim: Dims, keepdim: bool = False) -> ir.Value:
    """Return the largest or smallest element, which in torch is NaN if there is one.

    ONNX leaves open what ReduceMax makes of NaN; in runtimes it may depend on where that stands.
    """
    result = reduce(op, op_type, value, dim, keepdim)
    if not op.minds_nan(value):
        return result
    return op.Where(_has_nan(op, value, dim, keepdim), math.nan, result)


@lowering(aten.amax.default, aten.max.default)
def amax(op: OpBuilder, self: ir.Value, dim: Dims = (), keepdim: bool = False) -> ir.Value:
    return extremum(op, "ReduceMax", self, dim, keepdim)


@lowering(aten.amin.default, aten.min.default)
def amin(op: OpBuilder, self: ir.Value, dim: Dims = (), keepdim: bool = False) -> ir.Value:
    return extremum(op, "ReduceMin", self, dim, keepdim)


def _position(op: OpBuilder, op_type: str, value: ir.Value, axis: int, keepdim: bool) -> ir.Value:
    """Return where the extremum first is along an axis; the first NaN counts as one."""
    keys = op.cast(value, UINT8) if value.dtype == BOOL else value
    found = op.emit(op_type, keys, axis=axis, keepdims=int(keepdim))
    if not op.minds_nan(value):
        return found
    first_nan = op.ArgMax(op.cast(op.IsNaN(value), UINT8), axis=axis, keepdims=int(keepdim))
    return op.Where(_has_nan(op, value, axis, keepdim), first_nan, found)


def _arg(op: OpBuilder, op_type: str, value: ir.Value, dim: int | None, keepdim: bool) -> ir.Value:
    rank = op.rank(value)
    if rank == 0:
        return _position(op, op_type, op.Unsqueeze(value, [0]), 0, False)
    if dim is not None:
        return _position(op, op_type, value, dim % rank, keepdim)
    result = _position(op, op_type, op.Reshape(value, [-1]), 0, keepdim)
    return op.Reshape(result, [1] * rank) if keepdim else result


@lowering(aten.argmax.default)
def argmax(op: OpBuilder, self: ir.Value, dim: int | None = None, keepdim: bool = False) -> ir.Value:
    return _arg(op, "ArgMax", self, dim, keepdim)


@lowering(aten.argmin.default)
def argmin(op: OpBuilder, self: ir.Value, dim: int | None = None, keepdim: bool = False) -> ir.Value:
    return _arg(op, "ArgMin", self, dim, keepdim)


@lowering(aten.max.dim)
def max_dim(op: OpBuilder, self: ir.Value, dim: int, keepdim: bool = False) -> tuple[ir.Value, ir.Value]:
    return extremum(op, "ReduceMax", self, dim, keepdim), _arg(op, "ArgMax", self, dim, keepdim)


@lowering(aten.min.dim)
def min_dim(op: OpBuilder, self: ir.Value, dim: int, keepdim: bool = False) -> tuple[ir.Value, ir.Value]:
    return extremum(op, "ReduceMin", self, dim, keepdim), _arg(op, "ArgMin", self, dim, keepdim)


@lowering(aten.aminmax.default, aten._aminmax.default, aten._aminmax.dim)
def aminmax(op: OpBuilder, self: ir.Value, dim: int | None = None, keepdim: bool = False) -> tuple[ir.Value, ir.Value]:
    low, high = (extremum(op, name, self, dim, keepdim) for name in ("ReduceMin", "ReduceMax"))
    return low, high


def _test(op_type: str) -> Callable[..., ir.Value]:
    """Lowering of ``any`` or ``all``; of UINT8 torch makes UINT8."""

    def test(op: OpBuilder, self: ir.Value, dim: Dims = None, keepdim: bool = False) -> ir.Value:
        # Extrema of UINT8 are right for no elements, too: 0 is false and 255 true.
        truth = op.cast(op.cast(self, BOOL), UINT8)
        no_dims = isinstance(dim, Sequence) and not dim
        result = truth if no_dims else reduce(op, op_type, truth, dim, keepdim)
        answer = op.cast(result, BOOL)
        return op.cast(answer, UINT8) if self.dtype == UINT8 else answer

    return test


lowering(aten.any.default, aten.any.dim, aten.any.dims, aten._is_any_true.default)(_test("ReduceMax"))
lowering(aten.all.default, aten.all.dim, aten.all.dims, aten._is_all_true.default)(_test("ReduceMin"))


# ---- spread


def _moments(op: OpBuilder, value: ir.Value, dim: Dims, correction: float, keepdim: bool) -> tuple[ir.Value, ir.Value]:
    """Return the variance with ``correction`` taken off the count, and the mean."""
    center = reduce(op, "ReduceMean", value, dim, True)
    deviation = op.Sub(value, center)
    count = element_count(op, value, dim)
    if correction == 0:
        variance = mean(op, op.Mul(deviation, deviation), dim, keepdim)
    else:
        squares = reduce(op, "ReduceSum", op.Mul(deviation, deviation), dim, keepdim)
        variance = op.Div(squares, _degrees_of_freedom(op, count, correction, op.dtype(value)))
    # The mean of no elements is NaN, which what ReduceMean gives need not be.
    return variance, mean(op, value, dim, keepdim)


def _degrees_of_freedom(op: OpBuilder, count: Size, correction: float, dtype: ir.DataType) -> ir.Value:
    if isinstance(count, int):
        return op.constant(float(count - correction if count > correction else 0), dtype)
    return op.Max(op.Sub(op.cast(count, dtype), correction), 0)


def _spread(moments: Moments, root: bool, with_mean: bool) -> Callable[..., ir.Value | tuple[ir.Value, ir.Value]]:
    def spread(
        op: OpBuilder,
        self: ir.Value,
        dim: Dims = None,
        correction: float | None = None,
        keepdim: bool = False,
        unbiased: bool = True,
    ) -> ir.Value | tuple[ir.Value, ir.Value]:
        variance, average = moments(op, self, dim, int(unbiased) if correction is None else correction, keepdim)
        result = op.Sqrt(variance) if root else variance
        return (result, average) if with_mean else result

    return spread


def lower_spreads(moments: Moments, *, complex: bool = False) -> None:
    """Enter lowerings of variances and standard deviations, alone and beside the mean."""
    for packet, root, with_mean in (
        (aten.var, False, False),
        (aten.var_mean, False, True),
        (aten.std, True, False),
        (aten.std_mean, True, True),
    ):
        lowering(packet.correction, packet.default, packet.dim, complex=complex)(_spread(moments, root, with_mean))


lower_spreads(_moments)


# ---- norms


@lowering(aten.linalg_vector_norm.default)
def linalg_vector_norm(
    op: OpBuilder,
    self: ir.Value,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> ir.Value:
    value = to_float(op, self, dtype)
    if ord == 2:
        return reduce(op, "ReduceL2", value, dim, keepdim)
    if ord == 1:
        return reduce(op, "ReduceL1", value, dim, keepdim)
    if ord == 0:
        return reduce(op, "ReduceSum", op.cast(op.cast(value, BOOL), op.dtype(value)), dim, keepdim)
    if math.isinf(ord):
        return extremum(op, "ReduceMax" if ord > 0 else "ReduceMin", op.Abs(value), dim, keepdim)
    # Powers of half precision numbers leave its range, while the norm need not.
    narrow = op.dtype(value)
    wide = op.cast(value, ir.DataType.FLOAT) if narrow.itemsize < 4 else value
    # An exponent of its own dtype, which for a number would be FLOAT.
    power, root = (op.constant(exponent, op.dtype(wide)) for exponent in (float(ord), 1 / ord))
    powers = op.Pow(op.Abs(wide), power)
    return op.cast(op.Pow(reduce(op, "ReduceSum", powers, dim, keepdim), root), narrow)


@lowering(aten.norm.Scalar, aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dim_dtype, aten.norm.ScalarOpt_dtype)
def norm(
    op: OpBuilder,
    self: ir.Value,
    p: float | None = 2,
    dim: Dims = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> ir.Value:
    return linalg_vector_norm(op, self, 2 if p is None else p, dim, keepdim, dtype)


@lowering(aten.logsumexp.default)
def logsumexp(op: OpBuilder, self: ir.Value, dim: Dims, keepdim: bool = False) -> ir.Value:
    value = to_float(op, self)
    result = reduce(op, "ReduceLogSumExp", value, dim, keepdim)
    if not op.minds_nan(value) or not op.deviates(Deviation.NAN_BESIDE_INFINITY):
        return result
    return op.Where(_has_nan(op, value, dim, keepdim), math.nan, result)
