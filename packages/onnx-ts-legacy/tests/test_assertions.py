"""Assertions leave nothing in the model."""

from __future__ import annotations

import pytest
import torch

import onnx_ts_legacy


class Asserts(torch.nn.Module):
    def forward(self, x):
        torch._assert_async((x > -100).all())
        torch._assert_tensor_metadata(x, None, None, torch.float32)
        return x + 1


class ReturnsAssertions(torch.nn.Module):
    def forward(self, x):
        return torch._is_all_true(x > 0), torch._is_any_true(x > 0)


@pytest.mark.parametrize("convert", [lambda model: model, torch.jit.script], ids=["traced", "scripted"])
def test_assertions_vanish(convert) -> None:
    program = onnx_ts_legacy.export(
        convert(Asserts()), (torch.randn(4, 3),), input_names=["x"], dynamic_axes={"x": [0]}
    )
    assert [node.op_type for node in program.model.graph] == ["Add"]
    x = torch.randn(5, 3)
    torch.testing.assert_close(program(x)[0], x + 1)


@pytest.mark.parametrize("convert", [lambda model: model, torch.jit.script], ids=["traced", "scripted"])
def test_what_assertions_ask_can_be_a_result(convert) -> None:
    model = ReturnsAssertions()
    program = onnx_ts_legacy.export(convert(model), (torch.randn(4, 3),), input_names=["x"], dynamic_axes={"x": [0]})
    for x in (torch.ones(5, 3), -torch.ones(5, 3), torch.eye(3)):
        assert [bool(result) for result in program(x)] == [bool(result) for result in model(x)]
