"""Resize and what came before it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from onnxops_decomp.importing.registry import onnx_op
from onnxops_decomp.importing.values import every_axis, in_float


def _coordinates(
    size: int, length: int, scale: float, mode: str, roi: tuple[float, float] | None, device: torch.device
) -> Tensor:
    """Return for each element of the result where it lies in the input, as float32."""
    x = torch.arange(size, device=device, dtype=torch.float32)
    if mode == "align_corners":
        return x * ((length - 1) / (size - 1)) if size > 1 else torch.zeros_like(x)
    if mode == "asymmetric":
        return x / scale
    if mode == "tf_crop_and_resize":
        assert roi is not None
        start, end = roi
        if size > 1:
            return start * (length - 1) + x * (end - start) * (length - 1) / (size - 1)
        return x + 0.5 * (start + end) * (length - 1)
    if mode == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    if mode == "half_pixel_symmetric":
        adjustment = size / (scale * length)
        center = length / 2
        return center * (1 - adjustment) + (x + 0.5) / scale - 0.5
    centered = (x + 0.5) / scale - 0.5
    return torch.zeros_like(x) if mode == "pytorch_half_pixel" and size == 1 else centered


def _nearest(x: Tensor, mode: str) -> Tensor:
    if mode == "floor":
        return torch.floor(x)
    if mode == "ceil":
        return torch.ceil(x)
    return torch.ceil(x - 0.5) if mode == "round_prefer_floor" else torch.floor(x + 0.5)


def _weights(distance: Tensor, mode: str, cubic_coeff_a: float) -> Tensor:
    """Return the weight of an element at a distance."""
    d = torch.abs(distance)
    if mode == "linear":
        return torch.clamp(1 - d, min=0)
    a = cubic_coeff_a
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return torch.where(d <= 1, near, torch.where(d < 2, far, 0))


def _matrix(x: Tensor, length: int, scale: float, mode: str, a: float, exclude: int, antialias: int) -> Tensor:
    """Return the weights of all elements of a dimension, one row for each element of the result."""
    reach = 1 if mode == "linear" else 2
    shrink = min(scale, 1.0) if antialias else 1.0
    width = math.ceil(reach / shrink)
    first = torch.floor(x).to(torch.int64).unsqueeze(1)
    taps = first + torch.arange(1 - width, width + 1, device=x.device)
    weight = _weights((taps - x.unsqueeze(1)) * shrink, mode, a)
    inside = (taps >= 0) & (taps < length)
    if exclude:
        weight = torch.where(inside, weight, 0)
    if exclude or antialias:
        weight = weight / weight.sum(1, keepdim=True)
    matrix = torch.zeros([x.shape[0], length], device=x.device, dtype=weight.dtype)
    return matrix.scatter_add(1, taps.clamp(0, length - 1), weight)


def _sizes(X: Tensor, dims: list[int], scales: Any, sizes: Any, policy: str) -> tuple[list[int], list[float]]:
    """Return the sizes of the result and the scales, both for ``dims``."""
    lengths = [X.shape[axis] for axis in dims]
    if not sizes:
        return [math.floor(n * scale) for n, scale in zip(lengths, scales, strict=True)], list(scales)
    ratios = [size / n for size, n in zip(sizes, lengths, strict=True)]
    if policy == "stretch":
        return list(sizes), ratios
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    return [math.floor(ratio * n + 0.5) for n in lengths], [ratio] * len(dims)


@onnx_op("Resize", since=11)
def resize(
    X: Tensor,
    roi: list[float] | None = None,
    scales: list[float] | None = None,
    sizes: list[int] | None = None,
    antialias: int = 0,
    axes: list[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    dims = every_axis(axes, X.dim())
    wanted, ratios = _sizes(X, dims, scales, sizes, keep_aspect_ratio_policy)
    crop = coordinate_transformation_mode == "tf_crop_and_resize"
    result, outside = in_float(X), None
    for place, axis in enumerate(dims):
        length, size, ratio = X.shape[axis], wanted[place], ratios[place]
        if not crop and type(size) is int and size == length and ratio == 1:
            continue
        region = (roi[place], roi[place + len(dims)]) if crop and roi else None
        x = _coordinates(size, length, ratio, coordinate_transformation_mode, region, X.device)
        if crop:
            beyond = ((x < 0) | (x > length - 1)).reshape([-1] + [1] * (X.dim() - axis - 1))
            outside = beyond if outside is None else outside | beyond
        if mode == "nearest":
            nearest = _nearest(x, nearest_mode).to(torch.int64).clamp(0, length - 1)
            result = result.index_select(axis, nearest)
            continue
        matrix = _matrix(x, length, ratio, mode, cubic_coeff_a, exclude_outside, antialias)
        floats = result if result.is_floating_point() else result.float()
        result = torch.matmul(floats.movedim(axis, -1), matrix.t().to(floats.dtype)).movedim(-1, axis)
    if outside is not None:
        result = torch.where(outside, extrapolation_value, result)
    if not X.is_floating_point() and result.is_floating_point():
        result = torch.round(result)
    return result.to(X.dtype)


@onnx_op("Resize", since=10)
@onnx_op("Upsample", since=7)
def upsample(X: Tensor, scales: list[float], mode: str = "nearest") -> Tensor:
    if mode == "nearest" and any(scale < 1 for scale in scales):
        # The only example of the specification, and ONNX Runtime, round up where a dimension shrinks.
        shrinking, scales = [min(scale, 1.0) for scale in scales], [max(scale, 1.0) for scale in scales]
        X = resize(X, scales=shrinking, coordinate_transformation_mode="asymmetric", nearest_mode="ceil")
    return resize(X, scales=scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
