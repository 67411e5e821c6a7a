"""Slices, splits and reordered elements equal eager PyTorch."""

import pytest
import torch
from decomp_harness import check

X = torch.randn(4, 6, 5)
LARGER = [(torch.randn(8, 9, 7),)]


@pytest.mark.parametrize("opset", [7, 9, 10, 11, 13, 18, 23, 26, 28])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[1:3, :, -2:],
        lambda x: x[:, 2],
        lambda x: x[..., -1],
        lambda x: x.chunk(2, 1),
        lambda x: x.split([1, 2, 3], 1),
        lambda x: x.narrow(1, 2, 3),
    ],
)
def test_part_at_every_opset(function, opset: int) -> None:
    check(function, X, opset=opset)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, 1::2, ::3],
        lambda x: x[-100:100],
        lambda x: x[3:1],
        lambda x: x[10:],
        lambda x: x.split(4, 1),
        lambda x: x.split(6, 1),
        lambda x: x.chunk(4, 1),
        lambda x: x.chunk(3, -1),
        lambda x: x.unbind(1),
        lambda x: x.tensor_split(4, 1),
        lambda x: x.tensor_split((1, -1), 1),
        lambda x: x.tensor_split(torch.tensor([1, 4]), 1),
        lambda x: (*x.hsplit(3), *x.vsplit(2), *x.dsplit((1, 3))),
        lambda x: x.flip((0, -1)),
        lambda x: torch.rot90(x, 3, (2, 0)),
        lambda x: (torch.rot90(x), torch.rot90(x, 2), torch.rot90(x, -4, (1, 2))),
        lambda x: x.roll(2),
        lambda x: x.roll((-1, 9), (0, 2)),
        lambda x: x.unfold(1, 3, 2),
        lambda x: x.unfold(-1, 5, 1),
    ],
)
def test_part_of_static_sizes(function) -> None:
    check(function, X)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[1:-1, :, 2:],
        lambda x: x[:, : x.shape[0] // 2],
        lambda x: x[:, -1],
        lambda x: x.split([2, x.shape[1] - 2], 1),
        lambda x: x.split(x.shape[0], 0),
        lambda x: x.chunk(2, 0),
        lambda x: x.chunk(2, 2),
        lambda x: x.chunk(4, 1),
        lambda x: x.tensor_split(3, 2),
        lambda x: x.narrow(1, 1, x.shape[1] - 3),
        lambda x: x.flip(1),
        lambda x: x.roll((1, -3), (0, 1)),
        lambda x: x.roll(x.shape[1] // 2, 1),
        lambda x: x.roll(100, 1),
        lambda x: x.unfold(1, 3, 2),
    ],
)
def test_part_runs_at_other_sizes(function) -> None:
    check(function, X, others=LARGER)


def test_roll_by_a_static_shift_copies_two_parts_an_axis() -> None:
    # A Gather of all indices is one node, and takes three times as long.
    lowered = check(lambda x: x.roll((-3, -3), (1, 2)), torch.randn(1, 7, 7, 4))
    assert lowered.op_types() == ["Slice", "Slice", "Concat"] * 2


def test_slices_of_several_axes_join() -> None:
    lowered = check(lambda x: x[1:, ::2, -3:-1], X, others=LARGER)
    assert lowered.op_types() == ["Slice"]


def test_slices_of_the_same_axis_apply_one_after_the_other() -> None:
    check(lambda x: x[1:][:2][::2], X, others=LARGER)


def test_chunk_costs_one_node() -> None:
    assert check(lambda x: sum(x.chunk(3, 1)), X).op_types().count("Split") == 1


def test_slice_that_keeps_everything_costs_nothing() -> None:
    assert check(lambda x: torch.relu(x[:, 0:6, :9]), X).op_types() == ["Relu"]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float16, torch.int8])
def test_parts_keep_the_dtype(dtype: torch.dtype) -> None:
    check(lambda x: (x[1:, 0], x.flip(0), x.roll(1, 0), *x.split(1)), torch.ones(2, 3).to(dtype))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.flip(0),
        lambda x: x.roll(1, 0),
        lambda x: x[1:],
        lambda x: x.split(2),
        lambda x: x.chunk(3),
        lambda x: x.chunk(3, 1),
    ],
)
def test_parts_of_an_empty_tensor(function) -> None:
    check(function, torch.zeros(0, 3))


def test_parts_of_a_zero_dim_tensor() -> None:
    check(lambda x: (x.flip(0), x.roll(1)), torch.tensor(1.5))


def test_split_of_a_dynamic_axis_gives_as_many_parts_as_the_captured_program_has() -> None:
    check(lambda x: x.split(x.shape[0], 1), torch.randn(3, 5), others=[(torch.randn(4, 7),)])


def test_roll_of_a_long_axis_needs_no_list_of_indices() -> None:
    lowered = check(lambda x: x.roll(5), torch.randn(100, 100))
    assert lowered.proto.ByteSize() < 2000


def test_slice_after_one_that_counts_its_axis_from_the_end() -> None:
    check(lambda x: torch.diff(x)[..., 1:], X)
