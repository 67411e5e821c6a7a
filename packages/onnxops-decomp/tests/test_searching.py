"""Search, membership, counts, histograms, segments and distinct elements equal eager PyTorch."""

from functools import partial

import pytest
import torch
from decomp_harness import check, lower, run

NAN, INF = float("nan"), float("inf")
OPSETS = [9, 11, 13, 16, 18, 26]

EDGES = torch.tensor([-1.0, 0.0, 0.0, 2.0, 5.0])
VALUES = torch.tensor([[-2.0, -1.0, 0.0], [2.5, 5.0, 6.0]])


@pytest.mark.parametrize("opset", [7, 11, 13, 18])
@pytest.mark.parametrize("right", [False, True])
def test_bucketize_and_searchsorted(opset: int, right: bool) -> None:
    check(
        lambda x, b: (torch.bucketize(x, b, right=right), torch.searchsorted(b, x, right=right, out_int32=True)),
        VALUES,
        EDGES,
        opset=opset,
        others=[(VALUES.reshape(3, 2), EDGES[:2])],
    )


def test_searchsorted_in_rows_with_a_sorter() -> None:
    rows = torch.tensor([[3.0, 1.0, 2.0], [9.0, 8.0, 7.0]])
    check(lambda r, x: torch.searchsorted(r, x, sorter=r.argsort(), side="right"), rows, torch.tensor([[2.0], [8.5]]))
    check(lambda r: (torch.searchsorted(r, 2.0), torch.bucketize(3, r)), torch.tensor([1.0, 2.0, 4.0]))


def test_nan_is_found_last() -> None:
    check(lambda b, x: torch.searchsorted(b, x), torch.tensor([1.0, 2.0, INF]), torch.tensor([NAN, INF, 0.0]))
    check(lambda b, x: torch.searchsorted(b, x), torch.ones(0), torch.ones(3))
    edges, sought = torch.tensor([-INF, -2.5, 0.0, 0.0, 1.5, 3e38, INF, NAN]), torch.tensor([NAN, INF, -INF, -0.0, 1.5])
    for right in (False, True):
        check(partial(torch.searchsorted, right=right), edges, sought)


@pytest.mark.parametrize("opset", [7, 13, 18])
@pytest.mark.parametrize("invert", [False, True])
def test_isin(opset: int, invert: bool) -> None:
    x = torch.tensor([[1, 2], [3, 4]])
    check(lambda x, y: torch.isin(x, y, invert=invert), x, torch.tensor([2, 3, 9]), opset=opset)
    check(lambda x: (torch.isin(x, 2), torch.isin(1, x)), x, opset=opset)
    check(lambda x, y: torch.isin(x, y), x, torch.ones(0, dtype=torch.int64))


@pytest.mark.parametrize("opset", OPSETS)
def test_bincount(opset: int) -> None:
    x = torch.tensor([1, 3, 1, 0])
    check(lambda x: (torch.bincount(x), torch.bincount(x, minlength=6)), x, opset=opset)
    check(lambda x, w: torch.bincount(x, w), x, torch.tensor([0.5, 1.0, 2.0, 4.0]), opset=opset)
    check(lambda x: torch.bincount(x, minlength=2), x[:0], opset=opset)


@pytest.mark.parametrize("opset", OPSETS)
def test_histc(opset: int) -> None:
    x = torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, NAN])
    check(lambda x: (torch.histc(x, 4, 0, 2), torch.histc(x[:-1], 5)), x, opset=opset)
    check(lambda x: torch.histc(x, 3), torch.full((4,), 2.0), opset=opset)


def test_histogram() -> None:
    x = torch.linspace(-2, 3, 41)
    check(lambda x: (*torch.histogram(x, 5), *torch.histogram(x, 4, range=(0.0, 1.0), density=True)), x)
    check(lambda x, e, w: torch.histogram(x, e, weight=w), x, EDGES, torch.rand(41))
    points = torch.stack([x, x.flip(0) / 2], dim=1)
    check(lambda p: torch.histogramdd(p, [3, 4], density=True), points)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("opset", [16, 18, 20])
def test_segments(reduce: str, opset: int) -> None:
    data = torch.tensor([[1.0, 2.0], [3.0, -4.0], [5.0, 6.0], [7.0, 8.0]])
    lengths = torch.tensor([1, 0, 3])
    check(
        lambda d, n: (
            torch.segment_reduce(d, reduce, lengths=n, axis=0, unsafe=True),
            torch.segment_reduce(d, reduce, lengths=n, axis=0, initial=2.0),
        ),
        data,
        lengths,
        opset=opset,
    )
    check(lambda d, n: torch.segment_reduce(d, reduce, lengths=n, initial=1), data.half(), lengths, opset=opset)
    offsets = torch.tensor([0, 1, 1, 4])
    check(lambda d, o: torch.segment_reduce(d, reduce, offsets=o, axis=0, initial=0), data, offsets, opset=opset)


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_unique(opset: int) -> None:
    x = torch.tensor([[3, 1, 3], [2, 1, 3]])
    check(lambda x: torch.unique(x, return_inverse=True, return_counts=True), x, opset=opset)
    check(lambda x: torch.unique(x), x.float(), opset=opset)
    check(lambda x: torch.unique(x, return_counts=True), x > 2, opset=opset)
    rows = torch.tensor([[1, 2], [0, 5], [1, 2]])
    check(lambda x: torch.unique(x, dim=0, return_inverse=True, return_counts=True), rows, opset=opset)


@pytest.mark.parametrize("opset", [11, 18, 26])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_slices_with_nan_are_distinct(dim: int, opset: int) -> None:
    def found(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.unique(x, dim=dim, return_inverse=True, return_counts=True)

    nan = float("nan")
    x = torch.tensor([[nan, 2.0, nan, 1.0, 2.0, -0.0], [1.0, 3.0, 1.0, nan, 3.0, 0.0]])
    x = x.T.contiguous() if dim == 0 else x
    values, inverse, counts = run(lower(found, [x], opset=opset).proto, [x])
    torch.testing.assert_close(values.index_select(dim, inverse), x, equal_nan=True)
    assert values.shape == found(x)[0].shape
    assert counts.tolist() == inverse.bincount().tolist()
    # Where torch compares with NaN its order is what sorting leaves; here NaN is the greatest.
    assert values.movedim(dim, 0).flatten(1)[:, 0].nan_to_num(nan=9.0).diff().ge(0).all()
    check(found, torch.tensor([[2.0, 0.5], [0.0, 0.5], [2.0, 0.5]]), opset=opset)
    check(found, torch.zeros(0, 2) if dim == 0 else torch.zeros(2, 0), opset=opset)


@pytest.mark.parametrize("opset", [9, 13, 18])
def test_unique_consecutive(opset: int) -> None:
    x = torch.tensor([[1, 1, 2], [2, 3, 3]])
    check(lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True), x, opset=opset)
    rows = torch.tensor([[1, 2], [1, 2], [0, 5], [1, 2]])
    check(lambda x: torch.unique_consecutive(x, dim=0, return_inverse=True, return_counts=True), rows, opset=opset)
    check(lambda x: torch.unique_consecutive(x), x.float()[:0], opset=opset)


@pytest.mark.parametrize("opset", [10, 11, 13, 18, 26])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_every_nan_is_distinct(dtype: torch.dtype, opset: int) -> None:
    def found(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*x.unique(return_inverse=True, return_counts=True), x.unique())

    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[nan, 1.0, nan, 2.0], [-inf, 1.0, inf, 0.0]]).to(dtype)
    check(found, x, opset=opset, others=[(torch.tensor([[3.0, nan], [3.0, -1.0], [inf, 2.0]]).to(dtype),)])
    check(found, torch.zeros(0, dtype=dtype), opset=opset)
