"""Whichever exporter made a program, it is saved as its export was asked, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from test_one_program import PATHS
from torch import nn
from torch.utils import _pytree as pytree

fx = pytest.importorskip("onnx_fx_export", reason="the programs of both exporters are compared")

KEPT = {
    "export_params": ({"export_params": False}, {"include_initializers": True}),
    "keep_initializers_as_inputs": ({"keep_initializers_as_inputs": True}, {"keep_initializers_as_inputs": False}),
    "external_data": ({"external_data": True}, {"external_data": False}),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("option", KEPT)
def test_a_program_is_saved_as_its_export_was_asked(option: str, path: str, tmp_path: Path) -> None:
    export = PATHS[path]
    given, otherwise = KEPT[option]
    x, model = torch.randn(2, 600), nn.Linear(600, 4).eval()
    program, later = (export(model, (x,), f, **given) for f in (tmp_path / "m.onnx", None))
    written = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    (tmp_path / "later").mkdir()
    later.save(tmp_path / "later" / "m.onnx")

    assert {file.name: file.read_bytes() for file in (tmp_path / "later").iterdir()} == written
    # The program itself runs, and lists what the model takes.
    assert len(program.model.graph.inputs) == 1
    assert all(value.const_value is not None for value in program.model.graph.initializers.values())
    torch.testing.assert_close(pytree.tree_leaves(program(x)), [model(x).detach()], rtol=1e-4, atol=1e-4)
    program.verify(x)
    (tmp_path / "plain").mkdir()
    program.save(tmp_path / "plain" / "m.onnx", **otherwise)
    graph = onnx.load(tmp_path / "plain" / "m.onnx").graph
    assert [file.name for file in (tmp_path / "plain").iterdir()] == ["m.onnx"]
    assert len(graph.initializer) == 2
    assert len(graph.input) == 1


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("option", ["export_params", "keep_initializers_as_inputs"])
def test_weights_that_others_give_are_those_of_the_model(option: str, path: str, tmp_path: Path) -> None:
    export = PATHS[path]
    model = nn.Sequential(nn.Conv1d(3, 4, 2), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(16, 2, bias=False)).eval()
    model[1].running_mean.uniform_(1, 2)
    x = torch.randn(2, 3, 5)
    program = export(model, (x,), tmp_path / "m.onnx", optimize=True, **KEPT[option][0])
    proto = onnx.load(tmp_path / "m.onnx")
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items() if tensor.dim()}

    assert {value.name for value in proto.graph.input} == {program.input_names[0], *weights}
    feeds = {program.input_names[0]: x.numpy(), **weights}
    (result,) = onnx.reference.ReferenceEvaluator(proto).run(None, feeds)
    torch.testing.assert_close(torch.from_numpy(result), model(x).detach(), rtol=1e-4, atol=1e-4)
    program.optimize()
    assert set(weights) <= set(program.model.graph.initializers)


@pytest.mark.parametrize("failing", ["m.onnx", "m.onnx.data"])
@pytest.mark.parametrize("before", [False, True], ids=["nothing before", "another model before"])
def test_a_save_that_fails_as_files_are_moved_leaves_what_was_there(
    failing: str, before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    if before:
        fx.export(nn.Linear(500, 4), (torch.randn(2, 500),), path, external_data=True)
    kept = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    program = fx.export(nn.Linear(600, 4), (torch.randn(2, 600),))
    move = os.replace

    def broken(source: Any, target: Any) -> None:
        if Path(target).name == failing and Path(source).name == failing and Path(source).parent != tmp_path:
            raise PermissionError(13, "Permission denied")
        move(source, target)

    monkeypatch.setattr("os.replace", broken)
    with pytest.raises(fx.SaveError, match="Permission denied"):
        program.save(path, external_data=True)

    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == kept
