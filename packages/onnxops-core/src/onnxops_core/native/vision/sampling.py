"""GridSample (opset 22), AffineGrid (opset 20) and DeformConv (opset 22) as torch operators."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY

import torch

from onnxops_core._torch_private import forward_mode_is_active
from onnxops_core.native.declaring.call import Call, Integers, Sizes, operator_call, public
from onnxops_core.native.declaring.checks import (
    FLOATS,
    check_choice,
    check_dtype,
    check_float,
    check_same_dtype,
    invalid,
)
from onnxops_core.native.declaring.declare import declare

__all__ = ["affine_grid", "deform_conv", "grid_sample"]

_SAMPLED = FLOATS | {
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
}


@operator_call
class GridSampleCall(Call[torch.Tensor]):
    """ONNX GridSample: interpolates at given points, in any number of spatial dimensions.

    Args:
        X: ``(batch, channels, D1, ..., Dr)``; float, integer or boolean.
        grid: ``(batch, D1_out, ..., Dr_out, r)``, a float dtype: positions in [-1, 1], the innermost
            dimension first.
        align_corners: whether -1 and 1 are the centres of the outermost pixels rather than their outer edges.
        mode: ``"linear"``, ``"nearest"`` (ties to even) or ``"cubic"``.
        padding_mode: what lies outside: ``"zeros"``, the ``"border"``, or its ``"reflection"``.

    Returns:
        ``(batch, channels, D1_out, ..., Dr_out)`` of X's dtype.

    Raises:
        ValueError: shapes, dtypes or attributes that the specification forbids.

    Source: https://onnx.ai/onnx/operators/onnx__GridSample.html
    """

    X: torch.Tensor
    grid: torch.Tensor
    _: KW_ONLY
    align_corners: bool = False
    mode: str = "linear"
    padding_mode: str = "zeros"


def _grid_check(call: GridSampleCall) -> None:
    x, grid = call.X, call.grid
    op = "GridSample"
    check_dtype(op, "X", x, _SAMPLED)
    check_float(op, "grid", grid)
    check_choice(op, "mode", call.mode, ("linear", "nearest", "cubic"))
    check_choice(op, "padding_mode", call.padding_mode, ("zeros", "border", "reflection"))
    rank = x.dim()
    if rank < 3 or any(size == 0 for size in x.shape[2:]):
        raise invalid(op, "X", x, "(batch, channels, D1, ...) with spatial dimensions that are not empty")
    if grid.dim() != rank or grid.shape[0] != x.shape[0] or grid.shape[-1] != rank - 2:
        raise invalid(op, "grid", grid, f"(batch {x.shape[0]}, {rank - 2} output dimensions, {rank - 2})")


def _reflect(position: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Mirror positions at both ends until they lie between them."""
    span = high - low
    if span <= 0:
        return torch.full_like(position, low)
    distance = (position - low).abs()
    folds = torch.floor(distance / span)
    rest = distance - folds * span
    return torch.where(folds.remainder(2) == 0, low + rest, high - rest)


def _pad_position(position: torch.Tensor, size: int, padding_mode: str, align_corners: bool) -> torch.Tensor:
    if padding_mode == "border":
        return position.clamp(0, size - 1)
    if padding_mode == "reflection":
        low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        return _reflect(position, low, high).clamp(0, size - 1)
    return position


def _gather(x: torch.Tensor, indices: Sequence[torch.Tensor], valid: torch.Tensor | None) -> torch.Tensor:
    """Pick ``x[n, :, i1, i2, ...]`` for index tensors ``(batch, points)``; invalid points give zero."""
    flat = indices[0]
    for size, index in zip(x.shape[3:], indices[1:], strict=True):
        flat = flat * size + index
    values = x.flatten(2).gather(2, flat.unsqueeze(1).expand(-1, x.shape[1], -1))
    return values if valid is None else values * valid.unsqueeze(1).to(values.dtype)


def _clamped(index: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    valid = (index >= 0) & (index <= size - 1)
    return index.clamp(0, size - 1).to(torch.int64), valid


def _cubic_weights(fraction: torch.Tensor) -> list[torch.Tensor]:
    """Keys's convolution kernel with a = -0.75 at the distances 1 + t, t, 1 - t, 2 - t."""
    a = -0.75

    def near(d: torch.Tensor) -> torch.Tensor:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: torch.Tensor) -> torch.Tensor:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(fraction + 1), near(fraction), near(1 - fraction), far(2 - fraction)]


def _taps(position: torch.Tensor, mode: str) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """Return the sampled positions along one dimension, with their weights."""
    if mode == "nearest":
        return [(torch.round(position), None)]
    base = torch.floor(position)
    fraction = position - base
    if mode == "linear":
        return [(base, 1 - fraction), (base + 1, fraction)]
    return [(base + shift - 1, weight) for shift, weight in enumerate(_cubic_weights(fraction))]


def _interpolate(
    x: torch.Tensor, positions: Sequence[torch.Tensor], mode: str, padding_mode: str, align_corners: bool
) -> torch.Tensor:
    """Sample ``x`` ``(batch, channels, D1, ...)`` at positions ``(batch, points)`` per dimension, in pixels."""
    sizes = x.shape[2:]
    total = None
    for corner in itertools.product(*(_taps(position, mode) for position in positions)):
        indices, valid, weight = [], None, None
        for (index, factor), size in zip(corner, sizes, strict=True):
            if mode == "cubic" or padding_mode == "reflection":
                index = _pad_position(index, size, padding_mode, align_corners)
            whole, inside = _clamped(index, size)
            indices.append(whole)
            valid = inside if valid is None else valid & inside
            if factor is not None:
                weight = factor if weight is None else weight * factor
        value = _gather(x, indices, valid if padding_mode == "zeros" else None)
        value = value if weight is None else value * weight.unsqueeze(1)
        total = value if total is None else total + value
    assert total is not None
    return total


def _grid_reference(call: GridSampleCall) -> torch.Tensor:
    x = call.X
    dtype = torch.promote_types(torch.promote_types(call.grid.dtype, torch.float32), _float_of(x.dtype))
    points = call.grid.to(dtype).flatten(1, -2)
    positions = []
    for place, size in enumerate(x.shape[2:]):
        coordinate = points[..., x.dim() - 3 - place]
        # From [-1, 1] to pixels, whose centres lie at whole numbers.
        aligned, edges = (coordinate + 1) / 2 * (size - 1), ((coordinate + 1) * size - 1) / 2
        position = aligned if call.align_corners else edges
        if call.mode != "cubic":
            if call.mode == "nearest":
                position = torch.round(position)
            position = _pad_position(position, size, call.padding_mode, call.align_corners)
        positions.append(position)
    y = _interpolate(x.to(dtype), positions, call.mode, call.padding_mode, call.align_corners)
    result: torch.Tensor = y.unflatten(2, call.grid.shape[1:-1]).to(x.dtype)
    return result


def _float_of(dtype: torch.dtype) -> torch.dtype:
    """Return the float dtype in which values of a dtype are interpolated."""
    if dtype.is_floating_point:
        return dtype
    return torch.float64 if dtype.itemsize >= 4 else torch.float32


_TORCH_MODES = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}


def _grid_composite(call: GridSampleCall) -> torch.Tensor:
    x = call.X
    same = x.dtype == call.grid.dtype and x.dtype in (torch.float32, torch.float64)
    native = same and (x.dim() == 4 or (x.dim() == 5 and call.mode != "cubic"))
    if not native or forward_mode_is_active():  # torch's grid_sample has no forward-mode derivative
        return _grid_reference(call)
    return torch.nn.functional.grid_sample(x, call.grid, _TORCH_MODES[call.mode], call.padding_mode, call.align_corners)


def _grid_fake(call: GridSampleCall) -> torch.Tensor:
    return call.X.new_empty((*call.X.shape[:2], *call.grid.shape[1:-1]))


_GRID_SAMPLE = declare(
    "GridSample",
    22,
    GridSampleCall,
    reference=_grid_reference,
    composite=_grid_composite,
    fake=_grid_fake,
    check=_grid_check,
    opset_of_call=lambda call: 20,
)


grid_sample = public("grid_sample", GridSampleCall, _GRID_SAMPLE)


@operator_call
class AffineGridCall(Call[torch.Tensor]):
    """ONNX AffineGrid: the grid of points for :func:`grid_sample` that an affine map gives.

    Args:
        theta: ``(N, 2, 3)`` or ``(N, 3, 4)``; a float dtype.
        size: the output size ``(N, C, H, W)`` or ``(N, C, D, H, W)``, numbers or a 1-d integer tensor.
        align_corners: whether -1 and 1 are the centres of the outermost pixels rather than their outer edges.

    Returns:
        ``(N, H, W, 2)`` or ``(N, D, H, W, 3)`` of theta's dtype.

    Raises:
        ValueError: shapes or dtypes that the specification forbids.

    Source: https://onnx.ai/onnx/operators/onnx__AffineGrid.html
    """

    theta: torch.Tensor
    size: Sizes
    _: KW_ONLY
    align_corners: bool = False


def _affine_check(call: AffineGridCall) -> None:
    size = call.size
    op = "AffineGrid"
    check_float(op, "theta", call.theta)
    if len(size) not in (4, 5):
        raise invalid(op, "size", tuple(size), "4 numbers (N, C, H, W) or 5 (N, C, D, H, W)")
    rank = len(size) - 2
    if tuple(call.theta.shape) != (size[0], rank, rank + 1):
        raise invalid(op, "theta", call.theta, f"shape {(size[0], rank, rank + 1)} for size {tuple(size)}")
    if any(dim <= 0 for dim in size[2:]):
        raise invalid(op, "size", tuple(size), "positive spatial sizes")


def _affine_reference(call: AffineGridCall) -> torch.Tensor:
    dtype = torch.promote_types(call.theta.dtype, torch.float32)
    axes = []
    for length in call.size[2:]:
        steps = torch.arange(length, dtype=dtype, device=call.theta.device)
        # One point along an aligned dimension lies at its start.
        span = max(length - 1, 1) if call.align_corners else length
        axes.append(steps * (2 / span) - 1 if call.align_corners else (steps * 2 + 1) / span - 1)
    mesh = torch.meshgrid(*axes, indexing="ij")
    points = torch.stack((*mesh[::-1], torch.ones_like(mesh[0])), -1).flatten(0, -2)
    grid = points @ call.theta.to(dtype).transpose(1, 2)
    result: torch.Tensor = grid.unflatten(1, list(call.size[2:])).to(call.theta.dtype)
    return result


_AFFINE_GRID = declare(
    "AffineGrid",
    20,
    AffineGridCall,
    reference=_affine_reference,
    check=_affine_check,
    scalar_inputs={"size": 7},
)


affine_grid = public("affine_grid", AffineGridCall, _AFFINE_GRID)


def _spatial(values: Sequence[int], rank: int, default: int) -> list[int]:
    return list(values) if values else [default] * rank


@operator_call
class DeformConvCall(Call[torch.Tensor]):
    """ONNX DeformConv: a convolution whose taps are moved by offsets, in any number of spatial dimensions.

    Args:
        X: ``(batch, channels, D1, ..., Dn)``; a float dtype.
        W: ``(out_channels, channels / group, k1, ..., kn)`` of X's dtype.
        offset: ``(batch, offset_group * k1 * ... * kn * n, o1, ..., on)`` of X's dtype, in pixels.
        B: ``(out_channels,)`` of X's dtype.
        mask: ``(batch, offset_group * k1 * ... * kn, o1, ..., on)`` of X's dtype, a factor for each tap.
        dilations: distance of taps per dimension; ones by default.
        group: how many groups the channels form.
        kernel_shape: as W has; may be left out.
        offset_group: how many groups of channels have offsets of their own.
        pads: zeros before each dimension, then after each; none by default.
        strides: distance of outputs per dimension; ones by default.

    Returns:
        ``(batch, out_channels, o1, ..., on)`` of X's dtype; float16 and bfloat16 are rounded once.

    Raises:
        ValueError: shapes, dtypes or attributes that the specification forbids.

    Source: https://onnx.ai/onnx/operators/onnx__DeformConv.html
    """

    X: torch.Tensor
    W: torch.Tensor
    offset: torch.Tensor
    B: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    _: KW_ONLY
    dilations: Integers = Integers(())
    group: int = 1
    kernel_shape: Integers = Integers(())
    offset_group: int = 1
    pads: Integers = Integers(())
    strides: Integers = Integers(())


def _deform_check(call: DeformConvCall) -> None:
    x, w, group, offset_group = call.X, call.W, call.group, call.offset_group
    op = "DeformConv"
    check_float(op, "X", x)
    rank = x.dim() - 2
    if rank < 1:
        raise invalid(op, "X", x, "(batch, channels, D1, ...)")
    for name, tensor in (("W", w), ("offset", call.offset), ("B", call.B), ("mask", call.mask)):
        check_same_dtype(op, name, tensor, "X", x.dtype)
    channels = x.shape[1]
    for name, number in (("group", group), ("offset_group", offset_group)):
        if number <= 0 or channels % number:
            raise invalid(op, name, number, f"a divisor of the {channels} channels of X")
    if w.dim() != x.dim() or w.shape[1] * group != channels or w.shape[0] % group:
        raise invalid(op, "W", w, f"(multiple of {group}, {channels // group}, {rank} kernel dimensions)")
    if call.kernel_shape and list(call.kernel_shape) != list(w.shape[2:]):
        raise invalid(op, "kernel_shape", list(call.kernel_shape), f"{list(w.shape[2:])}, as W has")
    for name, values, count in (
        ("dilations", call.dilations, rank),
        ("strides", call.strides, rank),
        ("pads", call.pads, 2 * rank),
    ):
        least = 0 if name == "pads" else 1
        if values and (len(values) != count or any(value < least for value in values)):
            raise invalid(op, name, list(values), f"{count} numbers of at least {least}")
    taps = math.prod(w.shape[2:])
    shape = _output_size(call)
    if any(size <= 0 for size in shape):
        raise invalid(op, "X", x, "spatial dimensions that the kernel fits into")
    batch = x.shape[0]
    if tuple(call.offset.shape) != (batch, offset_group * taps * rank, *shape):
        raise invalid(op, "offset", call.offset, f"shape {(batch, offset_group * taps * rank, *shape)}")
    if call.mask is not None and tuple(call.mask.shape) != (batch, offset_group * taps, *shape):
        raise invalid(op, "mask", call.mask, f"shape {(batch, offset_group * taps, *shape)}")
    if call.B is not None and tuple(call.B.shape) != (w.shape[0],):
        raise invalid(op, "B", call.B, f"shape ({w.shape[0]},)")


def _output_size(call: DeformConvCall) -> list[int]:
    x, w = call.X, call.W
    rank = x.dim() - 2
    pad = _spatial(call.pads, 2 * rank, 0)
    dilation, stride = _spatial(call.dilations, rank, 1), _spatial(call.strides, rank, 1)
    return [
        (x.shape[2 + i] + pad[i] + pad[rank + i] - dilation[i] * (w.shape[2 + i] - 1) - 1) // stride[i] + 1
        for i in range(rank)
    ]


def _deform_reference(call: DeformConvCall) -> torch.Tensor:
    x, offset_group = call.X, call.offset_group
    dtype = torch.promote_types(x.dtype, torch.float32)
    rank = x.dim() - 2
    batch, channels = x.shape[:2]
    kernel = list(call.W.shape[2:])
    taps = math.prod(kernel)
    shape = list(call.offset.shape[2:])
    points = math.prod(shape)
    pad = _spatial(call.pads, 2 * rank, 0)
    dilation, stride = _spatial(call.dilations, rank, 1), _spatial(call.strides, rank, 1)
    # (batch, offset groups, taps, spatial dimension, output points)
    shift = call.offset.to(dtype).reshape(batch, offset_group, taps, rank, points)
    positions = []
    for i in range(rank):
        out = torch.arange(shape[i], device=x.device, dtype=dtype) * stride[i] - pad[i]
        tap = torch.arange(kernel[i], device=x.device, dtype=dtype) * dilation[i]
        out = out.view([-1 if j == i else 1 for j in range(rank)]).expand(shape).reshape(1, -1)
        tap = tap.view([-1 if j == i else 1 for j in range(rank)]).expand(kernel).reshape(-1, 1)
        positions.append((shift[:, :, :, i] + (out + tap)).reshape(batch * offset_group, taps * points))
    grouped = x.to(dtype).reshape(batch * offset_group, channels // offset_group, *x.shape[2:])
    columns = _interpolate(grouped, positions, "linear", "zeros", False)
    columns = columns.reshape(batch, offset_group, channels // offset_group, taps, points)
    if call.mask is not None:
        columns = columns * call.mask.to(dtype).reshape(batch, offset_group, 1, taps, points)
    columns = columns.reshape(batch, call.group, channels // call.group * taps, points)
    weight = call.W.to(dtype).reshape(call.group, call.W.shape[0] // call.group, -1)
    y = (weight @ columns).reshape(batch, call.W.shape[0], *shape)
    if call.B is not None:
        y = y + call.B.to(dtype).view([-1] + [1] * rank)
    return y.to(x.dtype)


def _deform_fake(call: DeformConvCall) -> torch.Tensor:
    return call.X.new_empty((call.X.shape[0], call.W.shape[0], *call.offset.shape[2:]))


_DEFORM_CONV = declare(
    "DeformConv",
    22,
    DeformConvCall,
    reference=_deform_reference,
    fake=_deform_fake,
    check=_deform_check,
    opset_of_call=lambda call: 19,
)


deform_conv = public("deform_conv", DeformConvCall, _DEFORM_CONV)
