"""Bags of embeddings whose last offset is given, and which may end before the indices do."""

import pytest
import torch
from ts_models import exported


@pytest.mark.parametrize("opset", [9, 14, 20])
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
def test_the_last_offset_ends_the_last_bag(scripted: bool, mode: str, padding: int | None, opset: int) -> None:
    model = torch.nn.EmbeddingBag(10, 2, mode=mode, include_last_offset=True, padding_idx=padding)
    exported(
        torch.jit.script(model) if scripted else model,
        (torch.arange(7), torch.tensor([0, 2, 5, 6])),
        (torch.arange(5), torch.tensor([0, 0, 4])),
        (torch.arange(9), torch.tensor([0, 9, 9])),
        (torch.arange(4), torch.tensor([0, 3])),
        opset=opset,
        input_names=["indices", "offsets"],
        dynamic_axes={"indices": [0], "offsets": [0]},
    )


@pytest.mark.parametrize("opset", [9, 14, 20])
@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
def test_weighted_bags_and_rows_of_a_matrix(scripted: bool, opset: int) -> None:
    model = torch.nn.EmbeddingBag(10, 2, mode="sum", include_last_offset=True)
    given = torch.jit.script(model) if scripted else model
    indices, scale = torch.arange(7), torch.rand(7)
    offsets = torch.tensor([0, 2, 5, 6])
    exported(given, (indices, offsets, scale), (indices.flip(0), torch.tensor([0, 1, 4, 5]), scale + 1), opset=opset)
    exported(given, (indices[:6].reshape(3, 2),), (indices[1:].reshape(3, 2),), opset=opset)
