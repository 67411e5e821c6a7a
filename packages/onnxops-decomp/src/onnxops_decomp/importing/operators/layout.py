"""Making, moving and reshaping tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional

from onnxops_decomp.importing.registry import onnx_op
from onnxops_decomp.importing.values import carrier, every_axis, of_bits, of_strings, paired


@onnx_op("Identity")
def identity(input: Any) -> Any:
    return input


@onnx_op("Shape")
def shape(data: Tensor, start: int = 0, end: int | None = None) -> list[int]:
    return list(data.shape)[start:end]


@onnx_op("Size")
def size(data: Any) -> int:
    return data.numel() if isinstance(data, Tensor) else data.size


@onnx_op("Reshape")
def reshape(data: Tensor, shape: list[int], allowzero: int = 0) -> Tensor:
    if allowzero:
        return data.reshape(shape)
    return data.reshape([data.shape[axis] if type(n) is int and n == 0 else n for axis, n in enumerate(shape)])


@onnx_op("Flatten")
@of_strings
def flatten(input: Tensor, axis: int = 1) -> Tensor:
    axis = axis + input.dim() if axis < 0 else axis
    rows = 1
    for n in input.shape[:axis]:
        rows = rows * n
    columns = 1
    for n in input.shape[axis:]:
        columns = columns * n
    return input.reshape(rows, columns)


@onnx_op("Transpose")
@of_strings
def transpose(data: Tensor, perm: list[int] | None = None) -> Tensor:
    return data.permute(list(reversed(range(data.dim()))) if perm is None else perm)


@onnx_op("Squeeze")
@of_strings
def squeeze(data: Tensor, axes: list[int] | None = None) -> Tensor:
    for axis in axes or ():
        # torch leaves such a dimension as it is.
        if statically_known_true(data.shape[axis] != 1):
            raise ValueError(f"dimension {axis} of size {data.shape[axis]} is squeezed")
    return data.squeeze() if axes is None else data.squeeze(tuple(axes))


@onnx_op("Unsqueeze")
@of_strings
def unsqueeze(data: Tensor, axes: list[int]) -> Tensor:
    rank = data.dim() + len(axes)
    places = sorted({each % rank for each in axes})
    if len(places) < len(axes):
        raise ValueError(f"axes {axes} name one dimension twice")
    for axis in places:
        data = data.unsqueeze(axis)
    return data


@onnx_op("Concat")
@of_strings
def concat(*inputs: Tensor, axis: int = 1) -> Tensor:
    return torch.cat(inputs, axis)


@onnx_op("Split")
@of_strings
def split(
    input: Tensor, split: list[int] | None = None, axis: int = 0, num_outputs: int | None = None
) -> tuple[Tensor, ...]:
    if split is not None:
        return torch.split(input, split, axis)
    assert num_outputs is not None
    chunk = -(-input.shape[axis] // num_outputs)
    sizes = [chunk] * (num_outputs - 1)
    return torch.split(input, [*sizes, input.shape[axis] - chunk * (num_outputs - 1)], axis)


@onnx_op("Slice")
@of_strings
@of_bits
def slice_(
    data: Tensor, starts: list[int], ends: list[int], axes: list[int] | None = None, steps: list[int] | None = None
) -> Tensor:
    axes = list(range(len(starts))) if axes is None else axes
    index: list[Any] = [slice(None)] * data.dim()
    for start, end, axis, step in zip(starts, ends, axes, steps or [1] * len(starts), strict=True):
        axis = axis % data.dim()
        if step > 0:
            index[axis] = slice(start, end, step)
        else:
            data, index[axis] = torch.flip(data, [axis]), _backwards(start, end, step, data.shape[axis])
    return data[tuple(index)]


def _backwards(start: int, end: int, step: int, length: int) -> slice:
    """Return the slice of the reversed dimension that a slice with a negative step takes."""
    # Before the first element counts as the first; -1 is never before it, and asks nothing of a symbolic length.
    start = start if start >= -1 else max(start, -length)
    start = min(start + length if start < 0 else start, length - 1)
    end = max(end + length if end < 0 else end, -1)
    first = length - 1 - start
    return slice(first, max(length - 1 - end, first), -step)


@onnx_op("Expand")
@of_strings
def expand(input: Tensor, shape: list[int]) -> Tensor:
    sizes = list(input.shape)
    sizes = [1] * (len(shape) - len(sizes)) + sizes
    wanted = [1] * (len(sizes) - len(shape)) + shape
    return input.expand(
        [have if type(want) is int and want == 1 else want for have, want in zip(sizes, wanted, strict=True)]
    )


@onnx_op("Tile", since=6)
@of_strings
def tile(input: Tensor, repeats: list[int]) -> Tensor:
    return input.repeat(repeats)


_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@onnx_op("Pad", paddings="pads", value="constant_value")
@of_strings
@of_bits
def pad(
    data: Tensor,
    pads: list[int],
    constant_value: Tensor | float | None = None,
    axes: list[int] | None = None,
    mode: str = "constant",
) -> Tensor:
    if axes is not None:
        half = len(axes)
        places = every_axis(axes, data.dim())
        full = [0] * (2 * data.dim())
        for index, axis in enumerate(places):
            full[axis], full[axis + data.dim()] = pads[index], pads[index + half]
        pads = full
    if mode == "constant":
        return _padded(data, paired(pads), constant_value)
    for axis in range(data.dim()):
        data = _extended(data, axis, pads[axis], pads[axis + len(pads) // 2], mode)
    return data


def _padded(data: Tensor, pads: list[int], value: Tensor | float | None) -> Tensor:
    if not isinstance(value, Tensor):
        return functional.pad(data, pads, value=value)
    inside = functional.pad(torch.ones_like(data, dtype=torch.bool), pads)
    return torch.where(inside, functional.pad(data, pads), value.reshape(()).to(data.dtype))


def _extended(data: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """Return a tensor with one dimension continued by its own elements, or by those that negative amounts leave."""
    if statically_known_true(before == 0) and statically_known_true(after == 0):
        return data
    cropped = torch.sym_max(-before, 0)
    length = data.shape[axis] - cropped - torch.sym_max(-after, 0)
    position = torch.arange(-torch.sym_max(before, 0), length + torch.sym_max(after, 0), device=data.device)
    if mode == "edge":
        position = position.clamp(0, length - 1)
    elif mode == "wrap":
        position = position.remainder(length)
    else:
        period = max(2 * (length - 1), 1)
        position = position.remainder(period)
        position = torch.where(position >= length, period - position, position)
    return data.index_select(axis, position + cropped)


@onnx_op("Constant")
def constant(value: Tensor) -> Tensor:
    return value


@onnx_op("ConstantOfShape")
def constant_of_shape(input: list[int], value: Tensor | None = None) -> Tensor:
    return torch.zeros(input) if value is None else value.reshape(()).repeat(input)


@onnx_op("Range")
def range_(start: float, limit: float, delta: float, input_types: Any) -> Tensor:
    # Nothing lies between them if the step leads away from the limit.
    limit = torch.sym_max(limit, start) if delta > 0 else torch.sym_min(limit, start)
    return torch.arange(start, limit, delta, dtype=carrier(input_types[0]))


@onnx_op("EyeLike")
def eye_like(input: Tensor, dtype: int | None = None, k: int = 0) -> Tensor:
    rows, columns = input.shape
    row = torch.arange(rows, device=input.device).unsqueeze(1)
    diagonal = torch.arange(columns, device=input.device) - row == k
    return diagonal.to(input.dtype if dtype is None else carrier(dtype))


@onnx_op("Trilu")
@of_bits
def trilu(input: Tensor, k: int = 0, upper: int = 1) -> Tensor:
    return torch.triu(input, k) if upper else torch.tril(input, k)


@onnx_op("DepthToSpace")
@of_strings
@of_bits
def depth_to_space(input: Tensor, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = input.shape
    depth = c // (blocksize * blocksize)
    if mode == "CRD":
        return functional.pixel_shuffle(input, blocksize)
    split = input.reshape(n, blocksize, blocksize, depth, h, w)
    return split.permute(0, 3, 4, 1, 5, 2).reshape(n, depth, h * blocksize, w * blocksize)


@onnx_op("SpaceToDepth")
@of_strings
def space_to_depth(input: Tensor, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = input.shape
    split = input.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize)
    order = (0, 1, 3, 5, 2, 4) if mode == "CRD" else (0, 3, 5, 1, 2, 4)
    return split.permute(order).reshape(n, c * blocksize * blocksize, h // blocksize, w // blocksize)


@onnx_op("CenterCropPad")
@of_strings
def center_crop_pad(input_data: Tensor, shape: list[int], axes: list[int] | None = None) -> Tensor:
    for axis, wanted in zip(every_axis(axes, input_data.dim()), shape, strict=True):
        have = input_data.shape[axis]
        if wanted < have:
            input_data = input_data.narrow(axis, (have - wanted) // 2, wanted)
        elif wanted > have:
            before = (wanted - have) // 2
            pads = [0] * (2 * (input_data.dim() - axis - 1)) + [before, wanted - have - before]
            input_data = functional.pad(input_data, pads)
    return input_data


@onnx_op("ReverseSequence")
@of_strings
def reverse_sequence(input: Tensor, sequence_lens: Tensor, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    moved = input.movedim((batch_axis, time_axis), (0, 1))
    step = torch.arange(moved.shape[1], device=input.device).unsqueeze(0)
    length = sequence_lens.unsqueeze(1)
    source = torch.where(step < length, length - 1 - step, step)
    row = torch.arange(moved.shape[0], device=input.device).unsqueeze(1)
    return moved[row, source].movedim((0, 1), (batch_axis, time_axis))
