"""Shape, Reshape, Expand, Split, Slice, Flatten and what else only moves elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxops_decomp.builder.forms import adapter
from onnxops_decomp.errors import UnsupportedOpsetError
from onnxops_decomp.formulas.operands import arange, dim_sizes, rank_of, static_ints
from onnxops_decomp.spec.inference import dims_of, same_dim

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

_INT64_MAX = np.iinfo(np.int64).max


@adapter("Shape", below=15)
def shape(op: OpBuilder, data: ir.Value, *, older: OpBuilder, start: int = 0, end: int | None = None) -> ir.Value:
    whole = older.Shape(data)
    if start == 0 and end is None:
        return whole
    return op.Slice(whole, [start], [_INT64_MAX if end is None else end], [0])


@adapter("Reshape", below=14)
def reshape(op: OpBuilder, data: ir.Value, shape: ir.Value, *, older: OpBuilder, allowzero: int = 0) -> ir.Value:
    if not allowzero:
        return older.Reshape(data, shape)
    target = op.static(shape)
    if target is not None and 0 not in target:
        return older.Reshape(data, shape)
    if target is None and not _has_static_zero(op, shape):
        return older.Reshape(_zeros_to_copy(op, data, shape), shape)
    # A size of 0 makes the result empty, whatever the data.
    dtype = op.dtype(data)
    if target is not None and -1 not in target:
        return op.constant(np.zeros(target, dtype.numpy()), dtype)
    return op.Expand(op.constant(0, dtype), shape)


def _zeros_to_copy(op: OpBuilder, data: ir.Value, shape: ir.Value) -> ir.Value:
    """Reshape ``data`` so that a 0 in ``shape`` copies one: empty data has the size 0 along every axis."""
    length = dims_of(shape)
    if not length or not isinstance(length[0], int):
        raise UnsupportedOpsetError("Reshape", op.opset, lowest=14, reason="allowzero with a result of unknown rank")
    others = length[0] - 1
    column = op.Reshape(data, op.constant([-1, *[1] * others]))
    if not others:
        return column
    full = op.cast(op.cast(op.Shape(column, start=0, end=1), ir.DataType.BOOL), ir.DataType.INT64)
    return op.Tile(column, op.Concat(op.constant([1]), *[full] * others, axis=0))


def _has_static_zero(op: OpBuilder, vector: ir.Value) -> bool:
    node = vector.producer()
    if node is None or node.op_type != "Concat":
        return False
    parts = [op.static(part) for part in node.inputs]
    return any(part is not None and 0 in part for part in parts)


@adapter("Expand", below=8)
def expand(op: OpBuilder, data: ir.Value, shape: ir.Value) -> ir.Value:
    dims = dims_of(data)
    wanted = _vector_sizes(op, shape)
    if dims is None or wanted is None:
        raise UnsupportedOpsetError("Expand", op.opset, lowest=8, reason="the rank is not known")
    rank = max(len(dims), len(wanted))
    if rank == 0:
        return data
    source: list[Size] = [*[1] * (rank - len(dims)), *op.sizes(data)]
    target: list[Size] = [*[1] * (rank - len(wanted)), *wanted]
    repeats: list[Size] = []
    for have, want in zip(source, target, strict=True):
        if isinstance(have, int) and have == 1:
            repeats.append(want)
        elif (isinstance(want, int) and want == 1) or same_dim(op.dim(have), op.dim(want)):
            repeats.append(1)
        else:
            # Either the sizes agree, or one of them is 1.
            repeats.append(op.size_floordiv(op.size_max(have, want), op.size_max(have, 1)))
    if len(dims) < rank:
        data = op.Unsqueeze(data, list(range(rank - len(dims))))
    return op.Tile(data, op.vector(repeats))


def _vector_sizes(op: OpBuilder, vector: ir.Value) -> list[Size] | None:
    """Return the elements of a vector of sizes, or None if their number is not known."""
    static = op.static(vector)
    if static is not None:
        return [int(size) for size in static]
    length = dims_of(vector)
    if not length or not isinstance(length[0], int):
        return None
    return [op.as_size(op.Slice(vector, [i], [i + 1], [0])) for i in range(length[0])]


@adapter("Flatten", below=9)
def flatten(op: OpBuilder, input: ir.Value, *, older: OpBuilder, axis: int = 1) -> ir.Value:
    if op.dtype(input).is_floating_point():
        return older.Flatten(input, axis=axis)
    sizes = dim_sizes(op, input, "Flatten", 9)
    size = op.vector([op.size_mul(*sizes[:axis]), op.size_mul(*sizes[axis:])])
    return op.Reshape(input, size, allowzero=1)


# ---- Split


# Into as many parts as there are outputs.
@adapter("Split", below=18, keeps_meaning=False)
def split(
    op: OpBuilder,
    input: ir.Value,
    split: ir.Value | None = None,
    *,
    older: OpBuilder,
    axis: int = 0,
    num_outputs: int | None = None,
    _outputs: int = 1,
) -> tuple[ir.Value, ...]:
    if split is None and num_outputs is not None and num_outputs > 1:
        size = op.size(input, axis)
        if not isinstance(size, int) or size % num_outputs:
            chunk = op.size_floordiv(op.size_add(size, num_outputs - 1), num_outputs)
            last = op.size_sub(size, op.size_mul(chunk, num_outputs - 1))
            split = op.vector([chunk] * (num_outputs - 1) + [last])
    return older.emit_many("Split", _outputs, input, split, axis=axis)


@adapter("Split", below=13)
def split_with_attribute(
    op: OpBuilder, input: ir.Value, split: ir.Value | None = None, *, older: OpBuilder, axis: int = 0, _outputs: int = 1
) -> tuple[ir.Value, ...]:
    if split is None or op.static(split) is not None:
        return older.emit_many("Split", _outputs, input, axis=axis, split=static_ints(op, split, "Split", "sizes", 13))
    parts: list[ir.Value] = []
    start: Size = 0
    for size in _vector_sizes(op, split) or []:
        end = op.size_add(start, size)
        parts.append(op.Slice(input, op.vector([start]), op.vector([end]), [axis]))
        start = end
    if len(parts) < _outputs:
        raise UnsupportedOpsetError("Split", op.opset, lowest=13, reason="sizes known only at run time")
    return tuple(parts)


# ---- Slice


@adapter("Slice", below=10)
def slice_with_attributes(
    op: OpBuilder,
    data: ir.Value,
    starts: ir.Value,
    ends: ir.Value,
    axes: ir.Value | None = None,
    steps: ir.Value | None = None,
    *,
    older: OpBuilder,
) -> ir.Value:
    first = static_ints(op, starts, "Slice", "starts", 10) or []
    last = static_ints(op, ends, "Slice", "ends", 10) or []
    over = static_ints(op, axes, "Slice", "axes", 10)
    stride = static_ints(op, steps, "Slice", "steps", 10)
    if over is None:
        over = list(range(len(first)))
    if stride is not None and any(step != 1 for step in stride):
        for start, end, axis, step in zip(first, last, over, stride, strict=True):
            data = _strided(op, data, start, end, axis, step)
        return data
    return older.Slice(data, starts=first, ends=last, axes=over)


def _strided(op: OpBuilder, data: ir.Value, start: int, end: int, axis: int, step: int) -> ir.Value:
    """Slice one axis with a step, by gathering the elements."""
    if step == 1:
        return op.Slice(data, [start], [end], [axis])
    size = op.size(data, axis)
    if isinstance(size, int):
        stop = None if step < 0 and end < -size else end
        return op.Gather(data, list(range(size))[start:stop:step], axis=axis)
    if step > 0:
        data = op.Slice(data, [start], [end], [axis])
        count = op.size_floordiv(op.size_add(op.size(data, axis), step - 1), step)
        return op.Gather(data, op.Mul(arange(op, count), step), axis=axis)
    # Backwards: cut what lies between end and start, then walk it from its end.
    first = 0 if end < -(2**31) else _after(end)
    data = op.Slice(data, [first], [_after(start)], [axis])
    size = op.size(data, axis)
    count = op.size_floordiv(op.size_sub(size, step + 1), -step)
    return op.Gather(data, op.Add(op.Mul(arange(op, count), step), op.size_sub(size, 1)), axis=axis)


def _after(index: int) -> int:
    """Return the index behind ``index``, which may count from the end."""
    return _INT64_MAX if index == -1 else index + 1


@adapter("DepthToSpace", below=11)
def depth_to_space(op: OpBuilder, input: ir.Value, *, older: OpBuilder, blocksize: int, mode: str = "DCR") -> ir.Value:
    if mode == "DCR":
        return older.DepthToSpace(input, blocksize=blocksize)
    return composed_depth_to_space(op, input, blocksize=blocksize, mode=mode)


def composed_depth_to_space(op: OpBuilder, input: ir.Value, *, blocksize: int, mode: str = "DCR") -> ir.Value:
    n, c, h, w = dim_sizes(op, input, "DepthToSpace", 11)
    depth = op.size_floordiv(c, blocksize * blocksize)
    block = [blocksize, blocksize]
    split, perm = (
        ([n, *block, depth, h, w], [0, 3, 4, 1, 5, 2])
        if mode == "DCR"
        else ([n, depth, *block, h, w], [0, 1, 4, 2, 5, 3])
    )
    moved = op.Transpose(op.reshape(input, split), perm=perm)
    rows, columns = op.size_mul(h, blocksize), op.size_mul(w, blocksize)
    return op.reshape(moved, [n, depth, rows, columns])


@adapter("SpaceToDepth", below=28)
def space_to_depth(op: OpBuilder, input: ir.Value, *, older: OpBuilder, blocksize: int, mode: str = "DCR") -> ir.Value:
    if mode == "DCR":
        return older.SpaceToDepth(input, blocksize=blocksize)
    return composed_space_to_depth(op, input, blocksize=blocksize, mode=mode)


def composed_space_to_depth(op: OpBuilder, input: ir.Value, *, blocksize: int, mode: str = "DCR") -> ir.Value:
    n, c, h, w = dim_sizes(op, input, "SpaceToDepth", 28)
    rows, columns = op.size_floordiv(h, blocksize), op.size_floordiv(w, blocksize)
    blocks = op.reshape(input, [n, c, rows, blocksize, columns, blocksize])
    moved = op.Transpose(blocks, perm=[0, 3, 5, 1, 2, 4] if mode == "DCR" else [0, 1, 3, 5, 2, 4])
    depth = op.size_mul(c, blocksize * blocksize)
    return op.reshape(moved, [n, depth, rows, columns])


@adapter("Identity", below=14)
def identity(op: OpBuilder, input: ir.Value, *, older: OpBuilder) -> ir.Value:
    if input.type is not None and not isinstance(input.type, ir.TensorType):
        return input
    return older.Identity(input)


@adapter("CenterCropPad", below=18)
def center_crop_pad(
    op: OpBuilder, input_data: ir.Value, shape: ir.Value, *, axes: Sequence[int] | None = None
) -> ir.Value:
    rank = rank_of(op, input_data, "CenterCropPad", 18)
    wanted = _vector_sizes(op, shape)
    over = [axis % rank for axis in (axes if axes is not None else range(rank))]
    if wanted is None or len(wanted) != len(over):
        raise UnsupportedOpsetError("CenterCropPad", op.opset, lowest=18, reason="the rank is not known")
    for axis, size in zip(over, wanted, strict=True):
        have = op.size(input_data, axis)
        surplus = op.size_max(op.size_sub(have, size), 0)
        start = op.size_floordiv(surplus, 2)
        end = op.size_sub(have, op.size_sub(surplus, start))
        if surplus != 0:
            input_data = op.Slice(input_data, op.vector([start]), op.vector([end]), [axis])
        missing = op.size_max(op.size_sub(size, have), 0)
        if missing != 0:
            before = op.size_floordiv(missing, 2)
            pads = op.vector([before, op.size_sub(missing, before)])
            input_data = op.Pad(input_data, pads, None, [axis])
    return input_data
