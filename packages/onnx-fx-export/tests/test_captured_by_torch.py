"""Programs that the user captured: what their code asked of small sizes is read from its source."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.export import Dim

from onnx_fx_export import export

TWO = "torch.export assumed that the dynamic sizes of this program are 2 or more"


class Compares(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] == 1 else x * 3


class ComparesLater(torch.nn.Module):
    def forward(self, x):
        rows, _ = x.shape
        if rows > 1:
            x = x * 2
        return x


class AsksWhetherThereAreMore(torch.nn.Module):
    def forward(self, x):
        more = x.size(0) - 1
        return x * 2 if more else x


class Inside(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = ComparesLater()

    def forward(self, x):
        return self.inner(x) + 1


class AsksNothing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        rows = x.shape[0]
        y = self.linear(x).reshape(rows, -1)
        return y if y.dim() == 2 else x


def captured(model: torch.nn.Module, **options):
    return torch.export.export(model, (torch.randn(4, 3),), **options)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("model", [Compares(), ComparesLater(), AsksWhetherThereAreMore(), Inside()])
def test_what_torch_decided_of_size_one_is_told_of_with_its_line(model: torch.nn.Module, strict: bool) -> None:
    program = captured(model, dynamic_shapes=({0: Dim.DYNAMIC},), strict=strict)
    with pytest.warns(UserWarning, match=rf"(?s){TWO}.*test_captured_by_torch.py:\d+"):
        exported = export(program)
    x = torch.randn(5, 3)
    torch.testing.assert_close(exported(x), model(x))


@pytest.mark.parametrize("model, dims", [(AsksNothing(), ({0: Dim.DYNAMIC},)), (Compares(), None)])
def test_nothing_is_told_where_no_dynamic_size_is_asked_about(model: torch.nn.Module, dims) -> None:
    program = captured(model, dynamic_shapes=dims)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        export(program)
