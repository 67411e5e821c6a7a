"""The report on what onnx-fx-export would make of a model."""

from __future__ import annotations

import sys
import types
from typing import Any

import onnx_ir as ir
import pytest
import torch

import onnx_ts_legacy
from onnx_ts_legacy.migration import migration_report

X = torch.randn(2, 3)


def test_without_the_other_exporter_the_report_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx_fx_export", None)

    report = migration_report(torch.nn.Linear(3, 2), (X,))

    assert not report.ready
    assert "pip install onnx-fx-export" in str(report)


def test_a_scripted_program_is_not_ready() -> None:
    report = migration_report(torch.jit.script(torch.nn.Linear(3, 2)), (X,))

    assert not report.ready
    assert "scripted" in report.reason


def test_names_opset_and_operators_that_change_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_export(model: Any, args: Any, **options: Any) -> Any:
        program = onnx_ts_legacy.export(model, args, opset_version=20, output_names=["linear"])
        value = program.model.graph.outputs[0]
        node = ir.node("Relu", [value], outputs=[ir.Value(name="y", type=value.type, shape=value.shape)])
        program.model.graph.append(node)
        program.model.graph.outputs[0] = node.outputs[0]
        return program

    monkeypatch.setitem(sys.modules, "onnx_fx_export", types.SimpleNamespace(export=other_export))

    report = migration_report(torch.nn.Linear(3, 2), (X,), opset_version=17)

    assert report.ready
    assert report.output_names == (["output"], ["y"])
    assert report.opsets == (17, 20)
    assert report.operators == {"Relu": (0, 1)}
    assert "['output'] become ['y']" in str(report)
