"""Convolutions equal eager PyTorch."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from decomp_harness import check
from opset_sweep import swept

OPSETS = swept(7, 11, 18, 22, 26)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_conv_with_stride_padding_dilation_and_groups(spatial: int, opset: int) -> None:
    convolve = [F.conv1d, F.conv2d, F.conv3d][spatial - 1]
    check(
        lambda x, w, b: convolve(x, w, b, stride=2, padding=1, dilation=2, groups=2),
        torch.randn(2, 4, *[7, 8, 6][:spatial]),
        torch.randn(6, 2, *[3, 2, 2][:spatial]),
        torch.randn(6),
        opset=opset,
    )


def test_conv_is_one_node_and_runs_at_other_sizes() -> None:
    lowered = check(
        lambda x, w: F.conv2d(x, w, padding=1),
        torch.randn(2, 3, 5, 6),
        torch.randn(4, 3, 3, 3),
        others=[(torch.randn(1, 3, 9, 4), torch.randn(4, 3, 3, 3))],
    )
    assert lowered.op_types() == ["Conv"]


def test_conv_without_a_batch() -> None:
    check(F.conv2d, torch.randn(3, 5, 6), torch.randn(4, 3, 2, 2), torch.randn(4))


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_conv_with_named_padding(padding: str) -> None:
    check(
        lambda x, w: F.conv2d(x, w, padding=padding, dilation=(1, 3)),
        torch.randn(2, 3, 7, 12),
        torch.randn(4, 3, 3, 4),
    )


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize("spatial", [1, 2])
def test_conv_of_integers_is_exact(spatial: int, opset: int) -> None:
    convolve = [F.conv1d, F.conv2d][spatial - 1]
    x = torch.randint(2**40, 2**41, (2, 4, *[7, 6][:spatial]))
    check(
        lambda x, w, b: convolve(x, w, b, stride=2, padding=1, groups=2),
        x,
        torch.randint(-5, 5, (6, 2, *[3, 2][:spatial])),
        torch.randint(-5, 5, (6,)),
        opset=opset,
    )


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_conv_transpose(spatial: int, opset: int) -> None:
    convolve = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d][spatial - 1]
    check(
        lambda x, w, b: convolve(x, w, b, stride=3, padding=1, output_padding=2, groups=2, dilation=2),
        torch.randn(2, 4, *[5, 4, 3][:spatial]),
        torch.randn(4, 3, *[3, 2, 2][:spatial]),
        torch.randn(6),
        opset=opset,
    )


@pytest.mark.parametrize("spatial", [1, 2])
def test_conv_transpose_of_integers_is_exact(spatial: int) -> None:
    convolve = [F.conv_transpose1d, F.conv_transpose2d][spatial - 1]
    check(
        lambda x, w, b: convolve(x, w, b, stride=3, padding=1, output_padding=2, groups=2, dilation=2),
        torch.randint(2**40, 2**41, (2, 4, *[5, 4][:spatial])),
        torch.randint(-5, 5, (4, 3, *[3, 2][:spatial])),
        torch.randint(-5, 5, (6,)),
    )


def test_conv_transpose_without_a_batch_runs_at_other_sizes() -> None:
    check(
        F.conv_transpose2d,
        torch.randn(3, 5, 6),
        torch.randn(3, 4, 2, 2),
        others=[(torch.randn(3, 8, 4), torch.randn(3, 4, 2, 2))],
    )


@pytest.mark.parametrize("transposed", [False, True])
def test_convolution_in_its_general_form(transposed: bool) -> None:
    function: Any = torch.ops.aten.convolution.default
    weight = torch.randn(3, 4, 2, 2) if transposed else torch.randn(4, 3, 2, 2)
    check(
        lambda x, w: function(x, w, None, [2, 2], [1, 1], [1, 1], transposed, [0, 0], 1),
        torch.randn(2, 3, 6, 6),
        weight,
    )


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_conv_module_with_another_padding_mode(mode: str) -> None:
    module = torch.nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode)
    check(
        lambda x, w, b: module._conv_forward(x, w, b),
        torch.randn(1, 2, 5, 5),
        module.weight.detach(),
        module.bias.detach(),
    )


@pytest.mark.parametrize("opset", [9, 18, 26])
def test_groups_of_a_dynamic_number(opset: int) -> None:
    """As filters that are the same for all channels have them."""

    def smoothed(x: torch.Tensor) -> torch.Tensor:
        kernel = torch.arange(-1.0, 2.0).repeat(x.shape[1], 1, 1)
        return F.conv1d(x, kernel, padding=1, groups=x.shape[1])

    check(smoothed, torch.randn(2, 4, 9), opset=opset, others=[(torch.randn(3, 7, 5),), (torch.randn(1, 5, 6),)])
