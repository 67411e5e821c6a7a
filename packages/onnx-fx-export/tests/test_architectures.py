"""Models of common architectures export with dynamic sizes and equal eager PyTorch at other sizes."""

from __future__ import annotations

import functools

import onnx
import pytest
import torch
from architectures import ARCHITECTURES, Case
from torch.utils import _pytree as pytree

from onnx_fx_export import export


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
