"""Sizes of what operators return whose own shape functions ask more about symbolic sizes than is known.

A rule gives the sizes of each result of a call. Trials of the call confirm them before they are used, so that a rule
may leave out what only unusual sizes do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnx_ts_legacy.shapes.tensor_forms import TensorForm

__all__ = ["ruled_sizes"]

aten = torch.ops.aten

Sizes = list[Any]
# A scale of which the product with any size is exact, and so is its floor as a quotient of integers.
_EXACT_DENOMINATOR = 2**10


def ruled_sizes(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Sizes] | None:
    """Return the sizes of each result of a call, None where no rule knows them.

    Args:
        function: The operator.
        args: Its arguments, tensors as their forms.
        kwargs: Its keyword arguments.
    """
    rule = _RULES.get(function)
    return None if rule is None else rule(*args, **kwargs)


def _padded(self: TensorForm, pad: Sequence[Any], *_: Any) -> list[Sizes]:
    sizes = list(self.shape)
    for index in range(len(pad) // 2):
        sizes[-1 - index] = sizes[-1 - index] + pad[2 * index] + pad[2 * index + 1]
    return [sizes]


def _per_axis(value: Any, rank: int) -> list[Any]:
    given = list(value) if isinstance(value, list | tuple) else [value]
    return given if len(given) == rank else given * rank


def _windows(size: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, *, ceil_mode: bool = False) -> Any:
    """Return how many windows fit; with ``ceil_mode`` also one that ends beyond the padding, but starts before it."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    if not ceil_mode:
        return room // stride + 1
    return torch.sym_min((room + stride - 1) // stride, (size + padding - 1) // stride) + 1


def _pooled(self: TensorForm, rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Sizes:
    given = [_per_axis(value, rank) for value in (kernel, stride or kernel, padding, dilation)]
    windows = (_windows(*each, ceil_mode=ceil) for each in zip(self.shape[-rank:], *given, strict=True))
    return [*self.shape[:-rank], *windows]


def _max_pool(rank: int, results: int = 1) -> Callable[..., list[Sizes]]:
    def rule(
        self: TensorForm,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> list[Sizes]:
        return [_pooled(self, rank, kernel_size, stride, padding, dilation, ceil_mode)] * results

    return rule


def _avg_pool(rank: int) -> Callable[..., list[Sizes]]:
    def rule(
        self: TensorForm, kernel_size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, *_: Any
    ) -> list[Sizes]:
        return [_pooled(self, rank, kernel_size, stride, padding, 1, ceil_mode)]

    return rule


def _columns(self: TensorForm, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> list[Sizes]:
    given = [_per_axis(value, 2) for value in (kernel_size, stride, padding, dilation)]
    rows, columns = (_windows(*each) for each in zip(self.shape[-2:], *given, strict=True))
    height, width = given[0]
    return [[*self.shape[:-3], self.shape[-3] * (height * width), rows * columns]]


def _from_columns(self: TensorForm, output_size: Any, kernel_size: Any, *_: Any) -> list[Sizes]:
    height, width = _per_axis(kernel_size, 2)
    return [[*self.shape[:-2], self.shape[-2] // (height * width), *output_size]]


def _to_size(self: TensorForm, output_size: Any, *_: Any) -> list[Sizes]:
    return [[*self.shape[: -len(output_size)], *output_size]]


def _adaptive(rank: int, results: int = 1) -> Callable[..., list[Sizes]]:
    def rule(self: TensorForm, output_size: Any) -> list[Sizes]:
        return [[*self.shape[:-rank], *_per_axis(output_size, rank)]] * results

    return rule


def _resized(input: TensorForm, output_size: Any, *rest: Any) -> list[Sizes] | None:
    """Return the sizes asked for, or those that scales make, where these are exact."""
    if output_size is not None:
        return _to_size(input, output_size)
    scales = rest[-1]
    ratios = [float(scale).as_integer_ratio() for scale in scales]
    if any(denominator > _EXACT_DENOMINATOR for _, denominator in ratios):
        return None
    sizes = zip(input.shape[-len(ratios) :], ratios, strict=True)
    return [[*input.shape[: -len(ratios)], *(size * times // parts for size, (times, parts) in sizes)]]


def _half_spectrum(self: TensorForm, n: Any = None, dim: int = -1, *_: Any) -> list[Sizes]:
    sizes = list(self.shape)
    sizes[dim] = (sizes[dim] if n is None else n) // 2 + 1
    return [sizes]


def _half_spectra(self: TensorForm, s: Any = None, dim: Any = None, *_: Any) -> list[Sizes]:
    sizes = list(self.shape)
    axes = list(range(-len(s), 0) if s is not None else range(len(sizes))) if dim is None else list(dim)
    for axis, size in zip(axes, s or (), strict=s is not None):
        sizes[axis] = size
    sizes[axes[-1]] = sizes[axes[-1]] // 2 + 1
    return [sizes]


def _half_spectra_of_planes(self: TensorForm, s: Any = None, dim: Any = (-2, -1), *_: Any) -> list[Sizes]:
    return _half_spectra(self, s, dim)


def _parts(self: TensorForm, sections: int, dim: int = 0) -> list[Sizes]:
    """Return parts of which the first ones are longer by one, where the size is no multiple."""
    parts = [list(self.shape) for _ in range(sections)]
    for index, sizes in enumerate(parts):
        sizes[dim] = (sizes[dim] + sections - 1 - index) // sections
    return parts


def _frames(self: TensorForm, n_fft: int, hop_length: int | None, center: bool, rest: Sequence[Any]) -> list[Sizes]:
    """Return frequencies and frames; ``rest`` ends in ``onesided``, ``return_complex`` and ``align_to_window``."""
    onesided, is_complex = rest[0], rest[1]
    length = self.shape[-1] + (2 * (n_fft // 2) if center else 0)
    frames = (length - n_fft) // (hop_length or n_fft // 4) + 1
    kept = n_fft if onesided is False or self.is_complex() else n_fft // 2 + 1
    return [[*self.shape[:-1], kept, frames, *([] if is_complex else [2])]]


def _stft(
    self: TensorForm,
    n_fft: int,
    hop_length: Any = None,
    win_length: Any = None,
    window: Any = None,
    normalized: bool = False,
    *rest: Any,
) -> list[Sizes]:
    return _frames(self, n_fft, hop_length, False, (*rest, None, None))


def _stft_center(
    self: TensorForm,
    n_fft: int,
    hop_length: Any = None,
    win_length: Any = None,
    window: Any = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    *rest: Any,
) -> list[Sizes]:
    return _frames(self, n_fft, hop_length, center, (*rest, None, None))


_UPSAMPLED = (
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
)
_PADDED = (
    "pad",
    "constant_pad_nd",
    *(f"{kind}_pad{rank}d" for kind in ("reflection", "replication") for rank in (1, 2, 3)),
)
_RULES: dict[Any, Callable[..., list[Sizes] | None]] = {
    **{getattr(aten, name).default: _padded for name in _PADDED},
    **{getattr(aten, name).vec: _resized for name in _UPSAMPLED},
    **{getattr(aten, name).default: _to_size for name in _UPSAMPLED},
    **{getattr(aten, f"max_pool{rank}d").default: _max_pool(rank) for rank in (1, 2, 3)},
    **{getattr(aten, f"max_pool{rank}d_with_indices").default: _max_pool(rank, 2) for rank in (1, 2, 3)},
    **{getattr(aten, f"avg_pool{rank}d").default: _avg_pool(rank) for rank in (1, 2, 3)},
    **{getattr(aten, f"adaptive_avg_pool{rank}d").default: _adaptive(rank) for rank in (1, 2, 3)},
    **{getattr(aten, f"adaptive_max_pool{rank}d").default: _adaptive(rank, 2) for rank in (1, 2, 3)},
    aten.im2col.default: _columns,
    aten.col2im.default: _from_columns,
    aten.fft_rfft.default: _half_spectrum,
    aten.fft_ihfft.default: _half_spectrum,
    aten.fft_rfftn.default: _half_spectra,
    aten.fft_rfft2.default: _half_spectra_of_planes,
    aten.stft.default: _stft,
    aten.stft.center: _stft_center,
    aten.tensor_split.sections: _parts,
}
