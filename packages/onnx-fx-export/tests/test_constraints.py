"""A program refuses sizes that it was not captured for, instead of returning wrong values."""

from __future__ import annotations

import json

import pytest
import torch
from torch.export import Dim

import onnx_fx_export
from onnx_fx_export import export
from onnx_fx_export.constraints import METADATA_KEY


class Branch(torch.nn.Module):
    def forward(self, x):
        return x + 1 if x.shape[0] > 5 else x - 1


def test_the_untaken_branch_is_refused() -> None:
    program = export(Branch(), (torch.ones(8),), dynamic_shapes={"x": {0: "length"}})
    torch.testing.assert_close(program(torch.ones(6)), torch.full((6,), 2.0))
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match=r"length (> 5|>= 6)"):
        program(torch.ones(5))


def test_conditions_are_recorded_in_the_model() -> None:
    program = export(Branch(), (torch.ones(8),), dynamic_shapes={"x": {0: "length"}})
    recorded = json.loads({entry.key: entry.value for entry in program.model_proto.metadata_props}[METADATA_KEY])
    assert "length >= 6" in recorded


def test_divisibility_is_checked() -> None:
    def function(x):
        return x.view(-1, 4) * 2

    program = export(function, (torch.ones(8, 3),), dynamic_shapes={"x": {0: Dim.DYNAMIC}})
    torch.testing.assert_close(program(torch.ones(12, 3)), torch.full((9, 4), 2.0))
    with pytest.raises(onnx_fx_export.OnnxExporterError):
        program(torch.ones(7, 3))


def test_equal_dimensions_are_checked() -> None:
    def function(x, y):
        return x + y

    program = export(function, (torch.ones(3), torch.ones(3)), dynamic_shapes={"x": {0: "a"}, "y": {0: "a"}})
    torch.testing.assert_close(program(torch.ones(5), torch.ones(5)), torch.full((5,), 2.0))
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="size 1"):
        program(torch.ones(5), torch.ones(1))


def test_declared_bounds_are_checked() -> None:
    program = export(torch.nn.ReLU(), (torch.ones(3),), dynamic_shapes={"input": {0: Dim("n", min=2, max=4)}})
    program(torch.ones(4))
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="n <= 4"):
        program(torch.ones(5))


def test_static_sizes_and_ranks_are_checked() -> None:
    program = export(torch.nn.ReLU(), (torch.ones(3, 2),))
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="axis 0"):
        program(torch.ones(4, 2))
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="rank 1"):
        program(torch.ones(3))
