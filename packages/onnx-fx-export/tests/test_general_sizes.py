"""A program that does what a model does at sizes of other answers too takes these, without a condition in the graph."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from onnx_fx_export import InvalidArgumentError, export
from onnx_fx_export.size_ways import general

SEQUENCE = ({0: "batch", 1: "length"},)
IMAGE = ({0: "batch", 1: "height", 2: "width"},)


class Model(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear, x)


def padded(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
    length = x.shape[1]
    rest = (8 - length % 8) % 8
    if rest > 0:
        x = F.pad(x, (0, 0, 0, rest))
    return linear(x.reshape(x.shape[0], -1, 8, 4)).cumsum(2).flatten(1, 2)[:, :length]


def padded_by_a_ceiling(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Local attention's pad: the question is one about a fraction."""
    length = x.shape[1]
    windows = length / 8
    if not windows.is_integer():
        x = F.pad(x, (0, 0, 0, math.ceil(windows) * 8 - length))
    return linear(x.reshape(x.shape[0], -1, 8, 4)).cumsum(2).flatten(1, 2)[:, :length]


def cut_to_windows(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
    if x.shape[1] % 8:
        x = x[:, : x.shape[1] // 8 * 8]
    return linear(x.unfold(1, 8, 8).transpose(2, 3)).amax((1, 2))


def looking_back(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
    batch, length, width = x.shape
    rest = -length % 4
    if rest:
        x = torch.cat([x, x.new_zeros(batch, rest, width)], 1)
    windows = x.reshape(batch, -1, 4, width)
    before = F.pad(windows, (0, 0, 0, 0, 1, 0), value=-1.0)[:, :-1]
    seen = torch.cat([before, windows], 2)
    weights = (linear(windows) @ seen.transpose(2, 3)).softmax(-1)
    return (weights @ seen).reshape(batch, -1, width)[:, :length]


def of_an_image(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
    height, width = x.shape[1:3]
    if height % 4 != 0:
        x = F.pad(x, (0, 0, 0, 0, 0, 4 - height % 4))
    if width % 6 != 0:
        x = F.pad(x, (0, 0, 0, 6 - width % 6))
    windows = linear(x).unfold(1, 4, 4).unfold(2, 6, 6)
    return windows.sum((-1, -2))


def run(function: Callable[..., Any], example: Sequence[int], others: Sequence[Sequence[int]]) -> Any:
    model = Model(function).eval()
    declared = SEQUENCE if len(example) == 2 else IMAGE
    program = export(model, (torch.randn(*example, 4),), dynamic_shapes=declared)
    for sizes in (example, *others):
        x = torch.randn(*sizes, 4)
        torch.testing.assert_close(program(x), model(x))
    return program


def padded_by_what_is_missing(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Swin's pad, which would be a whole window where nothing is missing."""
    if x.shape[1] % 8 != 0:
        x = F.pad(x, (0, 0, 0, 8 - x.shape[1] % 8))
    return linear(x.reshape(x.shape[0], -1, 8, 4)).amax(1)


def padded_before(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Nystromformer's pad."""
    length = x.shape[1]
    rest = length % 8
    if rest > 0:
        x = F.pad(x, (0, 0, 8 - rest, 0), value=1.0)
    return linear(x.unflatten(1, (-1, 8))).cumsum(2).flatten(1, 2)[:, -length:]


PADDED = [padded, padded_by_a_ceiling, cut_to_windows, looking_back, padded_by_what_is_missing, padded_before]


@pytest.mark.parametrize("length", [16, 22])
@pytest.mark.parametrize("function", PADDED)
def test_padding_that_may_be_none_needs_no_condition(function: Callable[..., Any], length: int) -> None:
    program = run(function, (2, length), [(3, 8), (2, 24), (1, 31), (2, 80), (3, 17), (2, 205)])

    assert "If" not in [node.op_type for node in program.model.graph]
    assert program.capture_strategy == "non-strict"


def test_a_file_has_no_condition_left(tmp_path: Path) -> None:
    def of_one_length(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return linear(x).flip(1) if x.shape[1] == 16 else linear(x.flip(1))

    model, file = Model(of_one_length).eval(), tmp_path / "model.onnx"
    export(model, (torch.randn(2, 22, 4),), dynamic_shapes=SEQUENCE, size_checks=True, f=file)
    assert "size_constraints" not in str(onnx.load(file).metadata_props)

    session = onnxruntime.InferenceSession(file)
    x = torch.randn(3, 16, 4)
    (result,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(result), model(x))


@pytest.mark.parametrize("example", [(2, 8, 12), (2, 8, 13), (2, 9, 13)])
def test_each_dimension_may_need_padding(example: Sequence[int]) -> None:
    run(of_an_image, example, [(1, 9, 12), (3, 8, 17), (2, 10, 10), (1, 12, 18), (3, 4, 6), (2, 3, 5)])


def with_other_values(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
    length = x.shape[1]
    if length % 8 == 0:
        return linear(x.clamp(max=50.0))
    return linear(F.pad(x, (0, 0, 0, 8 - length % 8)))[:, :length]


def with_more_padding(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
    rest = x.shape[1] % 8
    if rest > 0:
        x = F.pad(x, (0, 0, 9 - rest, 0))
    return linear(x).softmax(1)


@pytest.mark.parametrize("length", [16, 22])
@pytest.mark.parametrize("function", [with_other_values, with_more_padding])
def test_ways_that_differ_keep_their_condition(function: Callable[..., Any], length: int) -> None:
    """Two forms agree on usual numbers alone; where nothing is missing, the other one would pad by a whole window."""
    program = run(function, (2, length), [(3, length + 8)])

    with pytest.raises(InvalidArgumentError, match=r"was captured for .*% 8"):
        program(torch.randn(2, 38 - length, 4))


def asking_more(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
    length = x.shape[1]
    if length % 8 == 0:
        return linear(x) * 2 if length > 100 else linear(x)
    return linear(F.pad(x, (0, 0, 0, 8 - length % 8)))[:, :length]


@pytest.mark.parametrize("length", [16, 22])
def test_what_only_the_other_way_asks_stays_a_condition(length: int) -> None:
    program = run(asking_more, (2, length), [(3, 40), (2, 21), (1, 101), (2, 96)])

    with pytest.raises(InvalidArgumentError, match="100"):
        program(torch.randn(2, 104, 4))


def always_padded(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
    length = x.shape[1]
    x = F.pad(x, (0, 0, 0, 8 - length % 8), value=1.0)
    return linear(x)[:, 1:] if length % 16 else linear(x)[:, 1:].contiguous()


@pytest.mark.parametrize("length", [16, 22])
def test_what_is_missing_may_be_a_whole_window(length: int) -> None:
    run(always_padded, (2, length), [(3, 8), (2, 32), (1, 31), (2, 80), (3, 17)])


def way_of(special: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """A pad to a multiple whose other way does something else from a thousand rows on."""

    def run_either(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        if length % 8 == 0:
            return special(linear(x), length)
        return linear(F.pad(x, (0, 0, 0, 8 - length % 8)))[:, :length]

    return run_either


FAR = {
    "a cut": way_of(lambda y, length: y[:, :1000]),
    "a quotient": way_of(lambda y, length: y * (1 + length // 1000)),
    "a minimum": way_of(lambda y, length: y * (min(length, 1000) / length)),
    "a mask": way_of(lambda y, length: y * (torch.arange(length) < 1000)[:, None]),
}


@pytest.mark.parametrize("length", [16, 22])
@pytest.mark.parametrize("case", FAR)
def test_what_differs_far_from_the_example_is_refused_there(case: str, length: int) -> None:
    program, model = run(FAR[case], (1, length), [(1, length + 8)]), Model(FAR[case]).eval()

    taken = []
    for far in (1008, 1009):
        x = torch.randn(1, far, 4)
        with contextlib.suppress(InvalidArgumentError):
            torch.testing.assert_close(program(x), model(x))
            taken.append(far)
    assert taken == [1008 if length == 16 and case != "a cut" else 1009]


@pytest.mark.parametrize("window", [1000, 1001])
def test_a_window_that_is_missing_beside_a_pad_is_padded(window: int) -> None:
    """1000 rows are a whole window for both ways, and 1001 for the one that pads to a multiple of eight."""

    def pads(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        whole = F.pad(x, (0, 0, 0, window - length % window), value=1.0)
        rows = F.pad(x, (0, 0, 0, 8 - length % 8)) if length % 8 else x
        return linear(whole).sum(1) + linear(rows.unflatten(1, (-1, 8))).sum((1, 2))

    model = Model(pads).eval()
    program = export(model, (torch.randn(1, 20, 4),), dynamic_shapes=SEQUENCE)
    for length in (21, 24, window - 1, window, 2 * window):
        x = torch.randn(1, length, 4)
        with contextlib.suppress(InvalidArgumentError):
            torch.testing.assert_close(program(x), model(x), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(program(x := torch.randn(2, 21, 4)), model(x), rtol=1e-3, atol=1e-3)


def test_one_way_may_be_refused_by_the_model() -> None:
    def whole(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] % 8:
            raise ValueError("not whole")
        return linear(x)

    program = run(whole, (2, 16), [(3, 40)])
    with pytest.raises(InvalidArgumentError, match="% 8 == 0"):
        program(torch.randn(2, 17, 4))


class Positions(nn.Module):
    """Positions that are learned for one size, which the code asks for, and interpolated for others."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.positions = nn.Parameter(torch.randn(1, 8, 4, 4))
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[-2:]
        if height * width == 16 and height == width:
            return x + self.positions * self.factor
        return x + F.interpolate(self.positions, size=(height, width), mode="bicubic")


MAP = ({0: "batch", 2: "height", 3: "width"},)


@pytest.mark.parametrize("size", [(4, 4), (6, 5)])
def test_one_size_may_have_a_way_of_its_own(size: tuple[int, int]) -> None:
    model = Positions().eval()
    program = export(model, (torch.randn(2, 8, *size),), dynamic_shapes=MAP)

    for batch, height, width in ((1, 4, 4), (3, 4, 4), (2, 4, 7), (1, 12, 6), (3, 6, 5)):
        x = torch.randn(batch, 8, height, width)
        torch.testing.assert_close(program(x), model(x), atol=1e-5, rtol=1e-5)


def test_a_way_of_one_size_that_differs_is_refused_there() -> None:
    model = Positions(1.01).eval()
    program = export(model, (torch.randn(2, 8, 6, 5),), dynamic_shapes=MAP)

    with pytest.raises(InvalidArgumentError, match="height \\* width != 16"):
        program(torch.randn(2, 8, 4, 4))


class StoredMask(nn.Module):
    """SwinIR's mask, which is stored for the size of its training."""

    def __init__(self) -> None:
        super().__init__()
        self.size = (8, 8)
        self.register_buffer("mask", self.made(8, 8))

    def made(self, height: int, width: int) -> torch.Tensor:
        rows, columns = (torch.arange(size) >= size - 2 for size in (height, width))
        return (rows[:, None] * 2 + columns).float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = (x.shape[-2], x.shape[-1])
        return x.roll((1, 2), (-2, -1)) + (self.mask if size == self.size else self.made(*size))


@pytest.mark.parametrize("size", [(8, 8), (6, 5)])
def test_a_pair_of_sizes_may_have_a_way_of_its_own(size: tuple[int, int]) -> None:
    model = StoredMask().eval()
    program = export(model, (torch.randn(2, 4, *size),), dynamic_shapes=MAP)

    for height, width in ((8, 8), (8, 12), (12, 8), (7, 3)):
        x = torch.randn(3, 4, height, width)
        torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize("options", [{"strategy": "non-strict"}, {"trial_runs": False}])
def test_nothing_is_looked_for_that_is_not_compared(options: dict[str, Any]) -> None:
    program = export(Model(padded).eval(), (torch.randn(2, 16, 4),), dynamic_shapes=SEQUENCE, **options)

    assert "ways of sizes" not in program.timings
    with pytest.raises(InvalidArgumentError, match="% 8 == 0"):
        program(torch.randn(2, 17, 4))


def test_large_programs_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(general, "_MOST_NODES", 0)
    program = export(Model(padded).eval(), (torch.randn(2, 16, 4),), dynamic_shapes=SEQUENCE)

    assert "ways of sizes" not in program.timings


def test_a_slice_that_keeps_all_is_no_condition() -> None:
    """``8 * (n // 8) < n`` held for 2, 3 and a prime, and was taken for a condition, which the example contradicted."""

    def windows(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        return linear(x.view(batch, length // 8, 8, width)).reshape(batch, -1, width)[:, :length]

    run(windows, (2, 16), [(3, 8), (2, 40)])
