"""Models of common architectures export with dynamic sizes and equal eager PyTorch at other sizes."""

from __future__ import annotations

import functools

import onnx
import pytest
import torch
from architectures import ARCHITECTURES, Case
from torch.utils import _pytree as pytree

from onnx_fx_export import export
from onnxops_decomp import to_torch


@functools.cache
def architecture(name: str) -> tuple[Case, torch.export.ExportedProgram]:
    """Return a model in evaluation mode and its capture, which all opsets share."""
    torch.manual_seed(0)
    model, inputs, dims = ARCHITECTURES[name]()
    model.eval()
    return (model, inputs, dims), export(model, (), kwargs=inputs, dynamic_shapes=dims).exported_program


def resized(inputs: dict[str, torch.Tensor], dims: dict[str, dict[int, str]]) -> dict[str, torch.Tensor]:
    """Return inputs that are larger along every dynamic dimension, made of the same values."""
    result = {}
    for name, value in inputs.items():
        for axis, dim in dims[name].items():
            extra = 1 if dim == "batch" else 4 if value.is_floating_point() else 3
            value = torch.cat([value, value.narrow(axis, 0, extra)], axis)
        result[name] = value
    return result


def assert_equals_eager(program, model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        expected = pytree.tree_leaves(model(**inputs))
    actual = pytree.tree_leaves(program(**inputs))
    assert len(actual) == len(expected)
    for mine, theirs in zip(actual, expected, strict=True):
        # Errors of float32 sums grow with the values that are added, not with the one that results.
        scale = max(1.0, float(theirs.abs().max()))
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("opset", [13, 20, 23])
@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_architecture_equals_eager_at_other_sizes(name: str, opset: int) -> None:
    (model, inputs, dims), captured = architecture(name)
    program = export(captured, opset_version=opset)
    onnx.checker.check_model(program.model_proto)
    assert_equals_eager(program, model, inputs)
    assert_equals_eager(program, model, resized(inputs, dims))


def imported(name: str) -> tuple[torch.fx.GraphModule, list[str]]:
    """Return an exported model as a module again, and the names of its inputs."""
    module = to_torch(export(architecture(name)[1], opset_version=20).model_proto)
    return module, module.meta["onnx"]["inputs"]


def assert_takes(program, names: list[str], model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    assert_equals_eager(lambda **given: program(*(given[name] for name in names)), model, inputs)


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_an_exported_architecture_comes_back_as_a_module(name: str) -> None:
    (model, inputs, dims), _ = architecture(name)
    module, names = imported(name)
    assert_takes(module, names, model, inputs)
    assert_takes(module, names, model, resized(inputs, dims))


@pytest.mark.parametrize(
    "name",
    [name if name in ("gru", "resnet") else pytest.param(name, marks=pytest.mark.wide) for name in ARCHITECTURES],
)
def test_what_came_back_goes_out_again_with_its_dynamic_sizes(name: str) -> None:
    (model, inputs, dims), _ = architecture(name)
    module, names = imported(name)
    program = export(module, tuple(inputs[key] for key in names), dynamic_shapes=tuple(dims[key] for key in names))
    assert_takes(program, names, model, inputs)
    assert_takes(program, names, model, resized(inputs, dims))
