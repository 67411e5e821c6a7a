"""What is written in place beside views whose schemas call them new tensors, read under both names."""

from __future__ import annotations

import io

import onnxruntime
import pytest
import torch

import onnx_ts_legacy


class Einsum(torch.nn.Module):
    def __init__(self, equation: str) -> None:
        super().__init__()
        self.equation = equation

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        shown = torch.einsum(self.equation, [y])
        y[..., 0] += 1
        return shown * 1, y


class Grid(torch.nn.Module):
    def __init__(self, indexing: str) -> None:
        super().__init__()
        self.indexing = indexing

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x * 2
        first, second = torch.meshgrid([y[0], x[1, :2]], indexing=self.indexing)
        y[:, 1] = 7.0
        return first * 1, second * 1, y


class Written(torch.nn.Module):
    """Writes to a view that is not read any more, which TorchScript takes for a write that nobody sees."""

    def __init__(self, equation: str) -> None:
        super().__init__()
        self.equation = equation

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        torch.einsum(self.equation, [y]).clamp_(min=0)
        torch.einsum(self.equation, [x]).mul_(2)
        return x, y


def check(model: torch.nn.Module, rank: int, scripted: bool) -> None:
    """Export at sizes of 3 and compare there, and with one dimension larger."""
    file = io.BytesIO()
    example = torch.randn([3] * rank)
    exported = torch.jit.script(model) if scripted else model
    onnx_ts_legacy.export(exported, (example,), file, input_names=["x"], dynamic_axes={"x": {0: "n"}})
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    for rows in (3, 3 if "ii" in getattr(model, "equation", "") else 5):
        x = torch.randn([rows, *[3] * (rank - 1)])
        for found, wanted in zip(session.run(None, {"x": x.numpy()}), model(x.clone()), strict=True):
            torch.testing.assert_close(torch.from_numpy(found), wanted)


@pytest.mark.parametrize("scripted", [False, True])
@pytest.mark.parametrize(
    "equation", ["ij->ji", "ji", "ij->ij", "ii->i", "...ij->...ji", "i...->...i", "...->...", "ij->i", "ii", "iij->ji"]
)
def test_einsum_of_one_tensor(equation: str, scripted: bool) -> None:
    check(Einsum(equation), 3 if "..." in equation or equation == "iij->ji" else 2, scripted)


@pytest.mark.parametrize("scripted", [False, True])
@pytest.mark.parametrize("indexing", ["ij", "xy"])
def test_meshgrid(indexing: str, scripted: bool) -> None:
    check(Grid(indexing), 2, scripted)


@pytest.mark.parametrize("equation", ["ij->ji", "ii->i"])
def test_a_write_that_nothing_else_shows_is_kept_in_traces(equation: str) -> None:
    check(Written(equation), 2, scripted=False)


def test_a_write_to_a_grid_is_refused() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        torch.meshgrid([x[0], x[1]], indexing="xy")[1][:, 0].sub_(4)
        return x

    with pytest.raises(onnx_ts_legacy.errors.UnsupportedOperatorsError, match=r"aten::sub_"):
        onnx_ts_legacy.export(model, (torch.randn(3, 3),), io.BytesIO())
