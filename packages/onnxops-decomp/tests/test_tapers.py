"""Window functions equal eager PyTorch."""

import pytest
import torch
from decomp_harness import check


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.float16])
@pytest.mark.parametrize("length", [0, 1, 2, 9, 400])
@pytest.mark.parametrize(
    "window",
    [
        torch.hann_window,
        torch.bartlett_window,
        torch.blackman_window,
        torch.kaiser_window,
        torch.hamming_window,
        lambda n, dtype: torch.hann_window(n, periodic=False, dtype=dtype),
        lambda n, dtype: torch.hamming_window(n, False, 0.6, 0.4, dtype=dtype),
        lambda n, dtype: torch.kaiser_window(n, True, 7.5, dtype=dtype),
    ],
)
def test_window_is_a_constant(window, length: int, dtype: torch.dtype | None) -> None:
    lowered = check(lambda x: (x * 2, window(length, dtype=dtype)), torch.zeros(2))
    assert lowered.op_types() == ["Mul", "Identity"]
