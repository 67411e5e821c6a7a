"""Tensors from nothing: ranges, constants, triangles, identities, running sums, random masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxops_decomp.builder.forms import adapter
from onnxops_decomp.errors import UnsupportedOpsetError
from onnxops_decomp.formulas.loops import repeat
from onnxops_decomp.formulas.operands import arange, dim_sizes, static_ints
from onnxops_decomp.spec.inference import dims_of

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

_BOOL, _INT64 = ir.DataType.BOOL, ir.DataType.INT64
_FLOAT, _DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE

_SINCE_20 = (
    ir.DataType.BFLOAT16,
    ir.DataType.FLOAT8E4M3FN,
    ir.DataType.FLOAT8E4M3FNUZ,
    ir.DataType.FLOAT8E5M2,
    ir.DataType.FLOAT8E5M2FNUZ,
)


@adapter("ConstantOfShape", below=20)
def constant_of_shape_of_older_dtypes(
    op: OpBuilder, shape: ir.Value, *, older: OpBuilder, value: ir.TensorProtocol | None = None
) -> ir.Value:
    if value is None or value.dtype not in _SINCE_20:
        return older.ConstantOfShape(shape, value=value)
    return op.Expand(op.constant(value.numpy().reshape(()), value.dtype), shape)


@adapter("ConstantOfShape", below=9)
def constant_of_shape(op: OpBuilder, shape: ir.Value, *, value: ir.TensorProtocol | None = None) -> ir.Value:
    dtype = _FLOAT if value is None else value.dtype
    fill = op.constant(0 if value is None else value.numpy().reshape(()), dtype)
    return op.Expand(fill, shape)


@adapter("Range", below=27)
def range_in_its_dtype(
    op: OpBuilder, start: ir.Value, limit: ir.Value, delta: ir.Value, *, older: OpBuilder, stash_type: int = 1
) -> ir.Value:
    # Below 27 half floats are widened to FLOAT, which is the default stash type.
    if stash_type != 1 and op.dtype(start) not in (_FLOAT, _DOUBLE) and op.dtype(start).is_floating_point():
        raise UnsupportedOpsetError("Range", op.opset, lowest=27, reason="a stash type other than FLOAT")
    return older.Range(start, limit, delta)


@adapter("Range", below=11)
def range_(op: OpBuilder, start: ir.Value, limit: ir.Value, delta: ir.Value) -> ir.Value:
    dtype = op.dtype(start)
    first, step = op.static(start), op.static(delta)
    count = limit
    if first is None or first != 0:
        count = op.Sub(limit, start)
    if step is None or step != 1:
        count = _ceil_div(op, count, delta)
    elif dtype.is_floating_point():
        count = op.Ceil(count)
    index = op.cast(_count_up(op, op.cast(count, _INT64)), dtype)
    return op.Add(start, op.Mul(index, delta))


def _ceil_div(op: OpBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    if op.dtype(a).is_floating_point():
        return op.Ceil(op.Div(a, b))
    return op.Neg(op.floor_div(op.Neg(a), b))


def _count_up(op: OpBuilder, count: ir.Value) -> ir.Value:
    """Return ``0, 1, ..., count - 1`` where there is no Range; a negative count gives nothing."""
    if op.opset >= 9:
        length = op.Reshape(op.Max(count, 0), [1])
        ones = op.ConstantOfShape(length, value=np.ones(1, np.int64))
        return op.Squeeze(op.NonZero(ones), [0])
    body = op.subgraph()
    step = body.input("step", _INT64, ())
    running = body.input("running", _BOOL, ())
    graph = body.graph([running, step], name="count_up")
    return op.emit_many("Loop", 1, op.Max(count, 0), op.constant(True), body=graph)[0]


@adapter("EyeLike", below=22)
def eye_like_of_bfloat16(
    op: OpBuilder, input: ir.Value, *, older: OpBuilder, dtype: int | None = None, k: int = 0
) -> ir.Value:
    target = ir.DataType(dtype) if dtype else op.dtype(input)
    if target != ir.DataType.BFLOAT16:
        return older.EyeLike(input, dtype=dtype, k=k)
    return op.cast(older.EyeLike(input, dtype=int(_FLOAT), k=k), target)


@adapter("EyeLike", below=9)
def eye_like(op: OpBuilder, input: ir.Value, *, dtype: int | None = None, k: int = 0) -> ir.Value:
    rows, columns = dim_sizes(op, input, "EyeLike", 9)
    row = op.Unsqueeze(arange(op, rows), [1])
    diagonal = op.Equal(op.Add(row, k), op.Unsqueeze(arange(op, columns), [0]))
    return op.cast(diagonal, ir.DataType(dtype) if dtype else op.dtype(input))


@adapter("Trilu", below=14)
def trilu(op: OpBuilder, input: ir.Value, k: ir.Value | None = None, *, upper: int = 1) -> ir.Value:
    rows, columns = (op.size(input, axis) for axis in (-2, -1))
    row, column = op.Unsqueeze(arange(op, rows), [1]), op.Unsqueeze(arange(op, columns), [0])
    if k is not None:
        row = op.Add(row, k if dims_of(k) == () else op.Reshape(k, []))
    kept = op.GreaterOrEqual(column, row) if upper else op.LessOrEqual(column, row)
    return op.Where(kept, input, op.constant(0, op.dtype(input)))


# ---- running sums and products


def _axis_of(op: OpBuilder, axis: ir.Value, data: ir.Value, op_type: str, lowest: int) -> int:
    dims = dims_of(data)
    wanted = static_ints(op, axis, op_type, "an axis", lowest)
    if wanted is None or dims is None:
        raise UnsupportedOpsetError(op_type, op.opset, lowest=lowest, reason="the rank is not known")
    return wanted[0] % len(dims)


def _scan(
    op: OpBuilder, data: ir.Value, axis: int, combine: str, neutral: int, exclusive: int, reverse: int
) -> ir.Value:
    """Combine every element with all before it, in steps that double their reach.

    Lengths known only at run time take a loop.
    """
    size = op.size(data, axis)
    if not isinstance(size, int):
        return _scan_loop(op, data, axis, combine, neutral, exclusive, reverse)
    fill = op.constant(neutral, op.dtype(data))
    reach = 1
    result = data
    if exclusive:
        result = _shifted(op, result, axis, 1, fill, reverse)
    while reach < size:
        result = op.emit(combine, result, _shifted(op, result, axis, reach, fill, reverse))
        reach *= 2
    return result


def _shifted(op: OpBuilder, x: ir.Value, axis: int, by: int, fill: ir.Value, reverse: int) -> ir.Value:
    start, end, pads = (by, 2**63 - 1, [0, by]) if reverse else (0, -by, [by, 0])
    return op.Pad(op.Slice(x, [start], [end], [axis]), pads, fill, [axis])


def _scan_loop(
    op: OpBuilder, data: ir.Value, axis: int, combine: str, neutral: int, exclusive: int, reverse: int
) -> ir.Value:
    dtype, size = op.dtype(data), op.size(data, axis)
    rank = op.rank(data)
    front = [axis, *(a for a in range(rank) if a != axis)]
    moved = op.Transpose(data, perm=front)
    start = op.expand(op.constant(neutral, dtype), op.sizes(moved)[1:])

    def step(body: OpBuilder, i: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        index = body.Sub(body.size_sub(size, 1), i) if reverse else i
        after = body.emit(combine, state[0], body.Gather(moved, index, axis=0))
        return [after], [state[0] if exclusive else after]

    _, (stacked,) = repeat(op, size, [start], step, parts=[op.sizes(moved)[1:]])
    if reverse:
        stacked = op.Slice(stacked, [-1], [-(2**63)], [0], [-1])
    return op.Transpose(stacked, perm=[front.index(a) for a in range(rank)])


@adapter("CumSum", below=11)
def cum_sum(op: OpBuilder, x: ir.Value, axis: ir.Value, *, exclusive: int = 0, reverse: int = 0) -> ir.Value:
    along = _axis_of(op, axis, x, "CumSum", 11)
    return _scan(op, x, along, "Add", 0, exclusive, reverse)


@adapter("CumProd", below=26)
def cum_prod(op: OpBuilder, x: ir.Value, axis: ir.Value, *, exclusive: int = 0, reverse: int = 0) -> ir.Value:
    along = _axis_of(op, axis, x, "CumProd", 26)
    return _scan(op, x, along, "Mul", 1, exclusive, reverse)
