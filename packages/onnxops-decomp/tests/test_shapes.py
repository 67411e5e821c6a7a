"""Views that keep every element equal eager PyTorch."""

import onnx_ir as ir
import pytest
import torch
from decomp_harness import check, lower

from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.errors import LoweringError, UnsupportedOpsetError

X = torch.randn(2, 3, 4, 5)
LARGER = [(torch.randn(4, 6, 2, 7),)]


@pytest.mark.parametrize("opset", [7, 9, 13, 18, 23, 26, 28])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.reshape(6, 20),
        lambda x: x.reshape(x.shape[0], -1),
        lambda x: x.view(2, 3, 20),
        lambda x: x.permute(0, -1, 1, 2),
        lambda x: x.transpose(-1, 1),
        lambda x: x.mT,
        lambda x: x.flatten(1, -2),
        lambda x: x.unflatten(-1, (5, -1)),
        lambda x: x.unsqueeze(-1).squeeze(-1),
        lambda x: x[:1].squeeze(0),
        lambda x: x.movedim((0, 1), (-1, 0)),
    ],
)
def test_view_at_every_opset(function, opset: int) -> None:
    check(function, X, opset=opset)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.reshape(x.shape[0] * x.shape[1], -1),
        lambda x: x.reshape(x.shape[0], x.shape[1], 1, x.shape[2] * x.shape[3]),
        lambda x: x.view(x.shape[1], x.shape[0], -1),
        lambda x: x.flatten(),
        lambda x: x.flatten(0, 1),
        lambda x: x.flatten(1, 2),
        lambda x: x.unsqueeze(1).expand(-1, 3, -1, -1, -1),
        lambda x: x[:, :1].expand(-1, x.shape[2], -1, -1),
        lambda x: x.transpose(1, 2).contiguous().view(x.shape[0], x.shape[2], -1),
        lambda x: x[:, 0].unflatten(0, (-1, 2)),
        lambda x: x.ravel().reshape_as(x).movedim(0, 2),
        lambda x: torch.broadcast_to(x[..., :1], x.shape),
    ],
)
def test_view_runs_at_other_sizes(function) -> None:
    check(function, X, others=LARGER)


def test_consecutive_views_cost_one_node() -> None:
    lowered = check(lambda x: x.reshape(6, 20).reshape(3, 40).view(-1, 8), X)
    assert lowered.op_types() == ["Reshape"]


def test_reshape_of_dynamic_sizes_needs_no_shape_arithmetic() -> None:
    lowered = check(lambda x: x.reshape(x.shape[0], x.shape[1], -1), X, others=LARGER)
    assert lowered.op_types() == ["Reshape"]


def test_expand_to_the_own_size_costs_nothing() -> None:
    lowered = check(lambda x: torch.relu(x.expand(x.shape[0], -1, -1, -1).contiguous().detach()), X, others=LARGER)
    assert lowered.op_types() == ["Relu"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.reshape(0, 2),
        lambda x: x.reshape(2, 0, 7),
        lambda x: x.reshape(-1, 3),
        lambda x: x.flatten(),
        lambda x: x.unsqueeze(0),
        lambda x: x.transpose(0, 1),
        lambda x: x.expand(2, 0, 3),
    ],
)
def test_view_of_an_empty_tensor(function) -> None:
    check(function, torch.zeros(0, 3), opset=18)


@pytest.mark.parametrize("opset", [7, 9, 13, 14, 20, 26])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.reshape(x.shape[1], x.shape[0], x.shape[2]),
        lambda x: x.reshape(x.shape[2], x.shape[0], 1, x.shape[1]),
        lambda x: x.reshape(x.shape[1] * x.shape[2], x.shape[0]),
        lambda x: x.flatten(1),
        lambda x: x.flatten(0, 1),
        lambda x: x.transpose(0, 2).reshape(x.shape),
        lambda x: torch.roll(x, (1, -2), (0, 2)).reshape_as(x.permute(2, 0, 1)),
        lambda x: x.unsqueeze(1).expand(-1, 3, -1, -1),
    ],
)
def test_a_size_that_is_zero_at_run_time_is_no_copy(function, opset: int) -> None:
    empty = [(torch.ones(sizes),) for sizes in ((0, 6, 7), (6, 0, 7), (6, 7, 0), (0, 0, 5))]
    check(function, torch.randn(2, 3, 4), others=[(torch.randn(3, 5, 2),), *empty], opset=opset)


def test_a_size_below_opset_14_needs_a_rank_to_be_zero() -> None:
    op = OpBuilder(13)
    data, shape = op.input("data", ir.DataType.FLOAT, [ir.SymbolicDim("n")]), op.input("shape", ir.DataType.INT64, None)
    with pytest.raises(UnsupportedOpsetError, match="14"):
        op.Reshape(data, shape, allowzero=1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.reshape(1, 1),
        lambda x: x.flatten(),
        lambda x: x.squeeze(),
        lambda x: x.squeeze(0),
        lambda x: x.squeeze(-1),
        lambda x: x.unsqueeze(-1),
        lambda x: x.transpose(0, -1),
        lambda x: x.permute(()),
        lambda x: x.t(),
        lambda x: x.expand(2, 3),
        lambda x: torch.atleast_3d(x),
    ],
)
def test_view_of_a_zero_dim_tensor(function) -> None:
    check(function, torch.tensor(2.5))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float16, torch.int8, torch.float64])
def test_views_keep_the_dtype(dtype: torch.dtype) -> None:
    check(lambda x: x.permute(1, 0).unsqueeze(0).expand(2, -1, -1).reshape(-1), torch.ones(2, 3).to(dtype))


def test_squeeze_removes_only_sizes_of_one() -> None:
    check(lambda x: (x.squeeze(0), x.squeeze(1), x.squeeze((0, 1, -1)), x.squeeze()), torch.randn(1, 3, 1, 2))


def test_atleast_of_several_tensors() -> None:
    tensors = (torch.tensor(1.0), torch.randn(2), torch.randn(2, 3), torch.randn(1, 2, 3))
    check(lambda *t: (*torch.atleast_1d(*t), *torch.atleast_2d(*t), *torch.atleast_3d(*t)), *tensors)


def test_view_of_views_reads_the_first_tensor() -> None:
    lowered = check(
        lambda x: x.reshape(x.shape[0], 12, -1).unsqueeze(1).view(x.shape[0], 3, 4, -1),
        torch.randn(2, 3, 4, 5),
        others=[(torch.randn(6, 2, 6, 7),)],
    )
    assert lowered.op_types() == ["Reshape"]


def test_unsqueezes_join() -> None:
    lowered = check(
        lambda x: x[:, None, :, None][None, ..., 0:1].unsqueeze(2), torch.randn(2, 3), others=[(torch.randn(5, 4),)]
    )
    assert lowered.op_types() == ["Unsqueeze"]


def test_memory_read_as_another_dtype_of_the_same_size() -> None:
    check(lambda x: (x.view(torch.uint8), x.to(torch.int16).view(torch.uint16)), torch.tensor([-1, 5]).to(torch.int8))


PATTERNS = {
    torch.float16: (torch.int16, [0x0000, 0x0001, 0x03FF, 0x0400, 0x3C00, 0x3C01, 0x7BFF, 0x7C00, 0x7E00]),
    torch.bfloat16: (torch.int16, [0x0000, 0x0001, 0x007F, 0x0080, 0x3F80, 0x3F81, 0x7F7F, 0x7F80, 0x7FC0]),
    torch.float32: (torch.int32, [0, 1, 2**23 - 1, 2**23, 0x3F800000, 0x3F800001, 0x7F7FFFFF, 0x7F800000, 0x7FC00000]),
    torch.float64: (
        torch.int64,
        [0, 1, 2**52 - 1, 2**52, 1023 << 52, (1023 << 52) + 1, (2047 << 52) - 1, 2047 << 52, 4095 << 51],
    ),
}


@pytest.mark.parametrize("opset", [13, 25])
@pytest.mark.parametrize("dtype", PATTERNS)
def test_memory_of_floats_read_as_integers_and_back(dtype: torch.dtype, opset: int) -> None:
    whole, patterns = PATTERNS[dtype]
    lowest = torch.iinfo(whole).min
    # The last pattern is the NaN of torch, which has no sign.
    bits = torch.tensor([*patterns, *(pattern + lowest for pattern in patterns[:-1])], dtype=whole)
    lowered = check(lambda x: (x.view(dtype).view(whole), x.view(dtype)), bits, opset=opset)
    assert "BitCast" not in lowered.op_types()


def test_memory_of_floats_is_read_at_once_where_onnx_can() -> None:
    lowered = lower(lambda x: x.view(torch.int32), (torch.tensor([1.0, -0.0]),), opset=26)
    assert lowered.op_types() == ["BitCast"]


def test_memory_read_as_a_dtype_of_another_size_is_refused() -> None:
    with pytest.raises(LoweringError, match="same size"):
        lower(lambda x: x.view(torch.int8), (torch.zeros(2, 3),))


def test_resize_keeps_the_first_elements() -> None:
    check(lambda x: (x.clone().resize_(2, 3), x.clone().resize_as_(x[0]), x.clone().resize_(6, 2, 10)), X)
