"""What a program changes of its process between two exports counts in the second one."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
import torch

import onnx_ts_legacy
from onnx_ts_legacy.graph.autocast import may_cast_inside


class Prints(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("called")
        return x * 2


def test_a_function_that_is_replaced_after_an_export_is_called_in_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[Any] = []
    onnx_ts_legacy.export(Prints(), (torch.ones(2),))

    monkeypatch.setattr(builtins, "print", lambda *args: printed.extend(args))
    onnx_ts_legacy.export(Prints(), (torch.ones(2),))

    assert "called" in printed


def test_a_rule_of_autocast_that_is_registered_after_an_export_is_seen_in_the_next_one() -> None:
    with torch.library._scoped_library("process_state", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CPU")
        overload = torch.ops.process_state.twice.default
        before = may_cast_inside(overload)

        torch.library.register_autocast("process_state::twice", "cpu", torch.bfloat16, lib=library)

        assert (before, may_cast_inside(overload)) == (False, True)
