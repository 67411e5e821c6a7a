"""Short-time Fourier transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.builder.sizes import INT64_MAX
from onnxops_decomp.dtypes import is_complex, mark_complex
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.lowerings.complex.numbers import bare, joined, parts
from onnxops_decomp.lowerings.pointwise.conversions import real_and_complex
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.lowerings.signal.fourier import precise_dtype

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

aten = torch.ops.aten

_PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _window(op: OpBuilder, window: ir.Value | None, length: int, n_fft: int, dtype: ir.DataType) -> ir.Value:
    """Return the window in the middle of ``n_fft`` samples."""
    if is_complex(window):
        raise LoweringError("A complex window has no ONNX form; multiply the frames by it and call torch.fft.")
    left = (n_fft - length) // 2
    value = op.expand(op.constant(1, dtype), [length]) if window is None else op.cast(window, dtype)
    return op.Pad(value, [left, n_fft - length - left])


def _transformed(
    op: OpBuilder,
    signal: ir.Value,
    n_fft: int,
    hop_length: int | None,
    win_length: int | None,
    window: ir.Value | None,
    normalized: bool,
    onesided: bool | None,
    return_complex: bool | None,
) -> ir.Value:
    """Transform frames of a signal of shape (samples, parts) or (batch, samples, parts)."""
    batched = op.rank(signal) == 3
    real = not is_complex(signal)
    if not batched:
        signal = op.Unsqueeze(signal, [0])
    dtype = precise_dtype(op, signal, n_fft)
    frame_window = _window(op, window, win_length or n_fft, n_fft, dtype)
    half = real if onesided is None else onesided
    step = op.constant(hop_length or n_fft // 4)
    result = op.STFT(op.cast(signal, dtype), step, frame_window, op.constant(n_fft), onesided=int(half))
    # ONNX's shape inference takes onesided for 0 where it has its default of 1.
    result.shape = ir.Shape([op.dim(op.size(signal, 0)), None, n_fft // 2 + 1 if half else n_fft, 2])
    result = op.Transpose(op.cast(result, op.dtype(signal)), perm=[0, 2, 1, 3])
    if normalized:
        result = op.Mul(result, n_fft**-0.5)
    if not batched:
        result = op.Squeeze(result, [0])
    return mark_complex(bare(op, result)) if return_complex else result


def _with_parts(op: OpBuilder, signal: ir.Value) -> ir.Value:
    return signal if is_complex(signal) else op.Unsqueeze(signal, [op.rank(signal)])


@real_and_complex(aten.stft.default, aten.stft.center)
def stft(
    op: OpBuilder,
    self: ir.Value,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: ir.Value | None = None,
    center: bool = False,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> ir.Value:
    if align_to_window:
        raise LoweringError("align_to_window is not supported; leave it out, and slice the signal instead.")
    of_complex = is_complex(self)
    signal = _with_parts(op, self)
    if center:
        rank, margin = op.rank(signal), n_fft // 2
        before = [margin if axis == rank - 2 else 0 for axis in range(rank)]
        signal = op.Pad(signal, before + before, mode=_PAD_MODES[pad_mode])
    if of_complex:
        mark_complex(signal)
    return _transformed(op, signal, n_fft, hop_length, win_length, window, normalized, onesided, return_complex)


def _overlap_add(op: OpBuilder, frames: ir.Value, hop: int, n_fft: int) -> ir.Value:
    """Sum frames of shape (batch, n_fft, frames), each ``hop`` samples after the one before: (batch, samples)."""
    batch, count = op.size(frames, 0), op.size(frames, 2)
    parts = -(-n_fft // hop)
    split = op.reshape(op.Pad(frames, [0, 0, 0, 0, parts * hop - n_fft, 0]), [batch, parts, hop, count])
    # Part p of frame f belongs to step p + f. Zeros behind each row of frames, read in rows that are shorter by one
    # than these are then, move every row one step further than the row before.
    rows = op.Pad(op.Transpose(split, perm=[0, 1, 3, 2]), [0, 0, 0, 0, 0, 0, parts, 0])
    steps = op.size_add(count, parts - 1)
    flat = op.reshape(rows, [batch, op.size_mul(op.size_add(steps, 1), parts), hop])
    moved = op.reshape(op.Slice(flat, [0], [-parts], [1]), [batch, parts, steps, hop])
    signal = op.reshape(op.ReduceSum(moved, [1], keepdims=0), [batch, op.size_mul(steps, hop)])
    return op.Slice(signal, [0], [n_fft - parts * hop or INT64_MAX], [1])


def _frames(op: OpBuilder, spectrum: ir.Value, n_fft: int, onesided: bool) -> ir.Value:
    """Return the real frames of spectra of shape (batch, bins, frames, 2)."""
    last = op.rank(spectrum) - 1
    wide = op.cast(spectrum, precise_dtype(op, spectrum, n_fft))
    frames = op.DFT(wide, op.constant(n_fft), op.constant(1), inverse=1, onesided=int(onesided))
    real = op.Squeeze(frames, [last]) if onesided else op.Gather(frames, 0, axis=last)
    return op.cast(real, op.dtype(spectrum))


@lowering(aten.istft.default, complex=True)
def istft(
    op: OpBuilder,
    self: ir.Value,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: ir.Value | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Size | None = None,
    return_complex: bool = False,
) -> ir.Value:
    batched = op.rank(self) == 4
    spectrum = self if batched else op.Unsqueeze(self, [0])
    arguments = n_fft, hop_length or n_fft // 4, win_length or n_fft, window, center, normalized, length
    if return_complex:
        signals = [_signal(op, frames, *arguments) for frames in _complex_frames(op, spectrum, n_fft)]
    else:
        signals = [_signal(op, _frames(op, spectrum, n_fft, onesided is not False), *arguments)]
    results = [signal if batched else op.Squeeze(signal, [0]) for signal in signals]
    return joined(op, *results) if return_complex else results[0]


def _complex_frames(op: OpBuilder, spectrum: ir.Value, n_fft: int) -> tuple[ir.Value, ir.Value]:
    wide = op.cast(spectrum, precise_dtype(op, spectrum, n_fft))
    frames = op.DFT(wide, op.constant(n_fft), op.constant(1), inverse=1)
    return parts(op, op.cast(frames, op.dtype(spectrum)))


def _signal(
    op: OpBuilder,
    frames: ir.Value,
    n_fft: int,
    hop: int,
    win_length: int,
    window: ir.Value | None,
    center: bool,
    normalized: bool,
    length: Size | None,
) -> ir.Value:
    """Add up frames (batch, n_fft, frames) and divide by what their windows add up to."""
    if normalized:
        frames = op.Mul(frames, n_fft**0.5)
    weight = op.Unsqueeze(_window(op, window, win_length, n_fft, op.dtype(frames)), [1])
    signal = _overlap_add(op, op.Mul(frames, weight), hop, n_fft)
    envelope = op.expand(op.Unsqueeze(op.Mul(weight, weight), [0]), [1, n_fft, op.size(frames, 2)])
    envelope = _overlap_add(op, envelope, hop, n_fft)
    start = n_fft // 2 if center else 0
    last = -start if start else INT64_MAX
    end = last if length is None else op.size_add(length, start)
    bounds = (op.vector([start]), op.vector([end]), [1])
    result = op.Div(op.Slice(signal, *bounds), op.Slice(envelope, *bounds))
    if length is not None:
        result = _filled(op, result, length)
    return result


def _filled(op: OpBuilder, signal: ir.Value, length: Size) -> ir.Value:
    """Append zeros until there are ``length`` samples."""
    missing = op.size_max(op.size_sub(length, op.size(signal, 1)), 0)
    return op.Pad(signal, op.vector([0, 0, 0, missing]))
