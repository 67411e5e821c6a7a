"""Sizes that a model computes in tensors of one element stay dynamic sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from onnx_fx_export import CaptureError, export

DIMS = {0: "batch", 1: "length"}


class Model(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def divided(x: torch.Tensor) -> Any:
    """Longformer's way to its chunks."""
    return x.view(x.shape[0], torch.div(x.shape[1], 4, rounding_mode="trunc"), 4).sum(-1)


def parts(x: torch.Tensor) -> Any:
    size = torch.tensor(x.shape[1])
    half = torch.div(size, 2, rounding_mode="floor")
    least = torch.minimum(half, torch.tensor(5))
    rest = torch.remainder(size, 3) + 1
    return x[:, :half], x.new_zeros((size - half).item()), x[:, : rest.item()], x[:, :-(-least)]


def halves(x: torch.Tensor) -> Any:
    """Fractions are kept until they are rounded."""
    quarter = torch.tensor(x.shape[1]) / 4 + 0.5
    return x[:, : quarter.floor().long()], x[:, : torch.ceil(quarter * 2).to(torch.int64) - 1]


def decided(x: torch.Tensor) -> Any:
    missing = torch.ceil(torch.tensor(x.shape[1]) / 4).long() * 4 - x.shape[1]
    if missing < 0:
        return x
    return nn.functional.pad(x, (0, missing))


def rounded(x: torch.Tensor) -> Any:
    """Half precision cannot hold all sizes, which is seen from 2049 on."""
    return x.new_zeros(torch.tensor(x.shape[1]).half().long().item())


CASES: list[tuple[Callable[..., Any], Sequence[int]]] = [
    (divided, (12, 20)),
    (parts, range(4, 12)),
    (halves, range(4, 12)),
    (decided, range(4, 12)),
]


@pytest.mark.parametrize(("function", "lengths"), CASES)
def test_sizes_computed_in_tensors_are_dynamic(function: Callable[..., Any], lengths: Sequence[int]) -> None:
    program = export(Model(function), (torch.randn(2, 8),), dynamic_shapes=(DIMS,), strategy="non-strict")
    for length in lengths:
        x = torch.randn(3, length)
        torch.testing.assert_close(program(x), function(x), rtol=0, atol=1e-6)


def test_sizes_in_half_precision_are_what_the_data_says() -> None:
    program = export(Model(rounded), (torch.randn(2, 8),), dynamic_shapes=(DIMS,), strategy="non-strict")
    assert program(torch.randn(2, 2049)).shape == (2048,)


def test_numbers_of_data_that_cancel_out_are_no_data() -> None:
    class Rest(nn.Module):
        def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
            most = counts.max()
            longer = torch.cat([x.new_zeros(x.shape[0], most), x], -1)
            rest = longer.narrow(-1, most, longer.size(-1) - most)
            assert [longer.shape[1] - x.shape[1], rest.shape[1]] == [most, x.shape[1]]
            return rest * x

    example = torch.randn(2, 8), torch.tensor([1, 3])
    program = export(Rest(), example, dynamic_shapes=(DIMS, None), strategy="non-strict")
    for counts in ([0, 5], [0, 0]):
        x = torch.randn(3, 11)
        torch.testing.assert_close(program(x, torch.tensor(counts)), x * x)


def test_a_comparison_that_holds_for_every_size_is_no_symbol() -> None:
    class Decided(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            size = torch.scalar_tensor(x.shape[1], dtype=torch.int64)
            return x + 1 if size + 1 > size and size >= 0 else x

    program = export(Decided(), (torch.randn(2, 8),), dynamic_shapes=(DIMS,), strategy="non-strict")
    x = torch.randn(3, 5)
    torch.testing.assert_close(program(x), x + 1)


class Padded(nn.Module):
    """A convolution that keeps its sizes in buffers, as those of Encodec and Mimi do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stride", torch.tensor(4), persistent=False)
        self.register_buffer("kernel", torch.tensor(6), persistent=False)
        self.convolution = nn.Conv1d(2, 3, 6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frames = torch.ceil((x.shape[-1] - self.kernel + 2) / self.stride + 1).to(torch.int64) - 1
        extra = frames * self.stride + self.kernel - 2 - x.shape[-1]
        return self.convolution(nn.functional.pad(x, (2, extra)))


class Counting(Padded):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = super().forward(x)
        self.kernel.add_(1)
        return result


def test_buffers_that_hold_one_integer_decide_sizes() -> None:
    model = Padded().eval()
    program = export(model, (torch.randn(2, 2, 31),), dynamic_shapes=({0: "batch", 2: "length"},))
    for length in range(30, 37):
        x = torch.randn(3, 2, length)
        with torch.no_grad():
            torch.testing.assert_close(program(x), model(x))


def test_buffers_that_the_model_writes_to_decide_no_size() -> None:
    dims = ({0: "batch", 2: "length"},)
    with pytest.raises(CaptureError, match="buffer kernel decides a size"):
        export(Counting(), (torch.randn(2, 2, 31),), dynamic_shapes=dims, state="io", strategy="non-strict")


class Position(nn.Module):
    """A counter that no size is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.tensor(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last = self.seen + x.shape[1]
        self.seen.add_(1)
        return x + last


def test_counters_may_be_added_to_sizes() -> None:
    program = export(Position(), (torch.zeros(2, 8),), dynamic_shapes=(DIMS,), state="io")
    outputs = program.run({"x": torch.zeros(3, 5), "seen": torch.tensor(7)})
    assert float(outputs["output"].max()) == 12.0
    assert int(outputs["seen.next"]) == 8


class Padding(nn.Module):
    """Keeps what Mimi computes of its buffers, and decides by what comes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.total = nn.Buffer(torch.tensor(5), persistent=False)
        self.right = self.total // 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        extra = torch.ceil((x.shape[1] - self.total) / 3) * 3 + self.total - x.shape[1]
        if self.total > 4:
            x = F.pad(x, (self.total - self.right, self.right + extra.to(torch.int64)))
        return x * 2 if x.shape[1] == 1 else x


def test_integers_outside_of_checkpoints_are_numbers_by_themselves() -> None:
    model = Padding()
    program = export(model, (torch.randn(2, 12),), dynamic_shapes=(DIMS,))
    for length in (12, 7, 30):
        x = torch.randn(3, length)
        torch.testing.assert_close(program(x), model(x))


def test_an_integer_in_checkpoints_is_no_number_by_itself() -> None:
    model = Padding()
    model.register_buffer("total", torch.tensor(5), persistent=True)
    with pytest.raises(CaptureError, match="branches on the values of a tensor"):
        export(model, (torch.randn(2, 12),), dynamic_shapes=(DIMS,), strategy="non-strict")
