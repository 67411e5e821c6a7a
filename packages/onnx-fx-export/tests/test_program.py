"""What can be done with an exported program besides running it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import onnx_fx_export
from onnx_fx_export import export, replace_torch_onnx
from onnx_fx_export.constraints import METADATA_KEY


def mlp() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


@pytest.fixture
def program():
    return export(mlp(), (torch.randn(2, 3, 4),), dynamic_shapes={"input": {0: "batch"}})


def test_weights_can_be_replaced_by_a_state_dict(program) -> None:
    other = mlp()
    x = torch.randn(2, 3, 4)
    assert not torch.allclose(program(x), other(x))
    assert program.apply_weights({**other.state_dict(), "unknown": torch.ones(1)}) == ["unknown"]
    torch.testing.assert_close(program(x), other(x))


@pytest.mark.parametrize("kind", ["checkpoint", "safetensors"])
def test_weights_can_be_replaced_from_a_file(program, kind: str, tmp_path: Path) -> None:
    other = mlp()
    if kind == "checkpoint":
        path = tmp_path / "weights.pt"
        torch.save({"state_dict": other.state_dict()}, path)
    else:
        from safetensors.torch import save_file

        path = tmp_path / "weights.safetensors"
        save_file(other.state_dict(), path)
    assert program.apply_weights(path) == []
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(program(x), other(x))


def test_a_weight_of_another_shape_replaces_nothing(program) -> None:
    x = torch.randn(2, 3, 4)
    before = program(x)
    state = {"0.bias": torch.ones(4), "2.bias": torch.ones(3)}
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match=r"2\.bias"):
        program.apply_weights(state)
    torch.testing.assert_close(program(x), before)


def test_axes_can_be_renamed() -> None:
    def function(x):
        return x.view(-1, 4) + (1 if x.shape[0] > 3 else 2)

    program = export(function, (torch.ones(8, 2),), dynamic_shapes={"x": {0: torch.export.Dim.DYNAMIC}})
    symbol = program.model.graph.inputs[0].shape[0].value
    program.rename_axes({symbol: "rows"})
    assert str(program.model.graph.inputs[0].shape[0]) == "rows"
    assert "rows" in str(program.model.graph.outputs[0].shape[0])
    assert all(symbol not in text for text in json.loads(program.model.metadata_props[METADATA_KEY]))
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="rows"):
        program(torch.ones(2, 2))


def test_an_unknown_axis_is_refused(program) -> None:
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="'rows'"):
        program.rename_axes({"rows": "lines"})


def test_values_inside_the_model_can_be_computed(program) -> None:
    x = torch.randn(2, 3, 4)
    values = program.compute_values(["relu"], (x,))
    state = program.exported_program.state_dict
    expected = torch.relu(torch.nn.functional.linear(x, state["0.weight"], state["0.bias"]))
    torch.testing.assert_close(values["relu"], expected)


def test_a_program_verifies_itself_at_other_sizes(program) -> None:
    program.verify(torch.randn(5, 3, 4))
    program.apply_weights({"0.bias": torch.full((4,), 9.0)})
    with pytest.raises(onnx_fx_export.VerificationError):
        program.verify(torch.randn(5, 3, 4))


def test_a_released_program_cannot_be_verified(program) -> None:
    program.release()
    with pytest.raises(onnx_fx_export.OnnxExporterError, match="released"):
        program.verify(torch.randn(5, 3, 4))


def test_torch_onnx_export_can_be_routed_here(tmp_path: Path) -> None:
    original = torch.onnx.export
    path = tmp_path / "model.onnx"
    with replace_torch_onnx():
        program = torch.onnx.export(mlp(), (torch.randn(2, 4),), path, dynamo=True, opset_version=13, fallback=False)
        with pytest.raises(TypeError, match="nonsense"):
            torch.onnx.export(mlp(), (torch.randn(2, 4),), nonsense=1)
    assert isinstance(program, onnx_fx_export.ONNXProgram)
    assert path.exists()
    assert torch.onnx.export is original
