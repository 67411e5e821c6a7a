"""Interpolation equals eager PyTorch."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from decomp_harness import check
from opset_sweep import swept

from onnxops_decomp import LoweringError

OPSETS = swept(7, 9, 10, 11, 13, 15, 17, 18, 20, 21, 23, 24, 25, 26)
NEAREST = ["nearest", "nearest-exact"]


def _image(*sizes: int) -> torch.Tensor:
    return torch.randn(2, 3, *sizes)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("mode", NEAREST)
@pytest.mark.parametrize("sizes", [(7,), (5, 7), (4, 5, 6)])
def test_nearest_neighbours(sizes: tuple[int, ...], mode: str, opset: int) -> None:
    check(lambda x: F.interpolate(x, scale_factor=2, mode=mode), _image(*sizes), opset=opset)
    check(lambda x: F.interpolate(x, size=[3, 9, 4][: len(sizes)], mode=mode), _image(*sizes), opset=opset)


@pytest.mark.parametrize("mode", NEAREST)
@pytest.mark.parametrize(("size", "count"), [(14, 2), (14, 4), (20, 12), (4, 41), (6, 37), (1, 3), (3, 49)])
def test_nearest_neighbours_where_rounding_decides(size: int, count: int, mode: str) -> None:
    check(lambda x: F.interpolate(x, size=count, mode=mode), torch.arange(float(size)).reshape(1, 1, -1))


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize(("mode", "sizes"), [("linear", (7,)), ("bilinear", (5, 7)), ("trilinear", (4, 5, 6))])
def test_linear_interpolation(mode: str, sizes: tuple[int, ...], align: bool, opset: int) -> None:
    x = _image(*sizes)
    check(lambda x: F.interpolate(x, size=[3, 9, 1][: len(sizes)], mode=mode, align_corners=align), x, opset=opset)
    check(lambda x: F.interpolate(x, scale_factor=1.7, mode=mode, align_corners=align), x, opset=opset)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("how", [{"size": (3, 10)}, {"scale_factor": 2.0}])
def test_channels_that_come_last_before_and_after(how: dict[str, Any], mode: str) -> None:
    check(lambda x: F.interpolate(x.permute(0, 3, 1, 2), mode=mode, **how).permute(0, 2, 3, 1), torch.randn(2, 5, 7, 3))


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("align", [False, True])
def test_cubic_interpolation(align: bool, opset: int) -> None:
    x = _image(5, 7)
    check(lambda x: F.interpolate(x, size=(3, 10), mode="bicubic", align_corners=align), x, opset=opset)
    check(lambda x: F.interpolate(x, scale_factor=(2.5, 0.6), mode="bicubic", align_corners=align), x, opset=opset)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiasing(mode: str, align: bool, opset: int) -> None:
    check(
        lambda x: F.interpolate(x, size=(3, 10), mode=mode, align_corners=align, antialias=True),
        _image(11, 7),
        opset=opset,
    )


def test_a_scale_whose_size_single_precision_rounds_differently() -> None:
    check(lambda x: F.interpolate(x, scale_factor=0.9, mode="bilinear"), _image(20, 10))


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("scale", [2, 0.5, 1.3])
def test_a_scale_of_dynamic_sizes(mode: str, scale: float, opset: int) -> None:
    check(
        lambda x: F.interpolate(x, scale_factor=scale, mode=mode), _image(6, 8), opset=opset, others=[(_image(9, 11),)]
    )


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "nearest"},
        {"mode": "bilinear"},
        {"mode": "bicubic"},
        {"mode": "bilinear", "align_corners": True},
        {"mode": "bilinear", "antialias": True},
    ],
)
def test_the_size_of_another_dynamic_tensor(options: dict[str, Any], opset: int) -> None:
    check(
        lambda x, y: F.interpolate(x, size=y.shape[2:], **options),
        _image(6, 8),
        _image(9, 7),
        opset=opset,
        others=[(_image(5, 5), _image(3, 12))],
    )


@pytest.mark.parametrize("scale", [2, 4])
def test_upsampling_by_an_integer_is_one_node(scale: int) -> None:
    for mode in ("nearest", "bilinear"):
        lowered = check(
            lambda x: F.interpolate(x, scale_factor=scale, mode=mode), _image(6, 8), others=[(_image(9, 11),)]
        )
        assert lowered.op_types() == ["Resize"]


OPTIONS = [
    {"mode": "nearest"},
    {"mode": "nearest-exact"},
    {"mode": "bilinear"},
    {"mode": "bilinear", "align_corners": True},
    {"mode": "bicubic"},
    {"mode": "bicubic", "align_corners": True},
    {"mode": "bilinear", "antialias": True},
    {"mode": "bilinear", "antialias": True, "align_corners": True},
    {"mode": "bicubic", "antialias": True},
    {"mode": "bicubic", "antialias": True, "align_corners": True},
]


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("options", [options for options in OPTIONS if "antialias" not in options])
def test_half_precision(options: dict[str, Any], opset: int) -> None:
    x = _image(11, 7).half()
    check(lambda x: F.interpolate(x, size=(5, 10), **options), x, opset=opset)
    check(lambda x: F.interpolate(x, scale_factor=1.7, **options), x, opset=opset)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("shape", [(7,), (4, 5, 6)])
def test_half_precision_of_other_ranks(shape: tuple[int, ...], opset: int) -> None:
    mode = "linear" if len(shape) == 1 else "trilinear"
    for options in ({"mode": mode}, {"mode": mode, "align_corners": True}, {"mode": "nearest"}, {"mode": "area"}):
        check(partial(F.interpolate, scale_factor=1.5, **options), _image(*shape).half(), opset=opset)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("scale", [1.7, 0.6, 2])
@pytest.mark.parametrize("options", OPTIONS)
def test_doubles_keep_their_digits(options: dict[str, Any], scale: float, opset: int) -> None:
    x = _image(11, 7).double()
    check(lambda x: F.interpolate(x, scale_factor=scale, **options), x, opset=opset, tolerance=(1e-12, 1e-12))
    check(lambda x: F.interpolate(x, size=(3, 10), **options), x, opset=opset, tolerance=(1e-12, 1e-12))


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("mode", NEAREST)
@pytest.mark.parametrize("scale", [1.7, 0.6, 2.3, 1 / 3])
def test_nearest_neighbours_by_a_scale_at_every_opset(mode: str, scale: float, opset: int) -> None:
    check(lambda x: F.interpolate(x, scale_factor=scale, mode=mode), _image(7, 12), opset=opset)


@pytest.mark.parametrize("opset", OPSETS)
def test_area_interpolation(opset: int) -> None:
    check(lambda x: F.interpolate(x, size=(3, 5), mode="area"), _image(7, 9), opset=opset)


@pytest.mark.parametrize("opset", swept(7, 11, 13, 28))
@pytest.mark.parametrize("shape", [(8, 3, 5), (2, 8, 3, 5), (2, 3, 4, 3, 5), (1, 8, 0, 3)])
def test_pixel_shuffle(shape: tuple[int, ...], opset: int) -> None:
    check(lambda x: F.pixel_shuffle(x, 2), torch.randn(shape), opset=opset)


@pytest.mark.parametrize("opset", swept(7, 13, 28))
@pytest.mark.parametrize("shape", [(2, 4, 6), (2, 3, 4, 6), (2, 3, 4, 4, 6)])
def test_pixel_unshuffle(shape: tuple[int, ...], opset: int) -> None:
    check(lambda x: F.pixel_unshuffle(x, 2), torch.randn(shape), opset=opset)


def test_pixel_shuffle_runs_at_other_sizes() -> None:
    check(lambda x: F.pixel_shuffle(x, 2), torch.randn(2, 8, 3, 5), others=[(torch.randn(3, 4, 7, 2),)])


def test_channel_shuffle() -> None:
    check(lambda x: F.channel_shuffle(x, 3), torch.randn(2, 6, 4, 5))


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_images_of_bytes_are_rounded(mode: str) -> None:
    # Multiples of 16 at twice the size: no result lies between two integers, where fixed and floating point differ.
    x = torch.randint(0, 16, (1, 3, 5, 6)).mul(16).to(torch.uint8)
    check(lambda x: F.interpolate(x, scale_factor=2, mode=mode), x)


def test_fixed_point_filters_are_refused() -> None:
    with pytest.raises(LoweringError, match="convert the input to float"):
        check(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), torch.zeros(1, 3, 5, 6, dtype=torch.uint8))


@pytest.mark.parametrize("opset", [7, 11, 18, 26])
@pytest.mark.parametrize("size", [(4, 3), (4, 4), (3, 6)])
def test_area_of_doubles(size: tuple[int, int], opset: int) -> None:
    first, second = (torch.randn(n, 3, 8, 6).double() for n in (5, 2))
    check(
        lambda x: F.interpolate(x[:, :, :8, :6], size, mode="area"),
        first,
        opset=opset,
        others=[(second,)],
        tolerance=(1e-12, 1e-13),
    )
