"""Tensors made from sizes and numbers: arange, zeros, full, eye, linspace."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import torch

from onnxops_decomp.builder.constants import is_number
from onnxops_decomp.dtypes import promote, to_ir
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.lowerings.layout.shapes import unsqueeze_at
from onnxops_decomp.lowerings.registry import Function, lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size
    from onnxops_decomp.dtypes import Operand

__all__ = ["filled", "scalar"]

aten = torch.ops.aten

_INT64 = ir.DataType.INT64
# Static sequences up to this length become constants; longer ones are computed, so that a model never grows by them.
_CONSTANT_LENGTH = 1024


def _default_float() -> ir.DataType:
    return to_ir(torch.get_default_dtype())


def scalar(op: OpBuilder, value: Operand, dtype: ir.DataType) -> ir.Value:
    """Return a number as a 0-d tensor of ``dtype``."""
    if not isinstance(value, ir.Value):
        return op.constant(value, dtype)
    return op.cast(value if op.rank(value) == 0 else op.Reshape(value, []), dtype)


def _as_tensor(op: OpBuilder, value: ir.Value) -> ir.Value:
    """Return what is no longer a number, which would take the dtype of the tensors beside it."""
    return op.copy(value) if is_number(value) else value


def filled(op: OpBuilder, sizes: Sequence[Size], value: Operand, dtype: ir.DataType) -> ir.Value:
    """Return a tensor of the given sizes with one value everywhere."""
    return _as_tensor(op, op.expand(scalar(op, value, dtype), sizes))


# ---- one value everywhere


def _dtype_of(value: Operand) -> ir.DataType:
    """Return the dtype that torch.full infers from its value."""
    if isinstance(value, ir.Value):
        assert value.dtype is not None
        return _default_float() if value.dtype.is_floating_point() else value.dtype
    if isinstance(value, bool):
        return ir.DataType.BOOL
    return _INT64 if isinstance(value, int) else _default_float()


@lowering(aten.full.default)
def full(op: OpBuilder, size: Sequence[Size], fill_value: Operand, *, dtype: torch.dtype | None = None) -> ir.Value:
    return filled(op, size, fill_value, _dtype_of(fill_value) if dtype is None else to_ir(dtype))


@lowering(aten.full_like.default)
def full_like(op: OpBuilder, self: ir.Value, fill_value: Operand, *, dtype: torch.dtype | None = None) -> ir.Value:
    return filled(op, op.sizes(self), fill_value, op.dtype(self) if dtype is None else to_ir(dtype))


@lowering(aten.new_full.default)
def new_full(
    op: OpBuilder, self: ir.Value, size: Sequence[Size], fill_value: Operand, *, dtype: torch.dtype | None = None
) -> ir.Value:
    return filled(op, size, fill_value, op.dtype(self) if dtype is None else to_ir(dtype))


def _filled_with(number: int) -> tuple[Function, Function, Function]:
    """Lowerings of zeros or ones, by size, like another tensor, and by size in another tensor's dtype."""

    def by_size(op: OpBuilder, size: Sequence[Size], *, dtype: torch.dtype | None = None) -> ir.Value:
        return filled(op, size, number, _default_float() if dtype is None else to_ir(dtype))

    def like(op: OpBuilder, self: ir.Value, *, dtype: torch.dtype | None = None) -> ir.Value:
        return full_like(op, self, number, dtype=dtype)

    def new(op: OpBuilder, self: ir.Value, size: Sequence[Size], *, dtype: torch.dtype | None = None) -> ir.Value:
        return new_full(op, self, size, number, dtype=dtype)

    return by_size, like, new


for _name, _number in {"zeros": 0, "ones": 1, "empty": 0}.items():
    _by_size, _like, _new = _filled_with(_number)
    lowering("aten::empty.memory_format" if _name == "empty" else f"aten::{_name}")(_by_size)
    lowering(f"aten::{_name}_like")(_like)
    lowering(f"aten::new_{_name}")(_new)
lowering("aten::_efficientzerotensor")(_filled_with(0)[0])


@lowering(aten.empty_strided.default)
def empty_strided(
    op: OpBuilder, size: Sequence[Size], stride: Sequence[Size], *, dtype: torch.dtype | None = None
) -> ir.Value:
    return filled(op, size, 0, _default_float() if dtype is None else to_ir(dtype))


@lowering(aten.empty_permuted.default)
def empty_permuted(
    op: OpBuilder, size: Sequence[Size], physical_layout: Sequence[int], *, dtype: torch.dtype | None = None
) -> ir.Value:
    return filled(op, size, 0, _default_float() if dtype is None else to_ir(dtype))


@lowering(aten.new_empty_strided.default)
def new_empty_strided(
    op: OpBuilder,
    self: ir.Value,
    size: Sequence[Size],
    stride: Sequence[Size],
    *,
    dtype: torch.dtype | None = None,
) -> ir.Value:
    return new_full(op, self, size, 0, dtype=dtype)


@lowering(aten.scalar_tensor.default)
def scalar_tensor(op: OpBuilder, s: Operand, *, dtype: torch.dtype | None = None) -> ir.Value:
    return _as_tensor(op, scalar(op, s, _default_float() if dtype is None else to_ir(dtype)))


@lowering(aten.tensor.int, aten.tensor.float, aten.tensor.bool)
def tensor(op: OpBuilder, t: Operand, *, dtype: torch.dtype | None = None) -> ir.Value:
    return _as_tensor(op, scalar(op, t, _dtype_of(t) if dtype is None else to_ir(dtype)))


@lowering(aten.tensor.default)
def tensor_of_list(op: OpBuilder, data: Sequence[Any], *, dtype: torch.dtype | None = None) -> ir.Value:
    """Make a tensor of nested lists of numbers; those known only at run time are 0-d values."""
    if not data or not isinstance(data[0], list | tuple):
        kinds = [_dtype_of(number) for number in data]
        found = next((kind for kind in kinds if kind.is_floating_point()), kinds[0] if kinds else _default_float())
        wanted = found if dtype is None else to_ir(dtype)
        if not any(isinstance(number, ir.Value) for number in data):
            return op.constant(list(data), wanted)
        return op.Concat(*(op.reshape(scalar(op, number, wanted), [1]) for number in data), axis=0)
    rows = promote(op, *(tensor_of_list(op, row, dtype=dtype) for row in data))
    return op.Concat(*(op.Unsqueeze(row, [0]) for row in rows), axis=0)


# ---- sequences


def _is_integral(value: Operand) -> bool:
    if isinstance(value, ir.Value):
        return value.dtype is not None and not value.dtype.is_floating_point()
    return isinstance(value, int)


@lowering(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(
    op: OpBuilder, end: Operand, start: Operand = 0, step: Operand = 1, *, dtype: torch.dtype | None = None
) -> ir.Value:
    integral = all(_is_integral(value) for value in (start, end, step))
    wanted = to_ir(dtype) if dtype is not None else _INT64 if integral else _default_float()
    if not wanted.is_floating_point() and not integral:
        return op.cast(_truncated_range(op, start, end, step, wanted), wanted)
    if integral:
        return op.cast(op.Range(*(scalar(op, value, _INT64) for value in (start, end, step))), wanted)
    return op.cast(_float_range(op, start, end, step), wanted)


@lowering("aten::range", "aten::range.step")
def range_with_end(
    op: OpBuilder, start: Operand, end: Operand, step: Operand = 1, *, dtype: torch.dtype | None = None
) -> ir.Value:
    wanted = to_ir(dtype) if dtype is not None else _default_float()
    if isinstance(start, ir.Value) or isinstance(end, ir.Value) or isinstance(step, ir.Value):
        raise LoweringError("torch.range needs numbers that are known at export; torch.arange takes others.")
    count = int((end - start) / step + 1)
    return op.cast(op.constant(start + np.arange(count, dtype=np.float64) * step), wanted)


def _truncated_range(op: OpBuilder, start: Operand, end: Operand, step: Operand, dtype: ir.DataType) -> ir.Value:
    """Count from ``start`` in steps of integers, both truncated; older torch truncates the end of INT64, too."""
    if dtype == _INT64 and _truncates_ends():
        return op.Range(*(_truncated(op, value) for value in (start, end, step)))
    positions = op.Range(0, _range_length(op, start, end, step), 1)
    return op.Add(op.Mul(positions, _truncated(op, step)), _truncated(op, start))


@functools.cache
def _truncates_ends() -> bool:
    """Tell whether the installed torch counts INT64 up to a truncated end; torch 2.15 does as for other dtypes."""
    return torch.arange(1.5, dtype=torch.int64, device="cpu").numel() == 1


def _truncated(op: OpBuilder, value: Operand) -> ir.Value:
    return op.cast(value, _INT64) if isinstance(value, ir.Value) else op.constant(int(value), _INT64)


def _range_length(op: OpBuilder, start: Operand, end: Operand, step: Operand) -> Size:
    """Return how many multiples of ``step`` lie from ``start`` up to ``end``."""
    if not any(isinstance(value, ir.Value) for value in (start, end, step)):
        first, last, delta = (float(value) for value in (start, end, step) if not isinstance(value, ir.Value))
        return max(math.ceil((last - first) / delta), 0)
    values = [scalar(op, value, ir.DataType.DOUBLE) for value in (start, end, step)]
    return op.cast(op.Ceil(op.Div(op.Sub(values[1], values[0]), values[2])), _INT64)


def _float_range(op: OpBuilder, start: Operand, end: Operand, step: Operand) -> ir.Value:
    """Compute ``start + i * step`` in DOUBLE; runtimes add up the steps in a Range of floats, and so the errors."""
    count = _range_length(op, start, end, step)
    if isinstance(count, int) and count <= _CONSTANT_LENGTH:
        first, delta = (float(value) for value in (start, step) if not isinstance(value, ir.Value))
        return op.constant(np.arange(count) * delta + first, ir.DataType.DOUBLE)
    positions = op.cast(op.Range(0, count, 1), ir.DataType.DOUBLE)
    first_value, delta_value = (scalar(op, value, ir.DataType.DOUBLE) for value in (start, step))
    return op.Add(op.Mul(positions, delta_value), first_value)


# ---- evenly spaced numbers


def _spaced(op: OpBuilder, start: Operand, end: Operand, steps: Size) -> ir.Value:
    """Return ``steps`` DOUBLE numbers from ``start`` to ``end``, counted from the nearer end as torch does."""
    first, last = (op.reshape(scalar(op, value, ir.DataType.DOUBLE), [1]) for value in (start, end))
    if isinstance(steps, int) and steps < 2:
        return op.Slice(first, [0], [steps])
    index = op.Range(0, steps, 1)
    divisor = op.cast(op.vector([op.size_sub(steps, 1)]), ir.DataType.DOUBLE)
    if not isinstance(steps, int):
        # A single number is the first one.
        divisor, last = op.Max(divisor, 1.0), op.Where(op.Equal(divisor, 0.0), first, last)
    step = op.Div(op.Sub(last, first), divisor)
    ascending = op.Add(first, op.Mul(op.cast(index, ir.DataType.DOUBLE), step))
    rest = op.Sub(op.vector([op.size_sub(steps, 1)]), index)
    descending = op.Sub(last, op.Mul(op.cast(rest, ir.DataType.DOUBLE), step))
    return op.Where(op.Less(index, op.vector([op.size_floordiv(steps, 2)])), ascending, descending)


@lowering(aten.linspace.default, aten.linspace.Tensor_Tensor, aten.linspace.Tensor_Scalar, aten.linspace.Scalar_Tensor)
def linspace(op: OpBuilder, start: Operand, end: Operand, steps: Size, *, dtype: torch.dtype | None = None) -> ir.Value:
    wanted = _default_float() if dtype is None else to_ir(dtype)
    return op.cast(_spaced(op, _bound(op, start, wanted), _bound(op, end, wanted), steps), wanted)


def _bound(op: OpBuilder, value: Operand, dtype: ir.DataType) -> Operand:
    """Return an end of the range as torch takes it: in the dtype of the result if that is integral."""
    if dtype.is_floating_point():
        return value
    return op.cast(value, dtype) if isinstance(value, ir.Value) else int(value)


@lowering(aten.logspace.default, aten.logspace.Tensor_Tensor, aten.logspace.Tensor_Scalar, aten.logspace.Scalar_Tensor)
def logspace(
    op: OpBuilder,
    start: Operand,
    end: Operand,
    steps: Size,
    base: float = 10.0,
    *,
    dtype: torch.dtype | None = None,
) -> ir.Value:
    wanted = _default_float() if dtype is None else to_ir(dtype)
    exponents = _spaced(op, _bound(op, start, wanted), _bound(op, end, wanted), steps)
    return op.cast(op.Pow(op.constant(base, ir.DataType.DOUBLE), exponents), wanted)


# ---- matrices


@lowering(aten.eye.default, aten.eye.m)
def eye(op: OpBuilder, n: Size, m: Size | None = None, *, dtype: torch.dtype | None = None) -> ir.Value:
    m = n if m is None else m
    wanted = _default_float() if dtype is None else to_ir(dtype)
    if isinstance(n, int) and isinstance(m, int) and n * m <= _CONSTANT_LENGTH:
        return op.constant(np.eye(n, m), wanted)
    rows, columns = op.Unsqueeze(op.Range(0, n, 1), [1]), unsqueeze_at(op, op.Range(0, m, 1), [0])
    return op.cast(op.Equal(rows, columns), wanted)
