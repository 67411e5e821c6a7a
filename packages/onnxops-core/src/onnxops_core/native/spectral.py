"""DFT (opset 20) and STFT (opset 17) as torch operators."""

from __future__ import annotations

from typing import Any

import torch

from onnxops_core.native.declaring.arguments import flag, integer
from onnxops_core.native.declaring.checks import check_float, check_same_dtype, invalid
from onnxops_core.native.declaring.declare import declare

__all__ = ["dft", "stft"]


# The transforms of eager CPU tensors are computed in float64: it costs little there, and values that cancel
# to zero # come out as zero. Elsewhere float32 has to do.
_LEAST_REFERENCE = torch.float64
_LEAST_COMPOSITE = torch.float32


def _to_complex(x: torch.Tensor, least: torch.dtype) -> torch.Tensor:
    """Reads ``(..., 1)`` or ``(..., 2)`` as complex numbers ``(...)`` of a least precision."""
    wide = x.to(torch.promote_types(x.dtype, least))
    if x.shape[-1] == 1:
        return torch.complex(wide.squeeze(-1), torch.zeros_like(wide.squeeze(-1)))
    return torch.complex(wide[..., 0], wide[..., 1])


def _dft_check(
    input: torch.Tensor,
    dft_length: int | None = None,
    axis: int = -2,
    *,
    inverse: bool = False,
    onesided: bool = False,
) -> None:
    op = "DFT"
    check_float(op, "input", input)
    rank = input.dim()
    if rank < 2 or input.shape[-1] not in (1, 2):
        raise invalid(op, "input", input, "rank 2 or more and a last dimension of 1 (real) or 2 (complex)")
    if not (-rank <= axis <= -2 or 0 <= axis <= rank - 2):
        raise invalid(op, "axis", axis, f"a dimension of the input (rank {rank}) other than the last")
    if dft_length is not None and dft_length <= 0:
        raise invalid(op, "dft_length", dft_length, "a positive number")
    if input.shape[axis] == 0 and dft_length is None:
        raise invalid(op, "input", input, f"a signal that is not empty along axis {axis}")
    if onesided and not inverse and input.shape[-1] == 2:
        raise invalid(op, "input", input, "a real signal (last dimension 1) for a one-sided transform")
    if onesided and inverse and input.shape[-1] == 1:
        raise invalid(op, "input", input, "a complex spectrum (last dimension 2) for a one-sided inverse transform")


def _transform_of_nothing(
    input: torch.Tensor, dft_length: int | None, dim: int, real: bool, onesided: bool
) -> torch.Tensor:
    size = input.shape[dim]
    length = (2 * (size - 1) if real else size) if dft_length is None else dft_length
    shape = [*input.shape[:-1], 1 if real else 2]
    shape[dim] = length // 2 + 1 if onesided and not real else length
    return input.new_zeros(shape)


def _dft_in(
    least: torch.dtype, input: torch.Tensor, dft_length: int | None, axis: int, inverse: bool, onesided: bool
) -> torch.Tensor:
    dim = axis if axis >= 0 else axis + input.dim()
    if input.numel() == 0:  # which the FFT library refuses
        return _transform_of_nothing(input, dft_length, dim, inverse and onesided, onesided)
    if onesided and inverse:
        length = 2 * (input.shape[dim] - 1) if dft_length is None else dft_length
        signal: torch.Tensor = torch.fft.irfft(_to_complex(input, least), length, dim)
        return signal.unsqueeze(-1).to(input.dtype)
    length = input.shape[dim] if dft_length is None else dft_length
    if inverse:
        spectrum = torch.fft.ifft(_to_complex(input, least), length, dim)
    elif onesided:
        spectrum = torch.fft.rfft(input.squeeze(-1).to(torch.promote_types(input.dtype, least)), length, dim)
    else:
        spectrum = torch.fft.fft(_to_complex(input, least), length, dim)
    return torch.view_as_real(spectrum).to(input.dtype)


def _dft_reference(
    input: torch.Tensor,
    dft_length: int | None = None,
    axis: int = -2,
    *,
    inverse: bool = False,
    onesided: bool = False,
) -> torch.Tensor:
    return _dft_in(_LEAST_REFERENCE, input, dft_length, axis, inverse, onesided).contiguous()


def _dft_composite(
    input: torch.Tensor,
    dft_length: int | None = None,
    axis: int = -2,
    *,
    inverse: bool = False,
    onesided: bool = False,
) -> torch.Tensor:
    return _dft_in(_LEAST_COMPOSITE, input, dft_length, axis, inverse, onesided)


def _dft_kernel(input: torch.Tensor, *args: Any, **attributes: Any) -> torch.Tensor:
    function = _dft_reference if input.device.type == "cpu" else _dft_composite
    return function(input, *args, **attributes).contiguous()


_DFT = declare(
    "DFT",
    20,
    "(Tensor input, SymInt? dft_length=None, int axis=-2, *, bool inverse=False, bool onesided=False) -> Tensor",
    reference=_dft_reference,
    composite=_dft_composite,
    kernel=_dft_kernel,
    check=_dft_check,
    scalar_inputs={"dft_length": 7, "axis": 7},
)


def dft(
    input: torch.Tensor,
    dft_length: int | torch.SymInt | torch.Tensor | None = None,
    axis: int | torch.Tensor = -2,
    *,
    inverse: bool = False,
    onesided: bool = False,
) -> torch.Tensor:
    """ONNX DFT: the discrete Fourier transform along one dimension, or its inverse.

    Args:
        input: ``(..., 1)`` real or ``(..., 2)`` complex; a float dtype.
        dft_length: the signal is cut or padded with zeros to it; by default the size of the dimension, for a
            one-sided inverse ``2 * (size - 1)``. A number or a 0-d tensor.
        axis: the dimension; not the last. A number or a 0-d tensor.
        inverse: whether to compute the inverse transform, divided by the length.
        onesided: forward, a real signal gives the first ``length // 2 + 1`` values; inverse, those give a
            real signal.

    Returns:
        ``(..., 2)``, or ``(..., 1)`` for a one-sided inverse, of the input's dtype.

    Raises:
        ValueError: shapes, dtypes or attributes that the specification forbids.

    Source: https://onnx.ai/onnx/operators/onnx__DFT.html
    """
    op = "DFT"
    result: torch.Tensor = _DFT(
        input,
        None if dft_length is None else integer(op, "dft_length", dft_length),
        integer(op, "axis", axis),
        inverse=flag(op, "inverse", inverse),
        onesided=flag(op, "onesided", onesided),
    )
    return result


def _frame_length(signal: torch.Tensor, window: torch.Tensor | None, frame_length: int | None) -> int:
    if frame_length is not None:
        return frame_length
    return signal.shape[1] if window is None else window.shape[0]


def _stft_check(
    signal: torch.Tensor,
    frame_step: int,
    window: torch.Tensor | None = None,
    frame_length: int | None = None,
    *,
    onesided: bool = True,
) -> None:
    op = "STFT"
    check_float(op, "signal", signal)
    if signal.dim() != 3 or signal.shape[2] not in (1, 2):
        raise invalid(op, "signal", signal, "(batch, length, 1) for real or (batch, length, 2) for complex signals")
    if frame_step <= 0:
        raise invalid(op, "frame_step", frame_step, "a positive number")
    check_same_dtype(op, "window", window, "signal", signal.dtype)
    if window is not None and window.dim() != 1:
        raise invalid(op, "window", window, "rank 1 (frame_length,)")
    length = _frame_length(signal, window, frame_length)
    if window is not None and tuple(window.shape) != (length,):
        raise invalid(op, "window", window, f"shape ({length},), the frame length")
    if not 0 < length <= signal.shape[1]:
        raise invalid(op, "frame_length", length, f"a number from 1 to the signal's length, {signal.shape[1]}")
    if onesided and signal.shape[2] == 2:
        raise invalid(op, "onesided", onesided, "False for complex signals")


def _stft_in(
    least: torch.dtype,
    signal: torch.Tensor,
    frame_step: int,
    window: torch.Tensor | None,
    frame_length: int | None,
    onesided: bool,
) -> torch.Tensor:
    length = _frame_length(signal, window, frame_length)
    if signal.shape[0] == 0:  # which the FFT library refuses
        frames_of_none = (signal.shape[1] - length) // frame_step + 1
        return signal.new_zeros((0, frames_of_none, length // 2 + 1 if onesided else length, 2))
    wide = signal.to(torch.promote_types(signal.dtype, least))
    frames = wide.unfold(1, length, frame_step)
    if window is not None:
        frames = frames * window.to(wide.dtype)
    if onesided:
        spectrum = torch.fft.rfft(frames.squeeze(2), dim=-1)
    else:
        spectrum = torch.fft.fft(_to_complex(frames.transpose(2, 3), least), dim=-1)
    return torch.view_as_real(spectrum).to(signal.dtype)


def _stft_reference(
    signal: torch.Tensor,
    frame_step: int,
    window: torch.Tensor | None = None,
    frame_length: int | None = None,
    *,
    onesided: bool = True,
) -> torch.Tensor:
    return _stft_in(_LEAST_REFERENCE, signal, frame_step, window, frame_length, onesided).contiguous()


def _stft_composite(
    signal: torch.Tensor,
    frame_step: int,
    window: torch.Tensor | None = None,
    frame_length: int | None = None,
    *,
    onesided: bool = True,
) -> torch.Tensor:
    return _stft_in(_LEAST_COMPOSITE, signal, frame_step, window, frame_length, onesided)


def _stft_kernel(signal: torch.Tensor, *args: Any, **attributes: Any) -> torch.Tensor:
    function = _stft_reference if signal.device.type == "cpu" else _stft_composite
    return function(signal, *args, **attributes).contiguous()


def _stft_fake(
    signal: torch.Tensor,
    frame_step: int,
    window: torch.Tensor | None = None,
    frame_length: int | None = None,
    *,
    onesided: bool = True,
) -> torch.Tensor:
    length = _frame_length(signal, window, frame_length)
    frames = (signal.shape[1] - length) // frame_step + 1
    return signal.new_empty((signal.shape[0], frames, length // 2 + 1 if onesided else length, 2))


_STFT = declare(
    "STFT",
    17,
    "(Tensor signal, SymInt frame_step, Tensor? window=None, SymInt? frame_length=None, *, bool onesided=True) "
    "-> Tensor",
    reference=_stft_reference,
    composite=_stft_composite,
    kernel=_stft_kernel,
    fake=_stft_fake,
    check=_stft_check,
    scalar_inputs={"frame_step": 7, "frame_length": 7},
    written=("onesided",),  # onnx infers the shape of a two-sided transform where it is left out
)


def stft(
    signal: torch.Tensor,
    frame_step: int | torch.SymInt | torch.Tensor,
    window: torch.Tensor | None = None,
    frame_length: int | torch.SymInt | torch.Tensor | None = None,
    *,
    onesided: bool = True,
) -> torch.Tensor:
    """ONNX STFT: Fourier transforms of windows that slide over signals.

    Args:
        signal: ``(batch, length, 1)`` real or ``(batch, length, 2)`` complex; a float dtype.
        frame_step: samples from one frame to the next; a number or a 0-d tensor.
        window: ``(frame_length,)`` of the signal's dtype; ones if None.
        frame_length: samples per frame; by default the window's length, or the signal's. A number or a 0-d
            tensor.
        onesided: whether only the first ``frame_length // 2 + 1`` values are kept; real signals only.

    Returns:
        ``(batch, frames, values, 2)`` of the signal's dtype, ``frames = (length - frame_length) // frame_step
        + 1``.

    Raises:
        ValueError: shapes, dtypes or attributes that the specification forbids.

    Source: https://onnx.ai/onnx/operators/onnx__STFT.html
    """
    op = "STFT"
    step = integer(op, "frame_step", frame_step)
    length = None if frame_length is None else integer(op, "frame_length", frame_length)
    result: torch.Tensor = _STFT(signal, step, window, length, onesided=flag(op, "onesided", onesided))
    return result
