"""Bags of embeddings whose last offset is given, and which may end before the indices do."""

import pytest
import torch

from onnx_fx_export import export


@pytest.mark.parametrize("opset", [9, 18])
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_the_last_offset_ends_the_last_bag(mode: str, padding: int | None, opset: int) -> None:
    model = torch.nn.EmbeddingBag(10, 2, mode=mode, include_last_offset=True, padding_idx=padding).eval()
    program = export(
        model,
        (torch.arange(7), torch.tensor([0, 2, 5, 6])),
        dynamic_shapes=({0: torch.export.Dim("n")}, {0: torch.export.Dim("bags")}),
        opset_version=opset,
    )
    for count, ends in ((7, [0, 2, 5, 6]), (5, [0, 0, 4]), (9, [0, 9, 9]), (4, [0, 3])):
        call = (torch.arange(count), torch.tensor(ends))
        torch.testing.assert_close(program(*call), model(*call).detach())
