"""Pooling equals eager PyTorch."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from decomp_harness import check
from opset_sweep import swept

OPSETS = swept(7, 10, 13, 18, 22, 26)
MAX = [F.max_pool1d, F.max_pool2d, F.max_pool3d]
AVG = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d]
ADAPTIVE_AVG = [F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d]
ADAPTIVE_MAX = [F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d]


def _input(spatial: int) -> torch.Tensor:
    return torch.randn(2, 3, *[7, 8, 6][:spatial])


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_max_pool(spatial: int, opset: int) -> None:
    check(lambda x: MAX[spatial - 1](x, 3, 2, 1), _input(spatial), opset=opset)


@pytest.mark.parametrize("opset", [10, 18])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation"), [(2, 3, 1, 1), (3, 2, 1, 2), (2, 4, 0, 1)])
def test_max_pool_in_ceil_mode(
    kernel: int, stride: int, padding: int, dilation: int, dtype: torch.dtype, opset: int
) -> None:
    x = (torch.randn(2, 3, 8, 9) * 100).to(dtype)
    check(lambda x: F.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode=True), x, opset=opset)


@pytest.mark.parametrize("opset", [10, 18])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_max_pool_returns_indices_inside_a_channel(spatial: int, dtype: torch.dtype, opset: int) -> None:
    x = torch.randperm(_input(spatial).numel()).reshape(_input(spatial).shape).to(dtype)
    check(lambda x: MAX[spatial - 1](x, 3, 2, 1, return_indices=True), x, opset=opset)


def test_max_pool_without_a_batch_runs_at_other_sizes() -> None:
    check(
        lambda x: F.max_pool2d(x, (3, 2), ceil_mode=True, return_indices=True),
        torch.randn(3, 8, 9),
        others=[(torch.randn(5, 7, 11),)],
    )


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.float64])
def test_max_pool_keeps_the_dtype(dtype: torch.dtype) -> None:
    check(lambda x: F.max_pool2d(x, 2), torch.randint(0, 100, (1, 2, 4, 4)).to(dtype))


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_avg_pool(spatial: int, opset: int) -> None:
    check(lambda x: AVG[spatial - 1](x, 3, 2, 1), _input(spatial), opset=opset)


@pytest.mark.parametrize("opset", [10, 18])
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("divisor", [None, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_avg_pool_counts_padding_as_asked(dtype: torch.dtype, divisor: int | None, include: bool, opset: int) -> None:
    x = (torch.randn(2, 3, 8, 9) * 100).to(dtype)
    check(lambda x: F.avg_pool2d(x, 3, 2, 1, True, include, divisor), x, opset=opset)


def test_avg_pool_runs_at_other_sizes() -> None:
    check(
        lambda x: F.avg_pool2d(x, 3, 2, 1, True, False, 7),
        torch.randn(2, 3, 8, 9),
        others=[(torch.randn(1, 2, 5, 12),)],
    )


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_adaptive_avg_pool_of_uneven_windows(spatial: int, opset: int) -> None:
    check(lambda x: ADAPTIVE_AVG[spatial - 1](x, [5, 3, 4][:spatial]), _input(spatial), opset=opset)


def test_adaptive_avg_pool_to_one_or_a_divisor_is_one_node() -> None:
    assert check(lambda x: F.adaptive_avg_pool2d(x, 1), torch.randn(1, 2, 5, 7)).op_types() == ["ReduceMean"]
    assert check(lambda x: F.adaptive_avg_pool2d(x, 2), torch.randn(1, 2, 4, 6)).op_types() == ["AveragePool"]


def test_pooling_to_one_behind_a_convolution_stays_an_operator_of_its_layout() -> None:
    def pooled(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = F.conv2d(x, weight).relu()
        return F.adaptive_avg_pool2d(features, 1), F.adaptive_max_pool2d(features, 1)

    lowered = check(pooled, torch.randn(1, 2, 5, 7), torch.randn(3, 2, 3, 3))

    assert lowered.op_types() == ["Conv", "Relu", "GlobalAveragePool", "MaxPool"]


@pytest.mark.parametrize("opset", [9, 13, 18])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_pooling_to_one(spatial: int, dtype: torch.dtype, opset: int) -> None:
    x = _input(spatial).to(dtype)
    for batch in (x, x[0]):
        check(lambda x: ADAPTIVE_AVG[spatial - 1](x, 1), batch, opset=opset)
        lowered = check(lambda x: ADAPTIVE_MAX[spatial - 1](x, 1), batch, opset=opset)
        assert "MaxPool" not in lowered.op_types()
        check(lambda x: ADAPTIVE_MAX[spatial - 1](x, 1, return_indices=True), batch, opset=opset)


def test_adaptive_avg_pool_keeps_infinity_in_its_window() -> None:
    x = torch.randn(1, 1, 7)
    x[0, 0, 0] = torch.inf
    check(lambda x: F.adaptive_avg_pool1d(x, 3), x)


@pytest.mark.parametrize("size", [(3, 5), (1, 2), (None, 4)])
def test_adaptive_avg_pool_runs_at_other_sizes(size: Any) -> None:
    check(lambda x: F.adaptive_avg_pool2d(x, size), torch.randn(2, 3, 8, 9), others=[(torch.randn(4, 2, 5, 13),)])


@pytest.mark.parametrize("opset", [9, 18])
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_adaptive_max_pool_with_indices(spatial: int, opset: int) -> None:
    check(
        lambda x: ADAPTIVE_MAX[spatial - 1](x, [5, 3, 4][:spatial], return_indices=True), _input(spatial), opset=opset
    )


def test_adaptive_max_pool_runs_at_other_sizes() -> None:
    check(
        lambda x: F.adaptive_max_pool2d(x, (3, 2), return_indices=True),
        torch.randn(3, 8, 9),
        others=[(torch.randn(5, 7, 11),)],
    )


@pytest.mark.parametrize("opset", [11, 18])
def test_max_unpool(opset: int) -> None:
    x, indices = F.max_pool2d(torch.randn(2, 3, 6, 8), 2, return_indices=True)
    check(lambda x, i: F.max_unpool2d(x, i, 2), x, indices, opset=opset)


@pytest.mark.parametrize("opset", [9, 18])
def test_lp_pool(opset: int) -> None:
    check(lambda x: F.lp_pool2d(x, 2.0, 3, 2), torch.randn(2, 3, 7, 8), opset=opset)


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize(
    ("shape", "counts"), [((2, 3, 9, 8), [4, 3]), ((3, 9, 8), [1, 3]), ((2, 3, 7, 9, 8), [2, 4, 3])]
)
def test_fractional_max_pool(shape: tuple[int, ...], counts: list[int], opset: int) -> None:
    spatial = len(counts)
    function: Any = [torch.ops.aten.fractional_max_pool2d, torch.ops.aten.fractional_max_pool3d][spatial - 2].default
    samples = torch.rand(shape[0] if len(shape) == spatial + 2 else 1, 3, spatial)
    check(lambda x, s: function(x, [3, 2, 2][:spatial], counts, s), torch.randn(shape), samples, opset=opset)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int8, torch.int32])
@pytest.mark.parametrize("spatial", [2, 3])
def test_zeros_around_negative_numbers_are_the_maximum(spatial: int, dtype: torch.dtype, opset: int) -> None:
    """ONNX Runtime up to 1.31 takes zeros that a Pad writes for padding of MaxPool, which never is the maximum."""
    x = (-1 - 9 * torch.rand(2, 3, *[6, 7, 5][:spatial])).to(dtype)
    check(lambda x: MAX[spatial - 1](F.pad(x, [1, 1] * spatial), 3, 2, 1), x, opset=opset)


@pytest.mark.parametrize("opset", [*OPSETS, 20])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("spatial", [2, 3])
def test_counted_padding_that_differs_from_axis_to_axis(spatial: int, ceil_mode: bool, opset: int) -> None:
    """ONNX Runtime before 1.25 takes the padding of one axis for that of another from opset 19 on."""
    first, second = ([1, 0, 1][:spatial], (7, 6, 9)), ([0, 1, 0][:spatial], (6, 9, 7))
    for padding, sizes in (first, second):
        kernel = [size + 2 for size in padding]
        x, other = torch.randn(2, 3, *sizes[:spatial]), torch.randn(1, 3, *sizes[::-1][:spatial])
        # Below opset 10, Slice has ends that are known alone.
        others = [(other,)] if opset >= 10 or not ceil_mode else []
        check(lambda x: AVG[spatial - 1](x, kernel, 2, padding, ceil_mode, True), x, others=others, opset=opset)


@pytest.mark.parametrize("opset", [11, 19, 20])
@pytest.mark.parametrize("divisor", [None, 5])
def test_zeros_in_front_of_an_average_count(divisor: int | None, opset: int) -> None:
    check(
        lambda x: F.avg_pool2d(F.pad(x, [1, 0, 0, 0]), (3, 2), 2, divisor_override=divisor),
        torch.randn(2, 3, 7, 6),
        opset=opset,
    )


@pytest.mark.parametrize("size", [2, (4, 2)])
def test_adaptive_maxima_of_equal_windows_are_one_node(size: int | tuple[int, int]) -> None:
    x = torch.randn(2, 3, 8, 6)
    lowered = check(lambda x: F.adaptive_max_pool2d(x, size), x)
    assert lowered.op_types() == ["MaxPool"]
    check(lambda x: F.adaptive_max_pool2d(x, size, return_indices=True), x)
    check(lambda x: F.adaptive_max_pool2d(x, size, return_indices=True), x[0])
