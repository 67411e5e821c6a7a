"""Sixty-one architectures of transformers export with dynamic shapes and equal eager PyTorch at other sizes."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree
from zoo import ZOO, case

from onnx_fx_export import ONNXProgram, export


def larger(inputs: dict[str, torch.Tensor], dims: dict[str, dict[int, str]]) -> dict[str, torch.Tensor]:
    """Return one more batch entry, and three more tokens where the length is dynamic."""
    result = {name: torch.cat([value, value[:1]]) for name, value in inputs.items()}
    return {name: torch.cat([v, v[:, :3]], 1) if 1 in dims[name] else v for name, v in result.items()}


def tensors(tree: object) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def assert_equal_to_eager(program: ONNXProgram, model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    expected, actual = tensors(model(**inputs)), tensors(program(**inputs))
    assert len(actual) == len(expected)
    for mine, theirs in zip(actual, expected, strict=True):
        scale = max(1.0, float(theirs.abs().max()))
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.wide
@pytest.mark.parametrize("opset", [20, 23])
@pytest.mark.parametrize("name", ZOO)
def test_architecture_equals_eager(name: str, opset: int) -> None:
    model, inputs, dims = case(name)
    with torch.no_grad():
        program = export(model, (), kwargs=inputs, dynamic_shapes=dims, opset_version=opset)
        for sizes in (inputs, larger(inputs, dims)):
            assert_equal_to_eager(program, model, sizes)


@pytest.mark.wide
@pytest.mark.parametrize("name", ZOO)
def test_an_example_of_one_entry_serves_several(name: str) -> None:
    model, inputs, dims = case(name)
    single = {key: value[:1] if 0 in dims[key] else value for key, value in inputs.items()}
    with torch.no_grad():
        program = export(model, (), kwargs=single, dynamic_shapes=dims)
        for sizes in (single, inputs, larger(inputs, dims)):
            assert_equal_to_eager(program, model, sizes)
