"""Normalization layers equal eager PyTorch."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from decomp_harness import check
from opset_sweep import swept

from onnxops_decomp.runtimes.onnxruntime.kernel_gaps import is_older

OPSETS = swept(7, 9, 13, 17, 18, 21, 23, 26)


@pytest.mark.parametrize("opset", OPSETS)
def test_layer_norm(opset: int) -> None:
    x, w, b = torch.randn(2, 3, 4), torch.randn(3, 4), torch.randn(3, 4)
    check(lambda x, w, b: F.layer_norm(x, (3, 4), w, b, 0.1), x, w, b, opset=opset)


def test_layer_norm_is_one_node() -> None:
    lowered = check(lambda x, w: F.layer_norm(x, (4,), w), torch.randn(2, 4), torch.randn(4))
    # Before 1.27, ONNX Runtime loses the digits of large means, which are subtracted first.
    assert lowered.op_types() == [*(["ReduceMean", "Sub"] if is_older(1, 27) else []), "LayerNormalization"]


def test_layer_norm_over_a_dynamic_dimension() -> None:
    check(lambda x: F.layer_norm(x, x.shape[-1:]), torch.randn(2, 4), others=[(torch.randn(5, 9),)])


@pytest.mark.parametrize("opset", [13, 18])
def test_layer_norm_of_half_floats(opset: int) -> None:
    check(lambda x: F.layer_norm(x, (8,)), torch.randn(3, 8).half() * 100, opset=opset)


@pytest.mark.parametrize("opset", [13, 18])
def test_native_layer_norm_returns_its_statistics(opset: int) -> None:
    check(
        lambda x, w: torch.native_layer_norm(x, (4,), w, None, 1e-5), torch.randn(2, 3, 4), torch.randn(4), opset=opset
    )


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("eps", [None, 0.1])
def test_rms_norm(opset: int, eps: float | None) -> None:
    check(lambda x, w: F.rms_norm(x, (4,), w, eps), torch.randn(2, 3, 4) * 1e-3, torch.randn(4), opset=opset)


def test_rms_norm_is_one_node_where_there_is_one() -> None:
    lowered = check(lambda x, w: F.rms_norm(x, (4,), w), torch.randn(2, 4), torch.randn(4), opset=23)
    assert lowered.op_types() == ["RMSNormalization"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_rms_norm_without_eps_uses_that_of_the_computing_dtype(dtype: torch.dtype) -> None:
    check(lambda x: F.rms_norm(x, (4,)), torch.full((2, 4), 1e-3, dtype=dtype), opset=18)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 5), (2, 3, 4, 5)])
def test_batch_norm_with_running_statistics(shape: tuple[int, ...], opset: int) -> None:
    mean, var, w, b = torch.randn(3), torch.rand(3) + 0.1, torch.randn(3), torch.randn(3)
    check(lambda *args: F.batch_norm(*args), torch.randn(shape), mean, var, w, b, opset=opset)


def test_batch_norm_runs_at_other_sizes() -> None:
    check(
        lambda x, m, v: F.batch_norm(x, m, v),
        torch.randn(2, 3, 4),
        torch.randn(3),
        torch.rand(3),
        others=[(torch.randn(5, 3, 7), torch.randn(3), torch.rand(3))],
    )


@pytest.mark.parametrize("opset", swept(9, 13, 18))
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5)])
def test_batch_norm_with_statistics_of_the_batch(shape: tuple[int, ...], opset: int) -> None:
    check(
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        torch.randn(shape),
        torch.randn(3),
        torch.randn(3),
        opset=opset,
    )


def test_functional_batch_norm_returns_the_new_running_statistics() -> None:
    function = torch.ops.aten._native_batch_norm_legit_functional.default
    check(
        lambda x, w, b, m, v: function(x, w, b, m, v, True, 0.3, 1e-5),
        torch.randn(4, 3, 5),
        torch.randn(3),
        torch.randn(3),
        torch.randn(3),
        torch.rand(3),
        others=[(torch.randn(2, 3, 9), torch.randn(3), torch.randn(3), torch.randn(3), torch.rand(3))],
    )


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (2, 6, 4, 3)])
def test_group_norm(shape: tuple[int, ...], opset: int) -> None:
    check(lambda x, w, b: F.group_norm(x, 3, w, b), torch.randn(shape), torch.randn(6), torch.randn(6), opset=opset)


@pytest.mark.parametrize("opset", swept(13, 18, 21))
def test_group_norm_runs_at_other_sizes(opset: int) -> None:
    check(lambda x: F.group_norm(x, 2), torch.randn(2, 4, 5), opset=opset, others=[(torch.randn(3, 4, 8),)])


def test_native_group_norm_returns_its_statistics() -> None:
    check(lambda x, w: torch.native_group_norm(x, w, None, 2, 6, 20, 3, 1e-5), torch.randn(2, 6, 4, 5), torch.randn(6))


@pytest.mark.parametrize("opset", OPSETS)
def test_instance_norm(opset: int) -> None:
    check(
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        torch.randn(2, 3, 4, 5),
        torch.randn(3),
        torch.randn(3),
        opset=opset,
    )


def test_instance_norm_with_running_statistics() -> None:
    check(
        lambda x, m, v: F.instance_norm(x, m, v, use_input_stats=False),
        torch.randn(2, 3, 4),
        torch.randn(3),
        torch.rand(3),
    )


@pytest.mark.parametrize("opset", [9, 18])
def test_local_response_norm(opset: int) -> None:
    check(lambda x: F.local_response_norm(x, 3), torch.rand(2, 5, 4, 4), opset=opset)


def test_weight_norm() -> None:
    check(lambda v, g: torch._weight_norm(v, g, 0), torch.randn(3, 4), torch.randn(3, 1))


def test_normalize() -> None:
    check(lambda x: F.normalize(x, dim=-1), torch.randn(3, 4), others=[(torch.randn(2, 7),)])


@pytest.mark.parametrize("opset", [7, 18, 21, 26])
def test_group_norm_of_doubles(opset: int) -> None:
    check(lambda x: F.group_norm(x, 2), torch.randn(2, 4, 5).double(), opset=opset, tolerance=(1e-10, 1e-10))


@pytest.mark.parametrize("opset", [7, 18, 21, 26])
@pytest.mark.parametrize("shape", [(0, 4), (0, 4, 5), (0, 4, 3, 2)])
def test_group_norm_of_nothing(shape: tuple[int, ...], opset: int) -> None:
    check(lambda x, w: F.group_norm(x, 2, w), torch.randn(shape), torch.randn(4), opset=opset)
    check(lambda x: torch.native_group_norm(x, None, None, 0, 4, math.prod(shape[2:]), 2, 1e-5), torch.randn(shape))


@pytest.mark.parametrize("opset", [13, 20, 23])
@pytest.mark.parametrize("shape", [(4, 5), (5, 4)])
def test_statistics_of_groups_that_may_be_empty(shape: tuple[int, int], opset: int) -> None:
    def function(x: torch.Tensor) -> Any:
        grid = torch.arange(20.0).reshape(shape)
        tensor = grid[..., None] * x if shape[1] == 4 else x[:, None, None] * grid
        return torch.native_group_norm(
            tensor, torch.arange(4.0), torch.ones(4), tensor.shape[0], 4, tensor.shape[2], 2, 1e-5
        )

    # From torch 2.15 on, groups without pixels are refused.
    least = 1 if shape[1] == 4 and torch.__version__ >= "2.15" else 0
    check(function, torch.randn(3), opset=opset, others=[(torch.randn(n),) for n in (least, 6)])


@pytest.mark.parametrize("opset", [7, 13, 20])
def test_group_norm_of_a_batch_that_may_be_empty(opset: int) -> None:
    others = [(torch.randn(n),) for n in (0, 5)]

    def function(x: torch.Tensor) -> torch.Tensor:
        return F.group_norm(x[:, None, None] * torch.arange(20.0).reshape(4, 5), 2)

    check(function, torch.randn(3), opset=opset, others=others)


def test_batch_norm_of_an_empty_vector() -> None:
    nothing = torch.zeros(0)
    check(lambda x: F.batch_norm(x, None, None, training=True), nothing)


@pytest.mark.parametrize("opset", [13, 17, 20, 26])
def test_instance_norm_of_half_floats_whose_statistics_nothing_reads(opset: int) -> None:
    check(lambda x: F.instance_norm(x), torch.randn(2, 3, 5, 4).half(), opset=opset)
