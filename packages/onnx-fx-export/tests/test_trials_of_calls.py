"""What is captured is compared with the model in calls that the model takes, as users make them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnx_fx_export import CaptureError, export
from onnx_fx_export.sizes.trial_runs import TrialRuns
from onnxops_decomp.exporting import fitted_lengths


def padding(lengths: Tensor) -> Tensor:
    """Return where there is padding, for sequences as long as the longest."""
    longest = int(lengths.max().item())
    return torch.arange(longest).expand(len(lengths), longest) >= lengths.unsqueeze(1)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.attention(x, x, x, key_padding_mask=padding(lengths), need_weights=False)[0]


class Masking(nn.Module):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return x.masked_fill(padding(lengths).unsqueeze(2), 0).sum(1) / lengths.unsqueeze(1)


@pytest.mark.parametrize("model", [Attending(), Masking()], ids=lambda model: type(model).__name__)
def test_lengths_follow_the_size_that_they_are_lengths_in(model: nn.Module) -> None:
    model.eval()
    example = (torch.randn(2, 10, 16), torch.tensor([8, 10]))
    program = export(model, example, dynamic_shapes=({0: "batch", 1: "time"}, {0: "batch"}))
    for batch, time in ((1, 7), (3, 12), (2, 2), (1, 1)):
        lengths = torch.tensor([time, max(time - 3, 1), 1])[:batch]
        x = torch.randn(batch, time, 16)
        torch.testing.assert_close(program(x, lengths), model(x, lengths))


def test_integers_are_lengths_where_they_reach_a_size_of_another_tensor() -> None:
    x, lengths, marks = torch.randn(2, 10), torch.tensor([8, 10]), torch.tensor([3, 0])
    for time in (1, 7, 20):
        fitted = fitted_lengths((x, lengths, marks), (torch.randn(2, time), lengths, marks))
        assert fitted is not None
        assert int(fitted[1].max()) == time
        assert int(fitted[1].min()) >= 1
        assert fitted[2] is marks
    assert fitted_lengths((x, marks), (torch.randn(2, 7), marks)) is None
    assert fitted_lengths((torch.randn(10), lengths), (torch.randn(10), lengths)) is None
    places = torch.tensor([0, 4, 10])
    assert fitted_lengths((torch.randn(10), places), (torch.randn(5), places))[1].tolist() == [0, 2, 5]


class Rewritten(nn.Module):
    """Does something else in an export than in other calls, but for what is captured."""

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        zeros = x.new_zeros(len(x) + 1, x.shape[1])
        where = index.unsqueeze(1).expand_as(x)
        if torch.onnx.is_in_onnx_export() and not torch.compiler.is_compiling():
            return (zeros + x.min()).scatter_reduce(0, where, x, "amax")
        return zeros.scatter_reduce(0, where, x, "amax", include_self=False)


def test_what_a_library_does_in_exports_alone_is_no_reason_to_doubt_what_was_captured() -> None:
    model, x, index = Rewritten(), torch.randn(6, 3), torch.tensor([0, 1, 1, 3, 3, 6])
    # A strategy that compares whatever it has captured.
    dynamic = ({0: "rows"}, {0: "rows"})
    program = export(model, (x, index), dynamic_shapes=dynamic, strategy="open-sizes")
    torch.testing.assert_close(program(x[:4], index[:4]), model(x[:4], index[:4]))


class Projected(nn.Module):
    """Divides by what is near nothing for some random matrices, and solves them in another way where it is captured."""

    def forward(self, x: Tensor, matrix: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            points = torch.linalg.inv(matrix) @ x.unsqueeze(-1)
        else:
            points = torch.linalg.solve(matrix, x).unsqueeze(-1)
        return torch.sin(50 * points / points.sum(1, keepdim=True)).squeeze(-1)


def test_random_numbers_that_rounding_decides_are_no_reason_to_doubt_what_was_captured() -> None:
    model, names = Projected(), ({0: "rows"}, {0: "rows"})
    x, matrix = torch.rand(8, 3) + 1, torch.eye(3) + torch.rand(8, 3, 3) / 10
    # A strategy that compares whatever it has captured.
    program = export(model, (x[:4], matrix[:4]), dynamic_shapes=names, strategy="open-sizes")
    torch.testing.assert_close(program(x, matrix), model(x, matrix), rtol=1e-3, atol=1e-3)


def test_numbers_near_those_of_the_example_find_what_is_wrong() -> None:
    class Wrong(Projected):
        def forward(self, x: Tensor, matrix: Tensor) -> Tensor:
            return super().forward(x, matrix) + (0.5 if torch.compiler.is_exporting() else 0.0)

    x, matrix = torch.rand(4, 3) + 1, torch.eye(3) + torch.rand(4, 3, 3) / 10
    with pytest.raises(CaptureError):
        export(Wrong(), (x, matrix), dynamic_shapes=({0: "rows"}, {0: "rows"}), strategy="open-sizes")


class Volume(nn.Module):
    """Convolves a volume, and makes a number of a size."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv3d(1, 2, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) * int(x.shape[2] / 2)


def test_large_inputs_are_compared_at_sizes_that_grow_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    elements: list[int] = []
    run = TrialRuns.run

    def noted(self: TrialRuns, sizes: Any, *args: Any, **kwargs: Any) -> Any:
        elements.append(math.prod(map(int, sizes.values())))
        return run(self, sizes, *args, **kwargs)

    monkeypatch.setattr(TrialRuns, "run", noted)
    model = Volume().eval()
    dynamic = ({0: "batch", 2: "depth", 3: "height", 4: "width"},)
    program = export(model, (torch.randn(2, 1, 32, 24, 32),), dynamic_shapes=dynamic, strategy="open-sizes")
    assert max(elements) < 4 * 2 * 32 * 24 * 32
    x = torch.randn(1, 1, 40, 17, 20)
    torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-4)


class Pyramid(nn.Module):
    """Adds what was made smaller and larger again to what it was made of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        large = self.first(x)
        small = self.second(large)
        top = F.interpolate(F.avg_pool2d(small, 2), scale_factor=2.0) + small
        return F.interpolate(top, scale_factor=2.0) + large


def test_sizes_that_are_equal_in_a_square_example_are_not_taken_for_each_other() -> None:
    model = Pyramid().eval()
    dynamic = ({0: "batch", 2: "height", 3: "width"},)
    program = export(model, (torch.randn(2, 3, 32, 32),), dynamic_shapes=dynamic)
    for size in ((1, 3, 48, 32), (3, 3, 32, 64), (2, 3, 80, 16)):
        x = torch.randn(size)
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-4)
