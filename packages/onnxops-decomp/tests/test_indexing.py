"""Elements picked by tensors equal eager PyTorch."""

import pytest
import torch
from decomp_harness import check

X = torch.randn(4, 5, 6, 7)
LARGER = torch.randn(5, 7, 4, 6)
ROWS = torch.tensor([0, 3, -1])
COLUMNS = torch.tensor([2, -2, 1])
OTHER_ROWS = [(torch.randn(9, 2), torch.randn(4))]


@pytest.mark.parametrize("opset", [7, 9, 11, 12, 13, 18, 23, 26, 28])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, i, j: x[i],
        lambda x, i, j: x[:, i],
        lambda x, i, j: x[i, j],
        lambda x, i, j: x[:, i, j],
        lambda x, i, j: torch.index_select(x, 1, i.abs()),
        lambda x, i, j: x[:1, :, :1, :1].gather(1, i.abs().reshape(1, 3, 1, 1)),
    ],
)
def test_index_at_every_opset(function, opset: int) -> None:
    check(function, X, ROWS, COLUMNS, opset=opset)


INDEXINGS = [
    lambda x, i, j: x[i],
    lambda x, i, j: x[..., i],
    lambda x, i, j: x[:, i[:, None]],
    lambda x, i, j: x[i, :, j],
    lambda x, i, j: x[:, i, :, j],
    lambda x, i, j: x[:, i, j],
    lambda x, i, j: x[i[:, None], j],
    lambda x, i, j: x[:, i[:, None], j],
    lambda x, i, j: x[i, j, i],
    lambda x, i, j: x[i, j, i, j.clamp(-3, 2)],
    lambda x, i, j: x[i, None, j],
    lambda x, i, j: x[i, 1],
    lambda x, i, j: x[1, :, i],
    lambda x, i, j: x[i.unsqueeze(0), ..., j.unsqueeze(1)],
    lambda x, i, j: x[torch.arange(x.shape[0]), -1],
    lambda x, i, j: x[:, torch.arange(2)[:, None], torch.arange(3)],
    lambda x, i, j: torch.ops.aten.index(x, [i[0]]),
    lambda x, i, j: torch.ops.aten.index(x, [i[0], j]),
    lambda x, i, j: torch.ops.aten.index(x, [i[0], None, j[1]]),
    lambda x, i, j: x[j, :, i[:, None]],
    lambda x, i, j: x[:, i[:, None, None], j[:, None], i],
    lambda x, i, j: x[i[:, None], i[:, None, None], :, j],
    lambda x, i, j: x[:, i.repeat(2, 1)[:, :, None, None], j.repeat(2, 1)],
    lambda x, i, j: x[torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1])],
    lambda x, i, j: x[torch.arange(1, x.shape[0])[:, None], torch.arange(0, x.shape[1], 2)],
    lambda x, i, j: x[[0, 2], [1, -1]],
    lambda x, i, j: x[i.int()],
    lambda x, i, j: x[:0][:, i],
    lambda x, i, j: x[i[:0], j[:0]],
]


@pytest.mark.parametrize("function", INDEXINGS)
def test_index(function) -> None:
    check(function, X, ROWS, COLUMNS)


@pytest.mark.parametrize("function", INDEXINGS[:21])
def test_index_runs_at_other_sizes(function) -> None:
    check(function, X, ROWS, COLUMNS, others=[(LARGER, torch.tensor([1, -2, 0, 3]), torch.tensor([2, -3, 1, 0]))])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[torch.arange(x.shape[0] - 1, -1, -1)],
        lambda x: x[:, torch.arange(x.shape[1] - 2, -2, -2)],
        lambda x: x[torch.arange(-2, x.shape[0] - 3)],
        lambda x: x[:, torch.arange(3 - x.shape[1], 1)],
        lambda x: x[torch.arange(x.shape[0] - 2, x.shape[0])],
    ],
)
def test_index_by_a_range_that_holds_negative_numbers_or_ends_at_one(function) -> None:
    check(function, torch.randn(5, 6), others=[(torch.randn(3, 4),), (torch.randn(8, 5),)])


def test_positions_that_count_from_a_size_cost_no_more_than_their_range() -> None:
    model = check(
        lambda x, y: x[torch.arange(y.shape[0], y.shape[0] * 2)], torch.randn(9, 2), torch.randn(3), others=OTHER_ROWS
    )

    assert "Add" not in model.op_types()


@pytest.mark.parametrize("opset", [9, 13, 18])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, m: x[m],
        lambda x, m: x[:, :, m.any(0).any(-1)[:3].repeat(2)],
        lambda x, m: x[m.any(-1)],
        lambda x, m: x[m.any(-1).any(-1)],
        lambda x, m: x[:, m[0]],
        lambda x, m: x[:, m[0, :, 0]],
        lambda x, m: x[m[:, 0, 0], :, 1],
        lambda x, m: x[:, m[0, :, 0], :][:, None, :2],
        lambda x, m: x.masked_select(m[0]),
        lambda x, m: x[m[:, 0, 0]].sum(0),
    ],
)
def test_boolean_index(function, opset: int) -> None:
    torch.manual_seed(1)
    check(function, torch.randn(4, 5, 6), torch.rand(4, 5, 6) > 0.4, opset=opset)


def test_boolean_index_runs_at_other_sizes() -> None:
    check(
        lambda x, m: (x[m], x[m[:, 0]], x[:, m[0]], x.masked_select(m)),
        torch.randn(4, 5),
        torch.rand(4, 5) > 0.5,
        others=[(torch.randn(3, 7), torch.rand(3, 7) > 0.2), (torch.randn(3, 7), torch.zeros(3, 7).bool())],
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float16, torch.int8, torch.float64])
def test_indexing_keeps_the_dtype(dtype: torch.dtype) -> None:
    x = torch.ones(3, 4).to(dtype)
    i = torch.tensor([1, 2])
    check(lambda x, i: (x[i], x[i, i], x[x == 1], x.gather(0, i[None]), x.take(i), x.masked_select(x == 1)), x, i)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gather_along_each_axis(dim: int) -> None:
    index = torch.randint(0, 3, (2, 3, 2))
    check(lambda x, i: x.gather(dim, i), torch.randn(4, 5, 3), index, others=[(torch.randn(6, 4, 3), index[:, :2])])


def test_zero_dim_operands() -> None:
    check(
        lambda x, i: (
            x.gather(0, i),
            x.gather(0, i.reshape(1)),
            x.index_select(0, i.reshape(1)),
            x.take(i),
            torch.take_along_dim(x, i),
            x.reshape(1).gather(0, i),
            x.reshape(1).index_select(0, i),
        ),
        torch.tensor(1.5),
        torch.tensor(0),
    )


def test_gather_by_an_empty_index_of_any_rank() -> None:
    check(lambda x, i: (x.gather(0, i), x.gather(1, i.reshape(0, 2, 3, 4))), X, torch.zeros(0, dtype=torch.int64))


def test_take_counts_through_the_whole_tensor() -> None:
    check(lambda x, i: x.take(i), X, torch.tensor([[0, -1], [100, 7]]))


def test_take_along_dim_broadcasts() -> None:
    i = torch.randint(0, 5, (4, 1, 6, 7))
    check(lambda x, i: (torch.take_along_dim(x, i, 1), torch.take_along_dim(x, i)), X, i)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.bool, torch.int8])
def test_nonzero_positions(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 3.0]]).to(dtype)
    check(lambda x: (x.nonzero(), torch.argwhere(x), *torch.where(x), *x.nonzero(as_tuple=True)), x)


def test_nonzero_of_not_a_number() -> None:
    check(torch.nonzero, torch.tensor([float("nan"), 0.0, -0.0, float("inf"), 1e-40]))


@pytest.mark.parametrize("number", [0.0, 2.0])
def test_nonzero_of_a_zero_dim_tensor(number: float) -> None:
    check(torch.nonzero, torch.tensor(number))


@pytest.mark.parametrize("size", [0, 2, 5])
def test_nonzero_of_a_static_length(size: int) -> None:
    check(lambda x: torch.nonzero_static(x, size=size, fill_value=7), torch.tensor([[0, 1, 0], [2, 0, 3]]))


def test_index_by_one_tensor_costs_one_node() -> None:
    assert check(lambda x, i, j: x[:, i], X, ROWS, COLUMNS).op_types() == ["Gather"]


def test_indices_along_axes_of_their_own_need_no_joint_index() -> None:
    lowered = check(lambda x, i, j: x[:, i[:, None], j], X, ROWS, COLUMNS)
    assert lowered.op_types() == ["Gather", "Gather"]


def test_index_by_all_positions_costs_no_gather() -> None:
    lowered = check(
        lambda x: x[torch.arange(x.shape[0])[:, None, None], torch.arange(x.shape[1])],
        torch.randn(4, 5, 2),
        others=[(torch.randn(3, 7, 6),)],
    )
    assert lowered.op_types() == ["Unsqueeze"]
