"""Sixty-one architectures of transformers export with dynamic shapes and equal eager PyTorch at other sizes."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree
from zoo import ZOO, case

from onnx_fx_export import export


def larger(inputs: dict[str, torch.Tensor], dims: dict[str, dict[int, str]]) -> dict[str, torch.Tensor]:
    """Return one more batch entry, and three more tokens where the length is dynamic."""
    result = {name: torch.cat([value, value[:1]]) for name, value in inputs.items()}
    return {name: torch.cat([v, v[:, :3]], 1) if 1 in dims[name] else v for name, v in result.items()}


def tensors(tree: object) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@pytest.mark.wide
@pytest.mark.parametrize("opset", [20, 23])
@pytest.mark.parametrize("name", ZOO)
def test_architecture_equals_eager(name: str, opset: int) -> None:
    model, inputs, dims = case(name)
    with torch.no_grad():
        program = export(model, (), kwargs=inputs, dynamic_shapes=dims, opset_version=opset)
        for sizes in (inputs, larger(inputs, dims)):
            expected, actual = tensors(model(**sizes)), tensors(program(**sizes))
            assert len(actual) == len(expected)
            for mine, theirs in zip(actual, expected, strict=True):
                scale = max(1.0, float(theirs.abs().max()))
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5 * scale)
