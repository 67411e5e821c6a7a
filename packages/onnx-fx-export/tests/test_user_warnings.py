"""Warnings point at the user's file, whichever way an export takes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import onnx_fx_export
import onnx_ts_legacy
from onnx_fx_export import replace_torch_onnx

X = torch.ones(2, 3)
OPTIONS: dict[str, Any] = {"state": "ignore", "input_names": ["y", "x"]}


class Careless(nn.Module):
    """Changes a buffer and an input, draws at random, and returns what is not a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.last: Any = None
        self.dropout = nn.Dropout()

    def forward(self, x: Tensor, y: Tensor, count: int = 2) -> tuple[Tensor, str]:
        last, self.last = self.last, x
        self.total += x.sum(0)
        y += 1
        return self.dropout(x) * self.total + y * count + (0 if last is None else last), "done"


class Traceable(Careless):
    """Cannot be captured by torch.export."""

    def forward(self, x: Tensor, y: Tensor, count: int = 2) -> tuple[Tensor, str]:
        if not torch.jit.is_tracing():
            raise ValueError("not like this")
        return super().forward(x, y, count)


PROGRAM = torch.export.export(nn.Bilinear(3, 3, 2), (X, X + 1))


def by_torch(**options: Any) -> Any:
    with replace_torch_onnx():
        return torch.onnx.export(Careless(), (X, X + 1, 2), **options)


def scripted() -> Any:
    class Scripted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n = 0

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            self.n += 1
            y += 1
            return x * self.n + y

    return onnx_ts_legacy.export(torch.jit.script(Scripted()), (X, X + 1), **OPTIONS)


PATHS: dict[str, tuple[Callable[[], Any], int]] = {
    "fx": (lambda: onnx_fx_export.export(Careless(), (X, X + 1, 2), **OPTIONS), 6),
    "dynamic": (lambda: onnx_fx_export.export(lambda x: x[:5] * 2, (X,), dynamic_shapes=({0: "n"},)), 0),
    "program": (lambda: onnx_fx_export.export(PROGRAM, input_names=["input2", "input1"]), 2),
    "ts": (lambda: onnx_ts_legacy.export(Careless().eval(), (X, X + 1, 2), **OPTIONS), 6),
    "torchscript": (lambda: onnx_fx_export.export(Careless(), (X, X + 1, 2), dynamo=False, **OPTIONS), 5),
    "fallback": (lambda: onnx_fx_export.export(Traceable(), (X, X + 1, 2), fallback=True, **OPTIONS), 5),
    "scripted": (scripted, 3),
    "torch.onnx": (lambda: by_torch(dynamo=True, **OPTIONS), 6),
    "torch.onnx, TorchScript": (lambda: by_torch(dynamo=False, **OPTIONS), 5),
}


@pytest.mark.parametrize("path", PATHS)
def test_warnings_point_at_the_file_of_the_user(path: str) -> None:
    export, least = PATHS[path]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", message=".*torch.jit.*deprecated")
        export()

    assert {warning.filename for warning in caught} == {__file__}
    assert len(caught) >= least
