"""Tensors with some elements replaced equal eager PyTorch."""

import pytest
import torch
from decomp_harness import check

X = torch.randn(4, 5, 6)
LARGER = torch.randn(7, 8, 9)
ROWS = torch.tensor([0, 3, -1])
COLUMNS = torch.tensor([2, -2, 1])


def assign(x: torch.Tensor, indices: list, values: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    return torch.ops.aten.index_put(x, indices, values, accumulate)


PUTS = [
    lambda x, i, j: assign(x, [i], torch.tensor(2.0)),
    lambda x, i, j: assign(x, [i.abs(), j], x[0, :3, :1]),
    lambda x, i, j: assign(x, [None, j], torch.ones(())),
    lambda x, i, j: assign(x, [None, i, j], x[:, 0, :3]),
    lambda x, i, j: assign(x, [None, None, j], x[:1, :, 2:5]),
    lambda x, i, j: assign(x, [i, None, j], x[:3, :, 0]),
    lambda x, i, j: assign(x, [i[:, None], j], x[:3, :3, :1]),
    lambda x, i, j: assign(x, [i[:, None], None, j], torch.ones(1)),
    lambda x, i, j: assign(x, [None, i[:, None]], x[:, :3, None]),
    lambda x, i, j: assign(x, [i, j, i], torch.zeros(3)),
    lambda x, i, j: assign(x, [i], x[:3]),
    lambda x, i, j: assign(x, [j], x[:1]),
    lambda x, i, j: assign(x, [i[:0]], x[:1]),
]


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("number", range(len(PUTS)))
def test_index_put(number: int, accumulate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "assign", lambda x, i, v: torch.ops.aten.index_put(x, i, v, accumulate))
    # Without accumulation, what is written twice to one place is undefined.
    rows = ROWS if accumulate else torch.tensor([0, -2, 1])
    check(PUTS[number], X, rows, COLUMNS, opset=18)


@pytest.mark.parametrize("number", [0, 2, 3, 5, 7])
def test_index_put_runs_at_other_sizes(number: int) -> None:
    check(PUTS[number], X, torch.tensor([0, -2, 1]), COLUMNS, others=[(LARGER, *torch.randperm(6).split(3))])


@pytest.mark.parametrize("opset", [9, 11, 13, 16, 18, 23, 26, 28])
def test_index_put_at_every_opset(opset: int) -> None:
    check(lambda x, i: assign(assign(x, [i], x[:3]), [None, i], x[:, :3]), X, torch.tensor([0, -2, 1]), opset=opset)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, m: assign(x, [m], torch.tensor(1.5)),
        lambda x, m: assign(x, [m], torch.tensor(1.5), True),
        lambda x, m: assign(x, [m[:, 0, 0]], torch.tensor([1.5])),
        lambda x, m: assign(x, [None, m[0, :, 0]], torch.tensor(1.5)),
        lambda x, m: assign(x, [m[:, 0, 0]], x[:1] * 2),
        lambda x, m: assign(x, [m[:, :, 0]], x[0, 0] * 2),
        lambda x, m: assign(x, [m[:, 0, 0], None, m[0, 0]], torch.tensor(3.0)),
        lambda x, m: x.masked_scatter(m, x * 2),
        lambda x, m: x.masked_scatter(m[0], x * 2),
        lambda x, m: x.masked_fill(m[:1], 2),
    ],
)
def test_mask_assignment(function) -> None:
    mask = torch.zeros(4, 5, 6).bool()
    mask[:2, :2, :2] = True
    check(function, X, mask, others=[(LARGER, LARGER > 0.3)] if "masked" in str(function.__code__.co_names) else ())


def test_mask_assignment_of_a_scalar_costs_one_node() -> None:
    lowered = check(lambda x, m: assign(x, [m], torch.tensor(0.0)), X, X > 0)
    assert lowered.op_types() == ["Where"]


@pytest.mark.parametrize("opset", [9, 11, 13, 16, 18, 23, 26, 28])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, i, s: x.scatter(1, i, s),
        lambda x, i, s: x.scatter(1, i, 2.0),
        lambda x, i, s: x.scatter_add(-1, i, s),
        lambda x, i, s: x.scatter(0, i, s, reduce="multiply"),
        lambda x, i, s: x.scatter(0, i, 3.0, reduce="add"),
    ],
)
def test_scatter_at_every_opset(function, opset: int) -> None:
    check(function, torch.randn(4, 4), torch.tensor([[0, 1, 2], [2, 0, 3]]), torch.randn(3, 3), opset=opset)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float64])
def test_scatter_reduce(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    x, s = (torch.randn(4, 4) * 10).to(dtype), (torch.randn(3, 3) * 10).to(dtype)
    i = torch.tensor([[0, 0, 2], [0, 0, 3]])
    check(lambda x, i, s: x.scatter_reduce(0, i, s, reduce, include_self=include_self), x, i, s, opset=18)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
def test_index_reduce(reduce: str, include_self: bool) -> None:
    s = torch.randn(4, 3, 6)
    check(
        lambda x, i, s: x.index_reduce(1, i, s, reduce, include_self=include_self),
        X,
        torch.tensor([0, 3, 0]),
        s,
        opset=18,
    )


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, d, i: x.index_add(d, i, x.narrow(d, 1, 3), alpha=2),
        lambda x, d, i: x.index_copy(d, i, x.narrow(d, 1, 3)),
        lambda x, d, i: x.index_fill(d, i, 2.5),
        lambda x, d, i: x.index_fill(d, i, x[0, 0, 0].detach()),
        lambda x, d, i: x.select_scatter(x.select(d, 1) * 2, d, -2),
        lambda x, d, i: x.slice_scatter(x.narrow(d, 0, 2) * 2, d, 1, 3),
        lambda x, d, i: x.slice_scatter(x.narrow(d, 0, 2) * 2, d, 1, 4, 2),
        lambda x, d, i: x.slice_scatter(x.narrow(d, 0, 2) * 2, d, -2),
        lambda x, d, i: x.slice_scatter(x * 2, d),
    ],
)
def test_write_along_an_axis(function, dim: int) -> None:
    i = torch.tensor([0, 2, 1])
    check(lambda x, i: function(x, dim, i), X, i)
    check(lambda x, i: function(x, dim, i), X, i, others=[(LARGER, i)])


def test_zero_dim_operands() -> None:
    check(
        lambda x, i: (
            x.scatter(0, i, 3.0),
            x.scatter_add(0, i, x),
            x.index_add(0, i, x),
            x.index_fill(0, i, 2.0),
            x.index_copy(0, i.reshape(1), x),
            x.reshape(1).index_copy(0, i, x),
            x.reshape(1).scatter(0, i, x),
            x.masked_scatter(i == 0, x * 2),
        ),
        torch.tensor(1.5),
        torch.tensor(0),
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float16, torch.int32, torch.float64])
def test_writing_keeps_the_dtype(dtype: torch.dtype) -> None:
    x, i = torch.tensor([[1, 0, 3], [0, 2, 1]]).to(dtype), torch.tensor([1, 0])
    check(
        lambda x, i: (
            assign(x, [i], x[:1]),
            assign(x, [i], x, True),
            x.scatter(0, i[None], x),
            x.scatter_add(0, i[None], x),
            x.index_add(1, i, x[:, :2]),
            x.masked_scatter(x == 1, x),
            x.slice_scatter(x[:, :1], 1, 1, 2),
        ),
        x,
        i,
    )


def test_put_counts_through_the_whole_tensor() -> None:
    check(
        lambda x, i, s: (x.put(i, s), x.put(i, s, accumulate=True)),
        X,
        torch.tensor([[3, -1], [100, 7]]),
        torch.randn(4),
        others=[(LARGER, torch.tensor([[5, -2], [50, 9]]), torch.randn(4))],
    )


def test_scatter_of_nothing() -> None:
    check(lambda x, i: (x.scatter(0, i, 1.0), x.scatter_reduce(0, i, x, "mean")), X, torch.zeros(0, 5, 6).long())
