"""Convolutions, pooling and normalization."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from onnxops_core.native import layer_normalization as native_layer_normalization
from onnxops_decomp.importing.registry import onnx_op
from onnxops_decomp.importing.values import in_float, paired, symmetric, widened

_CONV: dict[int, Callable[..., Tensor]] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
_MAX_POOL: dict[int, Callable[..., Any]] = {
    1: functional.max_pool1d,
    2: functional.max_pool2d,
    3: functional.max_pool3d,
}


def _avg_pool3d(X: Tensor, *args: Any) -> Tensor:
    return functional.avg_pool3d(in_float(X), *args).to(X.dtype)  # the CPU has no kernel for halves


_AVG_POOL: dict[int, Callable[..., Tensor]] = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: _avg_pool3d}


def same_pads(
    sizes: list[int], kernel: list[int], strides: list[int], dilations: list[int], auto_pad: str
) -> list[int]:
    """Return the paddings of SAME_UPPER and SAME_LOWER in ONNX's order."""
    begins, ends = [], []
    for size, window, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        missing = (-(-size // stride) - 1) * stride + (window - 1) * dilation + 1 - size
        missing = torch.sym_max(missing, 0)
        small = missing // 2
        begins.append(small if auto_pad == "SAME_UPPER" else missing - small)
        ends.append(missing - small if auto_pad == "SAME_UPPER" else small)
    return begins + ends


def window(
    X: Tensor,
    kernel: list[int],
    strides: list[int] | None,
    dilations: list[int] | None,
    pads: list[int] | None,
    auto_pad: str,
) -> tuple[list[int], list[int], list[int]]:
    """Return strides, dilations and paddings, defaults and ``auto_pad`` filled in."""
    count = len(kernel)
    strides, dilations = strides or [1] * count, dilations or [1] * count
    if auto_pad.startswith("SAME"):
        return strides, dilations, same_pads(list(X.shape[2:]), kernel, strides, dilations, auto_pad)
    return strides, dilations, [0] * (2 * count) if pads is None or auto_pad == "VALID" else pads


@onnx_op("Conv")
def conv(
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    strides, dilations, pads = window(X, list(W.shape[2:]), strides, dilations, pads, auto_pad)
    if symmetric(pads):
        padding = pads[: len(pads) // 2]
    else:
        X, padding = functional.pad(X, paired(pads)), [0] * len(strides)
    return _CONV[len(strides)](X, W, B, strides, padding, dilations, group)


@onnx_op("ConvTranspose")
def conv_transpose(
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    output_padding: list[int] | None = None,
    output_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    kernel = list(W.shape[2:])
    count = len(kernel)
    strides, dilations, extra = strides or [1] * count, dilations or [1] * count, output_padding or [0] * count
    full = [
        (size - 1) * stride + (width - 1) * dilation + 1 + more
        for size, stride, width, dilation, more in zip(X.shape[2:], strides, kernel, dilations, extra, strict=True)
    ]
    if output_shape is None and auto_pad.startswith("SAME"):
        output_shape = [size * stride for size, stride in zip(X.shape[2:], strides, strict=True)]
    if output_shape is not None:
        # What is wanted beyond the full size is zeros at the end.
        over = [have - wanted for have, wanted in zip(full, output_shape[-count:], strict=True)]
        cut = [max(each, 0) for each in over]
        small = [each // 2 for each in cut]
        large = [each - half for each, half in zip(cut, small, strict=True)]
        pads = small + large if auto_pad == "SAME_UPPER" else large + small
        pads = [n + min(each, 0) * (place >= count) for place, (n, each) in enumerate(zip(pads, over * 2, strict=True))]
    pads = [0] * (2 * count) if pads is None or auto_pad == "VALID" else pads
    if symmetric(pads) and all(more < max(s, d) for more, s, d in zip(extra, strides, dilations, strict=True)):
        return _TRANSPOSED[count](X, W, B, strides, pads[:count], extra, group, dilations)
    result = _TRANSPOSED[count](X, W, None, strides, 0, 0, group, dilations)
    result = functional.pad(
        result, paired([-n for n in pads[:count]] + [m - n for m, n in zip(extra, pads[count:], strict=True)])
    )
    return result if B is None else result + B.reshape(-1, *[1] * count)


def _ceil_mode_pads(
    X: Tensor, kernel: list[int], strides: list[int], dilations: list[int], pads: list[int]
) -> list[int]:
    """Return the end paddings that a pooling with ``ceil_mode`` reads, so that one without gives the same size.

    A window that begins in the padding at the end is left out, as in torch.
    """
    count = len(kernel)
    more = []
    for axis, size in enumerate(X.shape[2:]):
        reach, begin, end = (kernel[axis] - 1) * dilations[axis] + 1, pads[axis], pads[axis + count]
        steps = -(-(size + begin + end - reach) // strides[axis])
        steps = torch.sym_min(steps, (size + begin - 1) // strides[axis])
        more.append(steps * strides[axis] + reach - size - begin)
    return pads[:count] + more


def _fits_torch(pads: list[int], kernel: list[int]) -> bool:
    """Tell whether torch's own pooling takes paddings: alike on both sides, and half of the window at most."""
    return symmetric(pads) and all(0 <= 2 * n <= width for n, width in zip(pads, kernel * 2, strict=True))


@onnx_op("MaxPool")
def max_pool(
    X: Tensor,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    storage_order: int = 0,
    strides: list[int] | None = None,
    num_outputs: int = 1,
) -> tuple[Tensor, ...]:
    strides, dilations, pads = window(X, kernel_shape, strides, dilations, pads, auto_pad)
    # torch asks for which sizes its ceil_mode gives one window more.
    asks = ceil_mode and any(isinstance(each, torch.SymInt) for each in X.shape)
    if num_outputs == 1 and X.is_floating_point() and _fits_torch(pads, kernel_shape) and not asks:
        half = pads[: len(kernel_shape)]
        return (_MAX_POOL[len(kernel_shape)](X, kernel_shape, strides, half, dilations, bool(ceil_mode)),)
    if ceil_mode:
        pads = _ceil_mode_pads(X, kernel_shape, strides, dilations, pads)
    count = len(kernel_shape)
    least = -torch.inf if X.is_floating_point() else torch.iinfo(X.dtype).min
    padded = functional.pad(X, paired(pads), value=least)
    floats = padded if X.is_floating_point() else padded.double()
    values, positions = _MAX_POOL[count](floats, kernel_shape, strides, 0, dilations, return_indices=True)
    if num_outputs == 1:
        return (values.to(X.dtype),)
    return values.to(X.dtype), _unpadded(positions, X, pads, storage_order)


def _unpadded(positions: Tensor, X: Tensor, pads: list[int], storage_order: int) -> Tensor:
    """Return positions in the padded image as positions in the whole tensor, which ONNX counts through."""
    sizes = list(X.shape[2:])
    count = len(sizes)
    wide = [size + pads[axis] + pads[axis + count] for axis, size in enumerate(sizes)]
    places = []
    for axis in reversed(range(count)):
        places.append(positions % wide[axis] - pads[axis])
        positions = positions // wide[axis]
    order = list(reversed(range(count))) if storage_order else list(range(count))
    index, image = torch.zeros_like(positions), 1
    for axis in order:
        index = index * sizes[axis] + list(reversed(places))[axis]
        image = image * sizes[axis]
    images = torch.arange(X.shape[0] * X.shape[1], device=X.device).reshape(X.shape[0], X.shape[1], *[1] * count)
    return index + images * image


@onnx_op("MaxUnpool")
def max_unpool(
    X: Tensor,
    I: Tensor,  # noqa: E741 - ONNX's name
    output_shape: list[int] | None = None,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    assert kernel_shape is not None
    count = len(kernel_shape)
    strides, pads = strides or [1] * count, pads or [0] * (2 * count)
    sizes = [
        (size - 1) * strides[axis] - pads[axis] - pads[axis + count] + kernel_shape[axis]
        for axis, size in enumerate(X.shape[2:])
    ]
    inferred = [*X.shape[:2], *sizes]
    flat = torch.zeros(math.prod(inferred), dtype=X.dtype, device=X.device)
    filled = flat.scatter(0, I.reshape(-1), X.reshape(-1)).reshape(inferred)
    if output_shape is None:
        return filled
    more = [
        size for have, want in zip(reversed(inferred), reversed(output_shape), strict=True) for size in (0, want - have)
    ]
    return functional.pad(filled, more)


@onnx_op("AveragePool")
def average_pool(
    X: Tensor,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    strides, dilations, given = window(X, kernel_shape, strides, dilations, pads, auto_pad)
    pads = _ceil_mode_pads(X, kernel_shape, strides, dilations, given) if ceil_mode else given
    count = len(kernel_shape)
    if not ceil_mode and _fits_torch(pads, kernel_shape) and all(n == 1 for n in dilations):
        return _AVG_POOL[count](X, kernel_shape, strides, pads[:count], False, bool(count_include_pad))
    ones = torch.ones_like(X[:1, :1])
    if count_include_pad:
        ones = functional.pad(ones, paired(given), value=1.0)
        pads_of_ones = [have - before for have, before in zip(pads, given, strict=True)]
    else:
        pads_of_ones = pads
    total = window_sums(functional.pad(X, paired(pads)), kernel_shape, strides, dilations)
    return total / window_sums(functional.pad(ones, paired(pads_of_ones)), kernel_shape, strides, dilations)


def window_sums(X: Tensor, kernel: list[int], strides: list[int], dilations: list[int]) -> Tensor:
    """Return the sum of each window."""
    if all(n == 1 for n in dilations):
        return _AVG_POOL[len(kernel)](X, kernel, strides) * math.prod(kernel)
    channels = X.shape[1]
    weight = torch.ones([channels, 1, *kernel], dtype=X.dtype, device=X.device)
    return _CONV[len(kernel)](X, weight, None, strides, 0, dilations, channels)


@onnx_op("LpPool")
def lp_pool(
    X: Tensor,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    p: int = 2,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    strides, dilations, pads = window(X, kernel_shape, strides, dilations, pads, auto_pad)
    pads = _ceil_mode_pads(X, kernel_shape, strides, dilations, pads) if ceil_mode else pads
    powers = functional.pad(torch.abs(X) ** p, paired(pads))
    return window_sums(powers, kernel_shape, strides, dilations) ** (1 / p)


def _spatial(X: Tensor) -> list[int]:
    return list(range(2, X.dim()))


@onnx_op("GlobalAveragePool")
def global_average_pool(X: Tensor) -> Tensor:
    return torch.mean(X, _spatial(X), True) if X.dim() > 2 else X


@onnx_op("GlobalMaxPool")
def global_max_pool(X: Tensor) -> Tensor:
    return torch.amax(X, _spatial(X), True) if X.dim() > 2 else X


@onnx_op("GlobalLpPool")
def global_lp_pool(X: Tensor, p: int = 2) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(X, p, _spatial(X), True)
    return norm


@onnx_op("BatchNormalization", since=7, mean="input_mean", var="input_var")
def batch_normalization(
    X: Tensor,
    scale: Tensor,
    B: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    spatial: int = 1,
) -> tuple[Tensor, ...]:
    if not training_mode:
        # torch's own operator has no derivative by the statistics.
        derived = input_mean.requires_grad or input_var.requires_grad
        if spatial and X.dim() > 1 and X.dtype == scale.dtype == input_mean.dtype and not derived:
            return (functional.batch_norm(X, input_mean, input_var, scale, B, False, 0.0, epsilon),)
        sizes = [-1, *[1] * (X.dim() - 2)] if X.dim() > 1 and spatial else list(scale.shape)
        mean, var, gamma, beta = (each.reshape(sizes).to(X.dtype) for each in (input_mean, input_var, scale, B))
        return ((X - mean) / torch.sqrt(var + epsilon) * gamma + beta,)
    axes = [axis for axis in range(X.dim()) if axis != 1]
    mean, var = torch.mean(X, axes), torch.var(X, axes, correction=0)
    result = functional.batch_norm(X, None, None, scale.to(X.dtype), B.to(X.dtype), True, 0.0, epsilon)
    running_mean = input_mean * momentum + mean * (1 - momentum)
    return result, running_mean, input_var * momentum + var * (1 - momentum)


@onnx_op("BatchNormalization", mean="input_mean", var="input_var")
def batch_normalization_below_opset_7(
    X: Tensor,
    scale: Tensor,
    B: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    consumed_inputs: Any = None,
    epsilon: float = 1e-5,
    is_test: int = 0,
    momentum: float = 0.9,
    spatial: int = 1,
) -> tuple[Tensor, ...]:
    training = 0 if is_test else 1
    return batch_normalization(X, scale, B, input_mean, input_var, epsilon, momentum, training, spatial)


@onnx_op("InstanceNormalization")
def instance_normalization(input: Tensor, scale: Tensor, B: Tensor, epsilon: float = 1e-5) -> Tensor:
    return functional.instance_norm(input, weight=scale, bias=B, eps=epsilon)


@onnx_op("LayerNormalization", since=17)
def layer_normalization(
    X: Tensor,
    Scale: Tensor,
    B: Tensor | None = None,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    num_outputs: int = 1,
) -> tuple[Tensor, ...]:
    sizes = list(X.shape[axis:])
    plain = num_outputs == 1 and X.dtype in (torch.float32, torch.float64) and list(Scale.shape) == sizes
    if plain and (B is None or B.shape == Scale.shape):
        return (functional.layer_norm(X, sizes, Scale, B, epsilon),)
    return native_layer_normalization(X, Scale, B, axis=axis, epsilon=epsilon, stash_type=stash_type)


@onnx_op("GroupNormalization")
def group_normalization_of_groups(
    X: Tensor, scale: Tensor, bias: Tensor, num_groups: int, epsilon: float = 1e-5
) -> Tensor:
    """Compute the form of opset 18, whose scale and bias have one element per group."""
    normal = functional.group_norm(X, num_groups, None, None, epsilon)
    split = normal.reshape(X.shape[0], num_groups, -1)
    return (split * scale.reshape(1, -1, 1) + bias.reshape(1, -1, 1)).reshape(X.shape)


@onnx_op("LpNormalization")
def lp_normalization(input: Tensor, axis: int = -1, p: int = 2) -> Tensor:
    norm = torch.linalg.vector_norm(input, p, axis, True)
    return torch.where(norm == 0, 0, input / torch.where(norm == 0, 1, norm))


@onnx_op("MeanVarianceNormalization")
def mean_variance_normalization(X: Tensor, axes: list[int] | None = None) -> Tensor:
    dims = [0, 2, 3] if axes is None else axes
    centered = X - torch.mean(X, dims, True)
    deviation = torch.sqrt(torch.mean(centered * centered, dims, True))
    return centered / (deviation + 1e-9)


@onnx_op("LRN")
def lrn(X: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Tensor:
    before = (size - 1) // 2
    squares = torch.flatten(X * X, 2).unsqueeze(1)
    padded = functional.pad(squares, [0, 0, before, size - 1 - before])
    sums = functional.avg_pool2d(padded, [size, 1], 1).squeeze(1) * size
    return X / (bias + alpha / size * sums.reshape(X.shape)) ** beta


@onnx_op("Dropout", since=12)
def dropout(
    data: Tensor,
    ratio: float = 0.5,
    training_mode: int = 0,
    seed: int | None = None,
    num_outputs: int = 1,
) -> tuple[Tensor, ...]:
    if not training_mode or ratio == 0:
        return data, torch.ones_like(data, dtype=torch.bool)
    mask = torch.rand_like(in_float(data)) >= ratio
    return torch.where(mask, data / (1 - ratio), 0), mask


@onnx_op("Dropout", since=7)
def dropout_at_inference(data: Tensor, ratio: float = 0.5, num_outputs: int = 1) -> tuple[Tensor, ...]:
    return data, torch.ones_like(data, dtype=torch.bool)


@onnx_op("Col2Im")
@widened
def col2im(
    input: Tensor,
    image_shape: list[int],
    block_shape: list[int],
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    count = len(block_shape)
    dilations, strides, pads = dilations or [1] * count, strides or [1] * count, pads or [0] * (2 * count)
    wide = [size + pads[axis] + pads[axis + count] for axis, size in enumerate(image_shape)]
    blocks = [(wide[a] - dilations[a] * (block_shape[a] - 1) - 1) // strides[a] + 1 for a in range(count)]
    # The position in the padded image of each element of each block.
    place = torch.zeros([1] * (2 * count), dtype=torch.int64, device=input.device)
    for axis in range(count):
        element = torch.arange(block_shape[axis], device=input.device) * dilations[axis]
        block = torch.arange(blocks[axis], device=input.device) * strides[axis]
        element = element.reshape([-1 if a == axis else 1 for a in range(2 * count)])
        block = block.reshape([-1 if a == axis + count else 1 for a in range(2 * count)])
        place = place * wide[axis] + element + block
    n, channels = input.shape[0], input.shape[1] // math.prod(block_shape)
    image = torch.zeros([n, channels, math.prod(wide)], dtype=input.dtype, device=input.device)
    image = image.index_add(2, place.reshape(-1), input.reshape(n, channels, -1)).reshape(n, channels, *wide)
    return functional.pad(image, paired([-each for each in pads]))
