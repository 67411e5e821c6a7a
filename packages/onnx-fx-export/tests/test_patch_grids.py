"""The places of patches, computed of all images at once, are those that transformers computes image by image."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from onnx_fx_export import export
from onnx_fx_export.capture.stand_ins.patch_grids import (
    _STAND_INS,
    _does_the_same,
    nearest_places,
    patch_places,
    window_order,
)

vision_utils = pytest.importorskip("transformers.vision_utils")

GRIDS = (
    torch.tensor([[1, 2, 4]]),
    torch.tensor([[1, 4, 4], [1, 4, 8], [3, 8, 6]]),
    torch.tensor([[2, 12, 2], [1, 2, 2], [1, 10, 6], [2, 4, 4]]),
)


@pytest.mark.parametrize("grids", GRIDS)
@pytest.mark.parametrize("merge", [1, 2])
def test_places(grids: torch.Tensor, merge: int) -> None:
    wanted = vision_utils.get_vision_position_ids(grids, merge, include_temporal=True)
    assert torch.equal(patch_places(grids, merge, True), wanted)
    assert torch.equal(patch_places(grids, torch.tensor(merge).expand(len(grids)), False), wanted[:, 1:])


@pytest.mark.parametrize("grids", GRIDS)
@pytest.mark.parametrize("window", [1, 2, 3])
def test_windows(grids: torch.Tensor, window: int) -> None:
    wanted = vision_utils.get_vision_window_index(grids, 2, window * 2 * 14, 14)
    for found, expected in zip(window_order(grids, 2, window), wanted, strict=True):
        assert torch.equal(found, expected)
        assert found.dtype == expected.dtype


@pytest.mark.parametrize("grids", GRIDS)
@pytest.mark.parametrize("side", [4, 7, 70])
def test_entries_of_a_table(grids: torch.Tensor, side: int) -> None:
    sizes = grids[:, 1:]
    assert torch.equal(nearest_places(sizes, side), vision_utils.get_vision_nearest_position_ids(sizes, side))


class Tower(nn.Module):
    """Attention of patches within the windows of their images, with what transformers computes of the grids."""

    def forward(self, patches: torch.Tensor, grids: torch.Tensor) -> torch.Tensor:
        places = vision_utils.get_vision_position_ids(grids, 2)
        order, bounds = vision_utils.get_vision_window_index(grids, 2, 56, 14)
        patches = (
            (patches + places.sum(1, keepdim=True) / 16).reshape(patches.shape[0] // 4, 4, -1)[order].flatten(0, 1)
        )
        windows = patches.split((bounds[1:] - bounds[:-1]).tolist())
        return torch.cat([(window @ window.T).softmax(-1) @ window for window in windows])


def test_a_tower_of_any_number_of_images() -> None:
    model = Tower()

    def call(grids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(int(grids.prod(1).sum()), 4), grids

    program = export(model, call(GRIDS[1][:2]), dynamic_shapes=({0: "patches"}, {0: "images"}))
    for grids in GRIDS:
        inputs = call(grids)
        torch.testing.assert_close(program(*inputs), model(*inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stand_in", _STAND_INS, ids=lambda function: function.__name__)
def test_a_function_that_does_something_else_is_kept(stand_in: Callable[..., Any]) -> None:
    own = getattr(vision_utils, stand_in.__name__)

    def other(*args: Any) -> Any:
        results = own(*args)
        return tuple(each + 1 for each in results) if isinstance(results, tuple) else results + 1

    other.__signature__ = inspect.signature(own)  # type: ignore[attr-defined]
    assert _does_the_same(own, stand_in)
    assert not _does_the_same(other, stand_in)
