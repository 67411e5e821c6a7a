"""Fourier transforms equal eager PyTorch."""

from collections.abc import Callable

import pytest
import torch
from decomp_harness import check

Function = Callable[..., torch.Tensor]
fft = torch.fft

torch.manual_seed(0)
OPSETS = [9, 13, 17, 20, 26]
OF_REAL = [fft.fft, fft.fft2, fft.fftn, fft.ifft, fft.ifftn, fft.rfft, fft.rfft2, fft.rfftn, fft.ihfft, fft.ihfft2]
OF_COMPLEX = [fft.fft, fft.fftn, fft.ifft, fft.ifft2, fft.irfft, fft.irfft2, fft.irfftn, fft.hfft, fft.hfftn]


@pytest.mark.parametrize("function", OF_REAL)
@pytest.mark.parametrize("opset", OPSETS)
def test_transform_of_real_numbers(function: Function, opset: int) -> None:
    check(lambda x: function(x), torch.randn(3, 6, 5), opset=opset)


@pytest.mark.parametrize("function", OF_COMPLEX)
@pytest.mark.parametrize("opset", OPSETS)
def test_transform_of_complex_numbers(function: Function, opset: int) -> None:
    check(lambda x: function(x), torch.randn(3, 6, 5, dtype=torch.complex64), opset=opset)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("opset", [13, 20])
def test_scaling_and_length(norm: str, opset: int) -> None:
    check(
        lambda x: (fft.fft(x, n=8, norm=norm), fft.rfft(x, n=3, dim=0, norm=norm)),
        torch.randn(4, 5),
        opset=opset,
    )
    z = torch.randn(4, 5, dtype=torch.complex64)
    check(
        lambda z: (fft.ifft(z, n=7, norm=norm), fft.irfft(z, n=9, norm=norm), fft.irfft(z, n=8)),
        z,
        opset=opset,
    )


@pytest.mark.parametrize("length", [100, 128, 399])
@pytest.mark.parametrize("opset", [13, 17, 20])
def test_every_length_is_precise(length: int, opset: int) -> None:
    # The largest of these numbers is about 60.
    check(lambda x: fft.rfft(x), torch.randn(4, length), opset=opset, tolerance=(1e-5, 5e-5))


def test_double_precision() -> None:
    check(lambda x: fft.irfft(fft.rfft(x) * 2), torch.randn(3, 12, dtype=torch.float64))


@pytest.mark.parametrize("opset", [13, 20])
def test_transform_at_other_sizes(opset: int) -> None:
    others = [(torch.randn(2, 9),)]
    check(lambda x: fft.fft(x, norm="ortho"), torch.randn(4, 6), opset=opset, others=others)
    check(
        lambda x: fft.irfft(fft.rfft(x, dim=0), n=x.shape[0], dim=0),
        torch.randn(4, 6),
        opset=opset,
        others=others,
    )


@pytest.mark.parametrize("opset", [17, 20])
def test_a_signal_that_may_be_empty_is_lengthened(opset: int) -> None:
    others = [(torch.zeros(2, 0),), (torch.randn(3, 6),)]
    lengthened = lambda x: (fft.rfft(x, n=4), fft.fft(x, n=9), fft.ihfft(x, n=5))  # noqa: E731
    check(lengthened, torch.randn(2, 7), opset=opset, others=others)


def test_shift() -> None:
    check(lambda x: (fft.fftshift(x), fft.ifftshift(x, dim=-1)), torch.randn(4, 5))


@pytest.mark.parametrize("opset", [13, 17, 20])
@pytest.mark.parametrize("center", [True, False])
def test_short_time_transform(opset: int, center: bool) -> None:
    check(
        lambda x, w: torch.view_as_real(torch.stft(x, 16, 4, 12, w, center=center, return_complex=True)),
        torch.randn(2, 64),
        torch.hann_window(12),
        opset=opset,
    )


@pytest.mark.parametrize("opset", [13, 17])
def test_short_time_transform_of_frames_of_any_length(opset: int) -> None:
    x, window = torch.randn(100), torch.hann_window(25)
    check(lambda x, w: torch.stft(x, 25, 10, window=w, return_complex=True), x, window, opset=opset)
    z = torch.randn(2, 11, 11, dtype=torch.complex64)
    check(lambda z, w: torch.istft(z, 20, 5, window=w), z, torch.hann_window(20), opset=opset)


def test_short_time_transform_at_other_sizes() -> None:
    check(
        lambda x: torch.stft(x, 16, return_complex=True, normalized=True),
        torch.randn(64),
        others=[(torch.randn(100),)],
    )


@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize("length", [None, 50, 90])
def test_inverse_short_time_transform(opset: int, length: int | None) -> None:
    def back(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(x, 16, 4, window=w, return_complex=True)
        return torch.istft(spectrum, 16, 4, window=w, length=length)

    check(back, torch.randn(2, 64), torch.hann_window(16), opset=opset)


def test_inverse_short_time_transform_at_other_sizes() -> None:
    check(
        lambda z: torch.istft(z, 16, normalized=True, center=False, window=torch.ones(16)),
        torch.randn(2, 9, 5, dtype=torch.complex64),
        others=[(torch.randn(3, 9, 8, dtype=torch.complex64),)],
    )


@pytest.mark.parametrize("opset", [7, 9, 13, 18, 26])
@pytest.mark.parametrize("hop", [4, 5, 16])
def test_inverse_short_time_transform_of_doubles(hop: int, opset: int) -> None:
    spectra = (torch.randn(batch, 9, frames, dtype=torch.complex128) for batch, frames in ((2, 11), (3, 14)))
    first, second = ((spectrum, torch.ones(16).double()) for spectrum in spectra)
    check(
        lambda z, w: torch.istft(z, 16, hop, window=w), *first, others=[second], opset=opset, tolerance=(1e-11, 1e-12)
    )


@pytest.mark.parametrize("opset", [13, 17, 20, 26])
@pytest.mark.parametrize("bins", [3, 5, 6, 7, 9])
def test_a_spectrum_of_fewer_or_more_bins_than_the_length_has(bins: int, opset: int) -> None:
    spectrum = torch.randn(4, bins, dtype=torch.complex64)
    check(lambda x: (torch.fft.irfft(x, 10), torch.fft.irfft(x, 11), torch.fft.hfft(x, 10)), spectrum, opset=opset)


def test_a_spectrum_of_another_number_of_bins_at_run_time() -> None:
    others = [(torch.randn(rows, bins, dtype=torch.complex64),) for rows, bins in ((3, 4), (2, 6), (5, 9))]
    check(lambda x: torch.fft.irfft2(x, (2, 10)), torch.randn(4, 7, dtype=torch.complex64), others=others)
