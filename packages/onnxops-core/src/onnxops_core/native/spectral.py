"""DFT (opset 20) and STFT (opset 17) as torch operators."""

from __future__ import annotations

from dataclasses import KW_ONLY

import torch

from onnxops_core.native.declaring.call import Call, Integer, OptionalSize, Size, operator_call, public
from onnxops_core.native.declaring.checks import check_float, check_same_dtype, invalid
from onnxops_core.native.declaring.declare import declare

__all__ = ["dft", "stft"]


# The transforms of eager CPU tensors are computed in float64: it costs little there, and values that cancel
# to zero # come out as zero. Elsewhere float32 has to do.
_LEAST_REFERENCE = torch.float64
_LEAST_COMPOSITE = torch.float32


def _to_complex(x: torch.Tensor, least: torch.dtype) -> torch.Tensor:
    """Read ``(..., 1)`` or ``(..., 2)`` as complex numbers ``(...)`` of a least precision."""
    wide = x.to(torch.promote_types(x.dtype, least))
    if x.shape[-1] == 1:
        return torch.complex(wide.squeeze(-1), torch.zeros_like(wide.squeeze(-1)))
    return torch.complex(wide[..., 0], wide[..., 1])


@operator_call
class DFTCall(Call[torch.Tensor]):
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

    input: torch.Tensor
    dft_length: OptionalSize = OptionalSize(None)
    axis: Integer = Integer(-2)
    _: KW_ONLY
    inverse: bool = False
    onesided: bool = False


def _dft_check(call: DFTCall) -> None:
    input, axis = call.input, call.axis
    op = "DFT"
    check_float(op, "input", input)
    rank = input.dim()
    if rank < 2 or input.shape[-1] not in (1, 2):
        raise invalid(op, "input", input, "rank 2 or more and a last dimension of 1 (real) or 2 (complex)")
    if not (-rank <= axis <= -2 or 0 <= axis <= rank - 2):
        raise invalid(op, "axis", axis, f"a dimension of the input (rank {rank}) other than the last")
    if call.dft_length is not None and call.dft_length <= 0:
        raise invalid(op, "dft_length", call.dft_length, "a positive number")
    if input.shape[axis] == 0 and call.dft_length is None:
        raise invalid(op, "input", input, f"a signal that is not empty along axis {axis}")
    if call.onesided and not call.inverse and input.shape[-1] == 2:
        raise invalid(op, "input", input, "a real signal (last dimension 1) for a one-sided transform")
    if call.onesided and call.inverse and input.shape[-1] == 1:
        raise invalid(op, "input", input, "a complex spectrum (last dimension 2) for a one-sided inverse transform")


def _transform_of_nothing(
    input: torch.Tensor, dft_length: int | None, dim: int, real: bool, onesided: bool
) -> torch.Tensor:
    size = input.shape[dim]
    length = (2 * (size - 1) if real else size) if dft_length is None else dft_length
    shape = [*input.shape[:-1], 1 if real else 2]
    shape[dim] = length // 2 + 1 if onesided and not real else length
    return input.new_zeros(shape)


def _dft_in(least: torch.dtype, call: DFTCall) -> torch.Tensor:
    input, dft_length, axis, inverse, onesided = call.input, call.dft_length, call.axis, call.inverse, call.onesided
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


def _dft_reference(call: DFTCall) -> torch.Tensor:
    return _dft_in(_LEAST_REFERENCE, call).contiguous()


def _dft_composite(call: DFTCall) -> torch.Tensor:
    return _dft_in(_LEAST_COMPOSITE, call)


def _dft_kernel(call: DFTCall) -> torch.Tensor:
    function = _dft_reference if call.input.device.type == "cpu" else _dft_composite
    return function(call).contiguous()


_DFT = declare(
    "DFT",
    20,
    DFTCall,
    reference=_dft_reference,
    composite=_dft_composite,
    kernel=_dft_kernel,
    check=_dft_check,
    scalar_inputs={"dft_length": 7, "axis": 7},
)


dft = public("dft", DFTCall, _DFT)


@operator_call
class STFTCall(Call[torch.Tensor]):
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

    signal: torch.Tensor
    frame_step: Size
    window: torch.Tensor | None = None
    frame_length: OptionalSize = OptionalSize(None)
    _: KW_ONLY
    onesided: bool = True


def _frame_length(call: STFTCall) -> int:
    if call.frame_length is not None:
        return call.frame_length
    return call.signal.shape[1] if call.window is None else call.window.shape[0]


def _stft_check(call: STFTCall) -> None:
    signal, window = call.signal, call.window
    op = "STFT"
    check_float(op, "signal", signal)
    if signal.dim() != 3 or signal.shape[2] not in (1, 2):
        raise invalid(op, "signal", signal, "(batch, length, 1) for real or (batch, length, 2) for complex signals")
    if call.frame_step <= 0:
        raise invalid(op, "frame_step", call.frame_step, "a positive number")
    check_same_dtype(op, "window", window, "signal", signal.dtype)
    if window is not None and window.dim() != 1:
        raise invalid(op, "window", window, "rank 1 (frame_length,)")
    length = _frame_length(call)
    if window is not None and tuple(window.shape) != (length,):
        raise invalid(op, "window", window, f"shape ({length},), the frame length")
    if not 0 < length <= signal.shape[1]:
        raise invalid(op, "frame_length", length, f"a number from 1 to the signal's length, {signal.shape[1]}")
    if call.onesided and signal.shape[2] == 2:
        raise invalid(op, "onesided", call.onesided, "False for complex signals")


def _stft_in(least: torch.dtype, call: STFTCall) -> torch.Tensor:
    signal, frame_step, window, onesided = call.signal, call.frame_step, call.window, call.onesided
    length = _frame_length(call)
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


def _stft_reference(call: STFTCall) -> torch.Tensor:
    return _stft_in(_LEAST_REFERENCE, call).contiguous()


def _stft_composite(call: STFTCall) -> torch.Tensor:
    return _stft_in(_LEAST_COMPOSITE, call)


def _stft_kernel(call: STFTCall) -> torch.Tensor:
    function = _stft_reference if call.signal.device.type == "cpu" else _stft_composite
    return function(call).contiguous()


def _stft_fake(call: STFTCall) -> torch.Tensor:
    length = _frame_length(call)
    frames = (call.signal.shape[1] - length) // call.frame_step + 1
    return call.signal.new_empty((call.signal.shape[0], frames, length // 2 + 1 if call.onesided else length, 2))


_STFT = declare(
    "STFT",
    17,
    STFTCall,
    reference=_stft_reference,
    composite=_stft_composite,
    kernel=_stft_kernel,
    fake=_stft_fake,
    check=_stft_check,
    scalar_inputs={"frame_step": 7, "frame_length": 7},
    written=("onesided",),  # onnx infers the shape of a two-sided transform where it is left out
)


stft = public("stft", STFTCall, _STFT)
