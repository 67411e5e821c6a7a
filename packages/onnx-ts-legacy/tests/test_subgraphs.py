"""Bare graphs, as onnx-verify asks for them."""

from __future__ import annotations

from importlib.metadata import entry_points

import onnx
import pytest
import torch
from ts_models import run

from onnx_ts_legacy.errors import ArgumentsError
from onnx_ts_legacy.subgraphs import export_graph


@torch.jit.script
def piece(x: torch.Tensor, weight: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.relu(x @ weight)
    return y * count, y.sum(-1)


def test_onnx_verify_finds_the_exporter() -> None:
    (found,) = entry_points(group="onnx_verify.subgraph_exporters")

    assert found.load() is export_graph


def test_a_graph_is_exported_under_the_names_of_its_inputs() -> None:
    x, weight = torch.randn(2, 3), torch.randn(3, 4)

    model = export_graph(piece.graph, (x, weight, 3), 18)

    onnx.checker.check_model(model)
    names = [value.name for value in model.graph.input]
    assert names == [value.debugName() for value in piece.graph.inputs()][:2]
    results = run(model, {names[0]: x.numpy(), names[1]: weight.numpy()})
    for actual, expected in zip(results, piece(x, weight, 3), strict=True):
        torch.testing.assert_close(torch.from_numpy(actual), expected)


def test_the_wrong_number_of_inputs_is_refused() -> None:
    with pytest.raises(ArgumentsError, match="3 inputs, got 1"):
        export_graph(piece.graph, (torch.ones(1),))
