"""Windows, Fourier transforms, and filters of spectra."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from onnxops_core import native
from onnxops_decomp.importing.registry import onnx_op
from onnxops_decomp.importing.values import carrier


def _window(size: int, periodic: int, output_datatype: int, coefficients: list[float]) -> Tensor:
    step = 2 * math.pi / (size if periodic else size - 1)
    x = torch.arange(size, dtype=torch.float64) * step
    total = sum((-1) ** k * factor * torch.cos(k * x) for k, factor in enumerate(coefficients))
    assert isinstance(total, Tensor)
    return total.to(carrier(output_datatype))


@onnx_op("HannWindow")
def hann_window(size: int, output_datatype: int = 1, periodic: int = 1) -> Tensor:
    return _window(size, periodic, output_datatype, [0.5, 0.5])


@onnx_op("HammingWindow")
def hamming_window(size: int, output_datatype: int = 1, periodic: int = 1) -> Tensor:
    return _window(size, periodic, output_datatype, [25 / 46, 21 / 46])


@onnx_op("BlackmanWindow")
def blackman_window(size: int, output_datatype: int = 1, periodic: int = 1) -> Tensor:
    return _window(size, periodic, output_datatype, [0.42, 0.5, 0.08])


@onnx_op("MelWeightMatrix")
def mel_weight_matrix(
    num_mel_bins: int,
    dft_length: int,
    sample_rate: int,
    lower_edge_hertz: float,
    upper_edge_hertz: float,
    output_datatype: int = 1,
) -> Tensor:
    bins = dft_length // 2 + 1
    low, high = (2595 * math.log1p(hertz / 700) / math.log(10) for hertz in (lower_edge_hertz, upper_edge_hertz))
    mel = torch.arange(num_mel_bins + 2, dtype=torch.float64) * ((high - low) / (num_mel_bins + 2)) + low
    hertz = 700 * torch.expm1(mel / 2595 * math.log(10))
    edges = torch.floor_divide((dft_length + 1) * hertz, sample_rate).to(torch.int64)
    left, center, right = (edges[k : k + num_mel_bins].unsqueeze(0) for k in range(3))
    place = torch.arange(bins).unsqueeze(1)
    rising = (place - left) / torch.clamp(center - left, min=1)
    falling = (right - place) / torch.clamp(right - center, min=1)
    weight = torch.where((place >= left) & (place <= center), rising, 0)
    weight = torch.where((place == center) & (left == center), 1, weight)
    weight = torch.where((place >= center) & (place < right), falling, weight)
    return weight.to(carrier(output_datatype))


@onnx_op("DFT", since=17)
def dft_along_attribute(
    input: Tensor, dft_length: int | None = None, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Tensor:
    return native.dft(input, dft_length, axis=axis, inverse=bool(inverse), onesided=bool(onesided))


@onnx_op("DFT", since=20)
def dft(input: Tensor, dft_length: int | None = None, axis: int = -2, inverse: int = 0, onesided: int = 0) -> Tensor:
    return native.dft(input, dft_length, axis, inverse=bool(inverse), onesided=bool(onesided))


@onnx_op("STFT", since=17)
def stft(
    signal: Tensor,
    frame_step: int,
    window: Tensor | None = None,
    frame_length: int | None = None,
    onesided: int = 1,
) -> Tensor:
    # torch.onnx writes real signals without a last dimension, and ONNX Runtime takes them.
    signal = signal.unsqueeze(-1) if signal.dim() == 2 else signal
    return native.stft(signal, frame_step, window, frame_length, onesided=bool(onesided))


@onnx_op("FlexAttention", domain="ai.onnx.preview")
def flex_attention(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    scale: float | None = None,
    softmax_precision: int | None = None,
    score_mod: Any = None,
    prob_mod: Any = None,
) -> Tensor:
    def modifier(body: Any) -> Any:
        return None if body is None else lambda tensor: body[0](tensor, *body[1])[0]

    return native.flex_attention(
        Q,
        K,
        V,
        scale=scale,
        softmax_precision=softmax_precision,
        score_mod=modifier(score_mod),
        prob_mod=modifier(prob_mod),
    )
