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
def shape(op: OpBuilder, data: ir.Value, *, start: int = 0, end: int | None = None) -> ir.Value:
    whole = op.Shape(data)
    if start == 0 and end is None:
        return whole
    return op.newest.Slice(whole, [start], [_INT64_MAX if end is None else end], [0])


@adapter("Reshape", below=14)
def reshape(op: OpBuilder, data: ir.Value, shape: ir.Value, *, allowzero: int = 0) -> ir.Value:
    if not allowzero:
        return op.Reshape(data, shape)
    target = op.static(shape)
    if target is not None and 0 not in target:
        return op.Reshape(data, shape)
    if target is None and not _has_static_zero(op, shape):
        return op.Reshape(_zeros_to_copy(op, data, shape), shape)
    # A size of 0 makes the result empty, whatever the data.
    dtype = op.dtype(data)
    if target is not None and -1 not in target:
        return op.constant(np.zeros(target, dtype.numpy()), dtype)
    return op.newest.Expand(op.constant(0, dtype), shape)


def _zeros_to_copy(op: OpBuilder, data: ir.Value, shape: ir.Value) -> ir.Value:
    """Reshape ``data`` so that a 0 in ``shape`` copies one: empty data has the size 0 along every axis."""
    length = dims_of(shape)
    if not length or not isinstance(length[0], int):
        raise UnsupportedOpsetError("Reshape", op.opset, lowest=14, reason="allowzero with a result of unknown rank")
    newest, others = op.newest, length[0] - 1
    column = op.Reshape(data, op.constant([-1, *[1] * others]))
    if not others:
        return column
    full = newest.cast(newest.cast(newest.Shape(column, start=0, end=1), ir.DataType.BOOL), ir.DataType.INT64)
    return newest.Tile(column, newest.Concat(op.constant([1]), *[full] * others, axis=0))


def _has_static_zero(op: OpBuilder, vector: ir.Value) -> bool:
    node = vector.producer()
    if node is None or node.op_type != "Concat":
        return False
    parts = [op.static(part) for part in node.inputs]
    return any(part is not None and 0 in part for part in parts)


@adapter("Expand", below=8)
def expand(op: OpBuilder, data: ir.Value, shape: ir.Value) -> ir.Value:
    newest = op.newest
    dims = dims_of(data)
    wanted = _vector_sizes(op, shape)
    if dims is None or wanted is None:
        raise UnsupportedOpsetError("Expand", op.opset, lowest=8, reason="the rank is not known")
    rank = max(len(dims), len(wanted))
    if rank == 0:
        return data
    source: list[Size] = [*[1] * (rank - len(dims)), *newest.sizes(data)]
    target: list[Size] = [*[1] * (rank - len(wanted)), *wanted]
    repeats: list[Size] = []
    for have, want in zip(source, target, strict=True):
        if isinstance(have, int) and have == 1:
            repeats.append(want)
        elif (isinstance(want, int) and want == 1) or same_dim(newest.dim(have), newest.dim(want)):
            repeats.append(1)
        else:
            # Either the sizes agree, or one of them is 1.
            repeats.append(newest.size_floordiv(newest.size_max(have, want), newest.size_max(have, 1)))
    if len(dims) < rank:
        data = newest.Unsqueeze(data, list(range(rank - len(dims))))
    return newest.Tile(data, newest.vector(repeats))


def _vector_sizes(op: OpBuilder, vector: ir.Value) -> list[Size] | None:
    """Return the elements of a vector of sizes, or None if their number is not known."""
    static = op.static(vector)
    if static is not None:
        return [int(size) for size in static]
    length = dims_of(vector)
    if not length or not isinstance(length[0], int):
        return None
    newest = op.newest
    return [newest.as_size(newest.Slice(vector, [i], [i + 1], [0])) for i in range(length[0])]


@adapter("Flatten", below=9)
def flatten(op: OpBuilder, input: ir.Value, *, axis: int = 1) -> ir.Value:
    if op.dtype(input).is_floating_point():
        return op.Flatten(input, axis=axis)
    newest = op.newest
    sizes = dim_sizes(op, input, "Flatten", 9)
    size = newest.vector([newest.size_mul(*sizes[:axis]), newest.size_mul(*sizes[axis:])])
    return newest.Reshape(input, size, allowzero=1)


# ---- Split


# Into as many parts as there are outputs.
@adapter("Split", below=18, keeps_meaning=False)
def split(
    op: OpBuilder,
    input: ir.Value,
    split: ir.Value | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    _outputs: int = 1,
) -> Sequence[ir.Value]:
    if split is None and num_outputs is not None and num_outputs > 1:
        newest = op.newest
        size = newest.size(input, axis)
        if not isinstance(size, int) or size % num_outputs:
            chunk = newest.size_floordiv(newest.size_add(size, num_outputs - 1), num_outputs)
            last = newest.size_sub(size, newest.size_mul(chunk, num_outputs - 1))
            split = newest.vector([chunk] * (num_outputs - 1) + [last])
    return op.emit_many("Split", _outputs, input, split, axis=axis)


@adapter("Split", below=13)
def split_with_attribute(
    op: OpBuilder, input: ir.Value, split: ir.Value | None = None, *, axis: int = 0, _outputs: int = 1
) -> Sequence[ir.Value]:
    if split is None or op.static(split) is not None:
        return op.emit_many("Split", _outputs, input, axis=axis, split=static_ints(op, split, "Split", "sizes", 13))
    newest = op.newest
    parts: list[ir.Value] = []
    start: Size = 0
    for size in _vector_sizes(op, split) or []:
        end = newest.size_add(start, size)
        parts.append(newest.Slice(input, newest.vector([start]), newest.vector([end]), [axis]))
        start = end
    if len(parts) < _outputs:
        raise UnsupportedOpsetError("Split", op.opset, lowest=13, reason="sizes that only the runtime knows")
    return parts


# ---- Slice


@adapter("Slice", below=10)
def slice_with_attributes(
    op: OpBuilder,
    data: ir.Value,
    starts: ir.Value,
    ends: ir.Value,
    axes: ir.Value | None = None,
    steps: ir.Value | None = None,
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
    return op.Slice(data, starts=first, ends=last, axes=over)


def _strided(op: OpBuilder, data: ir.Value, start: int, end: int, axis: int, step: int) -> ir.Value:
    """Slice one axis with a step, by gathering the elements."""
    newest = op.newest
    if step == 1:
        return op.Slice(data, starts=[start], ends=[end], axes=[axis])
    size = newest.size(data, axis)
    if isinstance(size, int):
        stop = None if step < 0 and end < -size else end
        return newest.Gather(data, list(range(size))[start:stop:step], axis=axis)
    if step > 0:
        data = op.Slice(data, starts=[start], ends=[end], axes=[axis])
        count = newest.size_floordiv(newest.size_add(newest.size(data, axis), step - 1), step)
        return newest.Gather(data, newest.Mul(arange(op, count), step), axis=axis)
    # Backwards: cut what lies between end and start, then walk it from its end.
    first = 0 if end < -(2**31) else _after(end)
    data = op.Slice(data, starts=[first], ends=[_after(start)], axes=[axis])
    size = newest.size(data, axis)
    count = newest.size_floordiv(newest.size_sub(size, step + 1), -step)
    return newest.Gather(data, newest.Add(newest.Mul(arange(op, count), step), newest.size_sub(size, 1)), axis=axis)


def _after(index: int) -> int:
    """Return the index behind ``index``, which may count from the end."""
    return _INT64_MAX if index == -1 else index + 1


@adapter("DepthToSpace", below=11)
def depth_to_space(op: OpBuilder, input: ir.Value, *, blocksize: int, mode: str = "DCR") -> ir.Value:
    # The runtime's kernel of this age lacks bytes.
    if mode == "DCR" and op.dtype(input) not in (ir.DataType.INT8, ir.DataType.UINT8):
        return op.DepthToSpace(input, blocksize=blocksize)
    return composed_depth_to_space(op, input, blocksize=blocksize, mode=mode)


def composed_depth_to_space(op: OpBuilder, input: ir.Value, *, blocksize: int, mode: str = "DCR") -> ir.Value:
    newest = op.newest
    n, c, h, w = dim_sizes(op, input, "DepthToSpace", 11)
    depth = newest.size_floordiv(c, blocksize * blocksize)
    block = [blocksize, blocksize]
    split, perm = (
        ([n, *block, depth, h, w], [0, 3, 4, 1, 5, 2])
        if mode == "DCR"
        else ([n, depth, *block, h, w], [0, 1, 4, 2, 5, 3])
    )
    moved = newest.Transpose(newest.reshape(input, split), perm=perm)
    rows, columns = newest.size_mul(h, blocksize), newest.size_mul(w, blocksize)
    return newest.reshape(moved, [n, depth, rows, columns])


@adapter("SpaceToDepth", below=28)
def space_to_depth(op: OpBuilder, input: ir.Value, *, blocksize: int, mode: str = "DCR") -> ir.Value:
    if mode == "DCR":
        return op.SpaceToDepth(input, blocksize=blocksize)
    return composed_space_to_depth(op, input, blocksize=blocksize, mode=mode)


def composed_space_to_depth(op: OpBuilder, input: ir.Value, *, blocksize: int, mode: str = "DCR") -> ir.Value:
    newest = op.newest
    n, c, h, w = dim_sizes(op, input, "SpaceToDepth", 28)
    rows, columns = newest.size_floordiv(h, blocksize), newest.size_floordiv(w, blocksize)
    blocks = newest.reshape(input, [n, c, rows, blocksize, columns, blocksize])
    moved = newest.Transpose(blocks, perm=[0, 3, 5, 1, 2, 4] if mode == "DCR" else [0, 1, 3, 5, 2, 4])
    depth = newest.size_mul(c, blocksize * blocksize)
    return newest.reshape(moved, [n, depth, rows, columns])


@adapter("Identity", below=14)
def identity(op: OpBuilder, input: ir.Value) -> ir.Value:
    if input.type is not None and not isinstance(input.type, ir.TensorType):
        return input
    return op.Identity(input)


@adapter("CenterCropPad", below=18)
def center_crop_pad(
    op: OpBuilder, input_data: ir.Value, shape: ir.Value, *, axes: Sequence[int] | None = None
) -> ir.Value:
    newest = op.newest
    rank = rank_of(op, input_data, "CenterCropPad", 18)
    wanted = _vector_sizes(op, shape)
    over = [axis % rank for axis in (axes if axes is not None else range(rank))]
    if wanted is None or len(wanted) != len(over):
        raise UnsupportedOpsetError("CenterCropPad", op.opset, lowest=18, reason="the rank is not known")
    for axis, size in zip(over, wanted, strict=True):
        have = newest.size(input_data, axis)
        surplus = newest.size_max(newest.size_sub(have, size), 0)
        start = newest.size_floordiv(surplus, 2)
        end = newest.size_sub(have, newest.size_sub(surplus, start))
        if surplus != 0:
            input_data = newest.Slice(input_data, newest.vector([start]), newest.vector([end]), [axis])
        missing = newest.size_max(newest.size_sub(size, have), 0)
        if missing != 0:
            before = newest.size_floordiv(missing, 2)
            pads = newest.vector([before, newest.size_sub(missing, before)])
            input_data = newest.Pad(input_data, pads, None, [axis])
    return input_data
