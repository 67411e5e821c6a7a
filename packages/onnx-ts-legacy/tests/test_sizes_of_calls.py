"""What a trace decides by the size of a result: that follows from sizes of the inputs, whatever gave the result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onnx_ts_legacy
from onnx_ts_legacy.errors import InvalidArgumentError

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "padded": lambda x: F.pad(x, (0, 1, 2, 0)),
    "reflected": lambda x: F.pad(x, (1, 1, 2, 1), mode="reflect"),
    "pooled up to the end": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "pooled windows that start in the padding": lambda x: F.max_pool2d(x, 2, 3, 1, ceil_mode=True),
    "with positions": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)[1],
    "averaged": lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 0), ceil_mode=True),
    "pooled rows": lambda x: F.avg_pool1d(x.flatten(1, 2), 3, 2, ceil_mode=True),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (x.shape[2] - 1, 3)),
    "larger by a half": lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
    "of another size": lambda x: F.interpolate(x, size=(x.shape[3], x.shape[2] + 1)),
    "columns": lambda x: F.unfold(x, (2, 3), dilation=(1, 2), stride=2),
    "columns and back": lambda x: F.fold(F.unfold(x, 2), (x.shape[2], x.shape[3]), 2),
    "half a spectrum": lambda x: torch.fft.rfft(x).abs(),
    "half a spectrum of planes": lambda x: torch.fft.rfft2(x).abs(),
    "half a spectrum of all": lambda x: torch.fft.rfftn(x, dim=(3, 2)).abs(),
    "short spectra": lambda x: torch.stft(x.flatten(1), 8, 3, window=torch.ones(8), return_complex=True).abs(),
    "first of parts": lambda x: x.tensor_split(2, 2)[0],
    "last of parts": lambda x: x.tensor_split(3, 3)[2],
    "one after the other": lambda x: F.max_pool2d(F.pad(F.interpolate(x, scale_factor=0.5), (1, 2)), 2, ceil_mode=True),
}


class Deciding(nn.Module):
    """Decides something by the sizes of a result."""

    def __init__(self, call: Callable[[Tensor], Tensor], least: int) -> None:
        super().__init__()
        self.call, self.least = call, least

    def forward(self, x: Tensor) -> Tensor:
        y = self.call(x)
        if y.numel() < self.least:
            return y - 1
        return y * 2


def exported(model: nn.Module) -> onnx_ts_legacy.TorchScriptProgram:
    dynamic = {"x": {0: "batch", 2: "height", 3: "width"}}
    return onnx_ts_legacy.export(model, (torch.randn(2, 4, 8, 7),), input_names=["x"], dynamic_axes=dynamic)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_branch_of_all_sizes_is_right_at_others(call: Callable[[Tensor], Tensor]) -> None:
    model = Deciding(call, least=1)
    program = exported(model)
    for size in ((3, 4, 11, 9), (1, 4, 6, 16), (2, 4, 9, 5)):
        x = torch.randn(size)
        torch.testing.assert_close(program(x)[0], model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_sizes_beyond_a_branch_are_refused(call: Callable[[Tensor], Tensor]) -> None:
    least = 2 * call(torch.randn(1, 4, 8, 7)).numel()
    model = Deciding(call, least)
    program = exported(model)
    seen = set()
    for size in ((3, 4, 8, 7), (1, 4, 8, 7), (2, 4, 19, 12), (1, 4, 7, 5), (1, 4, 24, 7)):
        x = torch.randn(size)
        is_beyond = call(x).numel() < least
        seen.add(is_beyond)
        if is_beyond:
            with pytest.raises(InvalidArgumentError, match="captured for"):
                program(x)
        else:
            torch.testing.assert_close(program(x)[0], model(x), rtol=1e-4, atol=1e-4)
    assert seen == {False, True}


@pytest.mark.parametrize(
    "layer", [nn.LocalResponseNorm(3), nn.InstanceNorm2d(4), nn.GroupNorm(2, 4)], ids=lambda layer: type(layer).__name__
)
def test_normalizations_that_look_at_sizes_follow_poolings(layer: nn.Module) -> None:
    model = nn.Sequential(nn.MaxPool2d(3, 2, ceil_mode=True), layer, nn.ZeroPad2d(1), layer).eval()
    program = exported(model)
    x = torch.randn(1, 4, 13, 18)
    torch.testing.assert_close(program(x)[0], model(x), rtol=1e-4, atol=1e-4)
