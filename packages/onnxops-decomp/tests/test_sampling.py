"""Sampling on grids equals eager PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from decomp_harness import check
from opset_sweep import swept

OPSETS = swept(11, 13, 16, 18, 20, 22, 26)


def _grid(*out: int) -> torch.Tensor:
    # Positions beyond the borders on both sides, twice over for reflections.
    return torch.rand(2, *out, len(out)) * 7 - 3.5


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample_of_images(mode: str, padding: str, align: bool, opset: int) -> None:
    check(lambda x, g: F.grid_sample(x, g, mode, padding, align), torch.randn(2, 3, 4, 5), _grid(6, 3), opset=opset)


@pytest.mark.parametrize("opset", swept(13, 18, 20, 22))
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_grid_sample_of_volumes(mode: str, padding: str, align: bool, opset: int) -> None:
    check(
        lambda x, g: F.grid_sample(x, g, mode, padding, align), torch.randn(2, 3, 4, 5, 3), _grid(2, 3, 4), opset=opset
    )


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample_of_doubles(mode: str, opset: int) -> None:
    grids = (torch.rand(n, 6, 9, 2).double() * 7 - 3.5 for n in (7, 4))
    first, second = zip((torch.randn(7, 3, 4, 5).double(), torch.randn(4, 2, 7, 8).double()), grids, strict=True)
    check(lambda x, g: F.grid_sample(x, g, mode), *first, others=[second], opset=opset, tolerance=(1e-10, 1e-11))


@pytest.mark.parametrize("opset", [13, 20])
def test_grid_sample_runs_at_other_sizes(opset: int) -> None:
    check(
        lambda x, g: F.grid_sample(x, g, padding_mode="reflection", align_corners=True),
        torch.randn(3, 4, 5, 6),
        torch.rand(3, 7, 8, 2) * 7 - 3.5,
        opset=opset,
        others=[(torch.randn(4, 2, 7, 3), torch.rand(4, 2, 5, 2) * 7 - 3.5)],
    )


@pytest.mark.parametrize("opset", swept(9, 13, 18, 20, 26))
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("plane", [(4, 5), (3, 1), (2, 3, 4)])
def test_affine_grid(plane: tuple[int, ...], align: bool, opset: int) -> None:
    theta = torch.randn(2, len(plane), len(plane) + 1)
    check(lambda t: F.affine_grid(t, [2, 3, *plane], align), theta, opset=opset)


@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize("align", [False, True])
def test_affine_grid_for_a_dynamic_batch(align: bool, opset: int) -> None:
    check(
        lambda x: F.affine_grid(x[:, 0, :2, :3], x.shape, align),
        torch.randn(5, 4, 6, 7),
        opset=opset,
        others=[(torch.randn(2, 8, 6, 7),)],  # torch fixes the sizes of the image itself
    )
