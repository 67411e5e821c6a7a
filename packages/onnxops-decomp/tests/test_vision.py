"""torchvision's operators equal torchvision, or their definitions where it is not installed."""

from typing import Any

import pytest
import torch
import torchvision_operators
from decomp_harness import check, run
from opset_sweep import swept

from onnxops_core import native

torchvision_operators.define()
vision: Any = torch.ops.torchvision
INF, LEAST = float("inf"), torch.finfo(torch.float32).min


def _regions(count: int) -> torch.Tensor:
    corner, size = torch.rand(count, 2) * 6 - 1, torch.rand(count, 2) * 6
    return torch.cat([torch.randint(0, 2, (count, 1)).float(), corner, corner + size], 1)


def _boxes(count: int) -> torch.Tensor:
    corner = torch.rand(count, 2) * 4
    return torch.cat([corner, corner + torch.rand(count, 2) * 4 + 1], 1)


@pytest.mark.parametrize("opset", swept(10, 11, 18, 26))
def test_nms_keeps_the_best_boxes_in_order(opset: int) -> None:
    check(lambda b, s: vision.nms(b, s, 0.3), _boxes(20), torch.rand(20), opset=opset)


def test_nms_runs_at_other_sizes() -> None:
    check(
        lambda b, s: vision.nms(b, s, 0.3),
        _boxes(20),
        torch.rand(20),
        others=[(_boxes(7), torch.rand(7)), (_boxes(50), torch.rand(50))],
    )


@pytest.mark.parametrize("opset", [*swept(16, 18, 21), 22, *swept(24, 26)])
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("ratio", [-1, 2])
def test_roi_align(ratio: int, aligned: bool, opset: int) -> None:
    check(
        lambda x, r: vision.roi_align(x, r, 0.7, 3, 4, ratio, aligned),
        torch.randn(2, 3, 7, 8),
        _regions(5),
        opset=opset,
    )


@pytest.mark.parametrize("opset", [10, 13])
def test_roi_align_at_pixel_corners_in_older_opsets(opset: int) -> None:
    check(lambda x, r: vision.roi_align(x, r, 0.7, 3, 4, 2, False), torch.randn(2, 3, 7, 8), _regions(5), opset=opset)


@pytest.mark.parametrize("opset", [18, 22])
def test_roi_align_runs_at_other_sizes(opset: int) -> None:
    check(
        lambda x, r: vision.roi_align(x, r, 0.7, 3, 4, 2, True),
        torch.randn(3, 4, 7, 8),
        _regions(6),
        opset=opset,
        others=[(torch.randn(2, 2, 9, 6), _regions(3))],
    )


@pytest.mark.parametrize("ratio", [-1, 2])
def test_position_sensitive_roi_align(ratio: int) -> None:
    check(lambda x, r: vision.ps_roi_align(x, r, 0.7, 2, 2, ratio)[0], torch.randn(2, 8, 7, 8), _regions(5), opset=18)


@pytest.mark.parametrize("opset", [18, 22])
@pytest.mark.parametrize("aligned", [False, True])
def test_regions_outside_the_image_and_of_no_size(aligned: bool, opset: int) -> None:
    regions = torch.tensor(
        [[0, -9.0, -3, 2, 4], [1, 5, 6, 30, 40], [0, 3, 3, 3, 3], [1, 5, 5, 4, 2], [0, 20, 20, 30, 30]]
    )
    x = torch.randn(2, 3, 7, 8)
    sized = regions[[0, 1, 4]]
    for ratio in (-1, 2):
        check(
            lambda x, r: vision.roi_align(x, r, 0.7, 3, 4, ratio, aligned),
            x,
            sized if aligned else regions,
            opset=opset,
        )
    check(lambda x, r: vision.roi_pool(x, r, 0.7, 2, 3)[0], x, sized, opset=opset)


@pytest.mark.parametrize("opset", swept(9, 18, 21, 22, 26))
def test_roi_pool(opset: int) -> None:
    check(lambda x, r: vision.roi_pool(x, r, 0.7, 2, 3)[0], torch.randn(2, 3, 7, 8), _regions(5), opset=opset)


@pytest.mark.parametrize("opset", [18, 22, 23])
@pytest.mark.parametrize("sizes", [(3, 4, 5, 6), (3, 4, 5, 0), (3, 4, 0, 6), (3, 0, 5, 6)])
@pytest.mark.parametrize("count", [0, 2])
def test_roi_pool_of_nothing(sizes: tuple[int, ...], count: int, opset: int) -> None:
    check(
        lambda x, r: vision.roi_pool(x, r, 0.7, 2, 3)[0],
        torch.randn(2, 3, 7, 8),
        _regions(4),  # five would be taken for the size of a region
        opset=opset,
        others=[(torch.randn(sizes), _regions(count))],
    )


@pytest.mark.parametrize("opset", [18, 22])
def test_roi_pool_of_infinities(opset: int) -> None:
    x, regions = torch.randn(2, 3, 7, 8), _regions(5)
    x[0, 0, :5], x[0, 1, :, :4], x[1, 2], x[1, 0, 2:4, 3] = -INF, -INF, INF, -INF
    lowered = check(lambda x, r: vision.roi_pool(x, r, 0.7, 2, 3)[0], torch.randn(2, 3, 7, 8), regions, opset=opset)
    result = run(lowered.proto, [x, regions])[0]
    # What is less than all numbers is never taken; what begins the comparison is left.
    expected = vision.roi_pool(x.nan_to_num(neginf=LEAST, posinf=INF), regions, 0.7, 2, 3)[0]
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("opset", [18, 21, 22, 26])
@pytest.mark.parametrize("ratio", [0, 2])
def test_the_maximum_of_aligned_regions(ratio: int, opset: int) -> None:
    arguments = {"mode": "max", "output_height": 3, "output_width": 2, "sampling_ratio": ratio, "spatial_scale": 0.7}
    x, regions = torch.randn(2, 3, 7, 8), _regions(5)
    check(lambda x, r, b: native.roi_align(x, r, b, **arguments), x, regions[:, 1:], regions[:, 0].long(), opset=opset)


@pytest.mark.parametrize("opset", swept(11, 13, 18, 19, 22))
@pytest.mark.parametrize(
    ("groups", "offset_groups", "masked"), [(1, 1, False), (2, 1, True), (1, 2, True), (2, 4, True)]
)
def test_deformable_convolution(groups: int, offset_groups: int, masked: bool, opset: int) -> None:
    x, weight, bias = torch.randn(2, 4, 7, 8), torch.randn(6, 4 // groups, 3, 2), torch.randn(6)
    offset = torch.randn(2, offset_groups * 12, 4, 4)
    mask = torch.rand(2, offset_groups * 6, 4, 4) if masked else torch.zeros(2, 1)
    check(
        lambda x, w, o, m, b: vision.deform_conv2d(x, w, o, m, b, 2, 2, 1, 1, 1, 2, groups, offset_groups, masked),
        x,
        weight,
        offset,
        mask,
        bias,
        opset=opset,
    )
